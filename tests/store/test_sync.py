"""What syncs write: numbers that only rise, and what the newest of them alone was told (H-S1, H-S4)."""

from __future__ import annotations

from model.sync import SET_NAMES, SyncAnswer, SyncDone, SyncRef, SyncRow
from model.versions import is_below
from store.audit import Actor
from store.database import Pool
from store.sync import SyncStore
from tests.fixtures.rows import add_host

ACTOR = Actor("test")


async def begin(store: SyncStore, host_id: str, run: str) -> SyncRow:
    row = await store.begin(SyncRef(host_id=host_id, run_key=run))
    assert row is not None
    return row


def applied(row: SyncRow) -> SyncDone:
    states = dict.fromkeys(SET_NAMES, "applied")
    return SyncDone(row=row, answer=SyncAnswer(epoch=row.epoch, number=row.number, states=states))  # pyright: ignore[reportArgumentType]


async def test_a_run_draws_one_number_above_every_other(pool: Pool) -> None:
    """H-S4, H-R1: a repeat has the same; it is from the sequence of all passes, so a restore lifts it, too."""
    store, host_id = SyncStore(pool), await add_host(pool)
    first, again, second = [await begin(store, host_id, run) for run in ("a", "a", "b")]
    drawn: int = await pool.fetchval("select nextval('pass')")
    assert first.number == again.number < second.number < drawn
    assert await store.begin(SyncRef(host_id="none", run_key="a")) is None


async def test_what_is_late_writes_nothing(pool: Pool) -> None:
    """H-S4: the answer of a run that another one has overtaken."""
    store, host_id = SyncStore(pool), await add_host(pool)
    await store.replace(host_id, "privileged_addresses", ["10.84.0.9"], ACTOR)
    late, newest = await begin(store, host_id, "a"), await begin(store, host_id, "b")
    assert await store.finish(applied(late))
    found = await store.get(host_id)
    assert (found.synced.revision, found.due) == (None, True)
    assert await store.finish(applied(newest))
    found = await store.get(host_id)
    assert (found.synced.revision, found.synced.number, found.due) == (1, newest.number, False)


async def test_a_wake_amid_a_sync_is_not_lost(pool: Pool) -> None:
    """Design, Wake: what was acknowledged counts, and the run looks again."""
    store, host_id = SyncStore(pool), await add_host(pool)
    await store.replace(host_id, "privileged_addresses", ["10.84.0.9"], ACTOR)
    row = await begin(store, host_id, "a")
    await store.replace(host_id, "privileged_addresses", [], ACTOR)
    assert not await store.finish(applied(row))
    found = await store.get(host_id)
    assert (found.revision, found.synced.revision, found.due) == (2, 1, True)


async def test_the_store_compares_releases_as_the_model_does(pool: Pool) -> None:
    """H-S5: every pair of these, by both."""
    versions = [
        None,
        "",
        "dev",
        "0.9",
        "1.2",
        "1.2.0",
        "1.2.10",
        "1.10.0",
        "1.9.9",
        "2.0.0rc1",
        "1.2.0.dev0",
        "1",
        "v1.2",
    ]
    rows = await pool.fetch(
        "select w, f, is_below(w, f) as below from unnest($1::text[]) w cross join unnest($1::text[]) f", versions
    )
    assert len(rows) == len(versions) ** 2
    assert {(row["w"], row["f"]): row["below"] for row in rows} == {
        (worker, floor): is_below(worker, floor) for worker in versions for floor in versions
    }
