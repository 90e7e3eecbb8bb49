"""Migrations: each once, in order, and never edited."""

import asyncio
from dataclasses import replace

import asyncpg
import pytest

import store.migrate
from model.errors import Conflict, Unavailable
from store.database import Pool
from store.migrate import Migration, check_schema, migrate, read_migrations


async def test_a_second_run_applies_nothing(database_url: str) -> None:
    assert await migrate(database_url) == ()


async def test_two_at_once_apply_each_once(database_url: str) -> None:
    known = read_migrations()
    more = (*known, Migration(len(known) + 1, "9999_more.sql", "create table more (id integer)"))
    applied = await asyncio.gather(*(migrate(database_url, more) for _ in range(4)))
    assert sorted(applied, key=len) == [(), (), (), ("9999_more.sql",)]


async def test_an_edited_migration_is_refused(database_url: str) -> None:
    first, *rest = read_migrations()
    with pytest.raises(Conflict, match="never edited"):
        await migrate(database_url, (replace(first, text=first.text + "\n-- edited"), *rest))


async def test_a_newer_database_is_refused(database_url: str) -> None:
    with pytest.raises(Conflict, match="newer release"):
        await migrate(database_url, read_migrations()[:-1])


async def test_a_failing_migration_leaves_nothing(database_url: str) -> None:
    known = read_migrations()
    bad = Migration(len(known) + 1, "9999_bad.sql", "create table half (id integer); select 1 / 0")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(database_url, (*known, bad))
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("select to_regclass('half')") is None
    await connection.close()
    assert await migrate(database_url) == ()


async def test_who_does_not_migrate_waits_for_whoever_does(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case O16, H-D4: a schema that lacks something is waited for, one of a newer release is refused; both say why."""
    known = read_migrations()
    await check_schema(pool)
    more = (*known, Migration(len(known) + 1, "9999_more.sql", ""))
    monkeypatch.setattr(store.migrate, "read_migrations", lambda: more)
    with pytest.raises(Unavailable, match=r"9999_more\.sql: start the API of this release"):
        await check_schema(pool)
    monkeypatch.setattr(store.migrate, "read_migrations", lambda: known[:-1])
    with pytest.raises(Conflict, match="newer release; run that one"):
        await check_schema(pool)
    await pool.execute("drop table migrations")
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="0001_fleet_and_hosts"):
        await check_schema(pool)
