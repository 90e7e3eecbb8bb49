"""Migrations: each once, in order, and never edited."""

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from model.errors import Conflict
from store.migrate import Migration, migrate, read_migrations


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
