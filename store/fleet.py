"""The fleet's one row: its id, its epoch, and whether the control plane can hear (H-R1, H-S10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from model.errors import Unavailable
from model.ids import new_id
from model.versions import VERSION, parse_version
from store.database import reading, transaction

if TYPE_CHECKING:
    from store.database import Connection, Pool

# A host's worker is below the floor; a control plane in development has none for what is no release (H-S5).
BELOW_FLOOR = "(h.worker_version is not null and is_below(h.worker_version, f.min_worker_version)" + (
    " and release_of(h.worker_version) is not null)" if parse_version(VERSION) is None else ")"
)

HEARING_GAP = timedelta(seconds=30)


@dataclass(frozen=True)
class Fleet:
    """One read of the fleet's row. `behind`: the database is not the one that was noted; nothing is destroyed."""

    id: str
    epoch: int
    frozen: bool
    behind: bool
    behind_since: datetime | None
    behind_why: str | None
    min_worker_version: str | None
    max_create_attempts: int
    host_silent_after: timedelta
    heard_at: datetime | None
    hearing_since: datetime | None


async def ensure_fleet(pool: Pool) -> Fleet:
    """Make the fleet's row once, note which database it lives in, and return it.

    A later start on another system or timeline marks the store as behind: it was restored or copied (H-R1).
    """
    async with transaction(pool) as connection:
        await connection.execute(
            """insert into fleet (id, system_identifier, timeline)
            select $1, s.system_identifier::text, c.timeline_id from pg_control_system() s, pg_control_checkpoint() c
            on conflict do nothing""",
            new_id(),
        )
        await check_identity(connection)
        return await read_fleet(connection)


# Passes that are drawn from here on are unknown to hosts that were not heard since.
NOTE_START = """
update fleet set server_started_at = pg_postmaster_start_time(), pass_at_start = (select last_value from pass)
where server_started_at is distinct from pg_postmaster_start_time()"""


async def check_identity(connection: Connection) -> None:
    """Note the server's start, and mark the store as behind where its database is another one than was noted."""
    await connection.execute(NOTE_START)
    other = await connection.fetchval(
        """select (f.system_identifier, f.timeline) is distinct from (s.system_identifier::text, c.timeline_id)
        from fleet f cross join pg_control_system() s cross join pg_control_checkpoint() c where not f.behind"""
    )
    if other:
        await mark_behind(connection, "the database is another one than was noted: it was restored, copied or promoted")


async def mark_behind(connection: Connection, why: str) -> None:
    """Say that the store is behind what hosts were ordered last; nothing is done until a person has settled it."""
    await connection.execute(
        "update fleet set behind = true, behind_since = now(), behind_why = $1 where not behind", why
    )


async def get_fleet(pool: Pool) -> Fleet:
    """Read the fleet's row."""
    async with reading(pool) as connection:
        return await read_fleet(connection)


async def note_hearing(pool: Pool) -> None:
    """Say that the API can hear hosts now. It says so every 10 s; after a gap of 30 s it has heard since now only.

    Whoever hears looks whether the database was replaced meanwhile, too (H-R1).
    """
    async with reading(pool) as connection:
        await connection.execute(
            """update fleet set heard_at = now(), hearing_since = case
                when heard_at is null or heard_at < now() - $1::interval then now() else hearing_since end""",
            HEARING_GAP,
        )
        await check_identity(connection)


async def set_silence(pool: Pool, after: timedelta) -> None:
    """Set after how long without a report a host is silent (H-S10)."""
    async with reading(pool) as connection:
        await connection.execute("update fleet set host_silent_after = $1 where host_silent_after <> $1", after)


async def read_fleet(connection: Connection) -> Fleet:
    record = await connection.fetchrow(
        """select id, epoch, frozen, behind, behind_since, behind_why, min_worker_version, max_create_attempts,
            host_silent_after, heard_at, hearing_since from fleet"""
    )
    if record is None:
        raise Unavailable("the fleet has no row yet: the API makes it when it starts")
    return Fleet(**{name: record[name] for name in Fleet.__dataclass_fields__})
