"""Bring a database to this release's schema: numbered files, each once, each in one transaction."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from model.errors import Conflict, Unavailable
from store.database import Pool, reading, translated

MIGRATIONS = Path(__file__).parent / "migrations"
_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql", re.ASCII)
_LOCK = 0x686F73746C6572  # "hostler": who migrates takes this advisory lock

_TABLE = """
create table if not exists migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
)"""

_APPLIED = "select number, name, checksum from migrations order by number"


@dataclass(frozen=True)
class Migration:
    """One numbered file. `checksum` is the SHA-256 of its text."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_migrations(folder: Path = MIGRATIONS) -> tuple[Migration, ...]:
    """Read the migrations in order; raise ValueError when their numbers are not 1, 2, 3 …"""
    found: list[Migration] = []
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match:
            found.append(Migration(int(match[1]), path.name, path.read_text("utf-8")))
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations must be numbered 1, 2, 3 … without gaps; found {numbers}")
    return tuple(found)


async def migrate(url: str, migrations: tuple[Migration, ...] | None = None) -> tuple[str, ...]:
    """Apply what is missing and return the names applied.

    Raise Conflict when an applied migration was edited, or when the database belongs to a newer release.
    """
    wanted = read_migrations() if migrations is None else migrations
    with translated():
        connection = await asyncpg.connect(url, timeout=10)
        try:
            # Waits for another process that migrates; a session's lock ends with the session at the latest.
            await connection.execute("select pg_advisory_lock($1)", _LOCK)
            await connection.execute(_TABLE)
            return await _apply(connection, wanted)
        finally:
            await connection.close(timeout=5)


async def check_schema(pool: Pool) -> None:
    """Refuse a database that this release does not serve; nothing is changed.

    Raise Unavailable while it lacks a migration, which the API of this release applies when it starts, and Conflict
    when it belongs to a newer release.
    """
    wanted = read_migrations()
    async with reading(pool) as connection:
        made = await connection.fetchval("select to_regclass('migrations') is not null")
        rows = await connection.fetch(_APPLIED) if made else []
    _check(wanted, _by_number(rows))
    if len(rows) < len(wanted):
        raise Unavailable(
            f"the database lacks {wanted[len(rows)].name}: start the API of this release, which brings it forward"
        )


async def count_migrations(pool: Pool) -> tuple[int, int]:
    """Return how many migrations the database has, and how many this release knows."""
    async with reading(pool) as connection:
        made: int = await connection.fetchval("select coalesce(max(number), 0) from migrations")
    return made, len(read_migrations())


async def _apply(connection: asyncpg.Connection[asyncpg.Record], wanted: tuple[Migration, ...]) -> tuple[str, ...]:
    rows = await connection.fetch(_APPLIED)
    _check(wanted, _by_number(rows))
    applied: list[str] = []
    for migration in wanted[len(rows) :]:
        async with connection.transaction():
            await connection.execute(migration.text)
            await connection.execute(
                "insert into migrations (number, name, checksum) values ($1, $2, $3)",
                migration.number,
                migration.name,
                migration.checksum,
            )
        applied.append(migration.name)
    return tuple(applied)


def _by_number(rows: list[asyncpg.Record]) -> dict[int, tuple[str, str]]:
    return {row["number"]: (row["name"], row["checksum"]) for row in rows}


def _check(wanted: tuple[Migration, ...], there: dict[int, tuple[str, str]]) -> None:
    if there and max(there) > len(wanted):
        raise Conflict(
            f"the database has migration {max(there)}, this release knows {len(wanted)}: it belongs to a newer "
            "release; run that one"
        )
    for migration in wanted:
        name, checksum = there.get(migration.number, (migration.name, migration.checksum))
        if checksum != migration.checksum:
            raise Conflict(
                f"migration {migration.name} differs from the applied {name}: an applied migration is never edited; "
                "restore its text and add a new one"
            )
