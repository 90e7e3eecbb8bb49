"""A store that is behind its hosts: how that is seen, and what stands still meanwhile (H-R1)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from model.passes import ClaimRequest, PassRef
from store.database import Pool
from store.fleet import ensure_fleet, get_fleet, note_hearing
from store.host_report import store_report
from store.passes import PassStore
from store.vm import VmStore
from tests.fixtures.rows import add_host, add_vm
from tests.store.test_host_report import report, vm_report


@pytest.fixture
async def host_id(pool: Pool) -> str:
    return await add_host(pool, name="h1", instance_id="one", machine_id="m")


async def test_a_host_that_has_seen_a_later_pass_proves_that_the_store_is_behind(pool: Pool, host_id: str) -> None:
    """H-R1: the pass that was drawn last is no proof, one beyond it is; all that the host holds is asked for."""
    drawn = await pool.fetchval("select nextval('pass')")
    taken = await store_report(pool, host_id, report(1, pass_number=drawn, epoch=1))
    assert not (await get_fleet(pool)).behind
    assert not taken.answer.want_whole
    taken = await store_report(pool, host_id, report(2, vm_report("a"), pass_number=drawn + 1, epoch=1))
    fleet = await get_fleet(pool)
    assert fleet.behind
    assert fleet.behind_why == (
        f"the host h1 has seen pass {drawn + 1} of epoch 1, the store has only reached pass {drawn} of epoch 1"
    )
    assert taken.answer.want_whole
    assert not (await store_report(pool, host_id, report(3, vm_report("a"), whole=True))).answer.want_whole
    assert [tuple(row) for row in await pool.fetch("select host_id, vm_id from restore_told")] == [(host_id, "a")]
    await store_report(pool, host_id, report(4, vm_report("b")))
    assert await pool.fetchval("select count(*) from restore_told") == 2
    await store_report(pool, host_id, report(5, whole=True))
    assert await pool.fetchval("select count(*) from restore_told") == 0


async def test_a_host_of_a_higher_epoch_proves_it_too(pool: Pool, host_id: str) -> None:
    """H-R1: the backup is from before another restore."""
    await store_report(pool, host_id, report(1, epoch=2))
    assert (await get_fleet(pool)).behind


@pytest.mark.parametrize("changed", ["timeline = timeline + 1", "system_identifier = 'another'"])
async def test_a_replaced_database_is_seen_by_whoever_runs(pool: Pool, changed: str) -> None:
    """H-R1: at the API's start, and within seconds where the API went on running."""
    await note_hearing(pool)
    await pool.execute(f"update fleet set {changed}")
    await note_hearing(pool)
    assert (await get_fleet(pool)).behind
    since = (await get_fleet(pool)).behind_since
    assert (await ensure_fleet(pool)).behind_since == since


async def test_while_it_is_behind_no_row_passes_the_point_of_no_return(pool: Pool, host_id: str) -> None:
    """H-R1, L-R4: and its pass is told, and so is whoever reads the row."""
    vm_id = await add_vm(
        pool,
        host_id,
        deleted=True,
        quarantine_kind="tombstone",
        quarantine_grace=timedelta(0),
        **dict.fromkeys(("quarantine_since", "destroy_at"), await pool.fetchval("select now()")),
    )
    passes = PassStore(pool)
    row = await passes.claim(ClaimRequest(vm_id=vm_id, run_id="run"))
    assert row is not None
    assert not row.behind
    await pool.execute("update fleet set behind = true")
    ref = PassRef(vm_id=vm_id, pass_number=row.status.pass_number)
    row = await passes.mark_destroying(ref)
    assert row is not None
    assert (row.behind, row.status.destroying) == (True, False)
    assert (await VmStore(pool).get(None, vm_id)).behind
    await pool.execute("update fleet set behind = false")
    row = await passes.mark_destroying(ref)
    assert row is not None
    assert row.status.destroying


async def test_until_a_host_was_heard_since_the_servers_start_its_rows_may_be_old(pool: Pool, host_id: str) -> None:
    """H-R1: whoever restores a database starts its server, and no host can object before it reports."""
    vm_id = await add_vm(pool, host_id)
    await pool.execute("update fleet set heard_at = now(), hearing_since = now()")
    before = "pg_postmaster_start_time() - interval '1 second'"
    await pool.execute(f"update hosts set last_report_at = {before}")
    passes = PassStore(pool)
    row = await passes.claim(ClaimRequest(vm_id=vm_id, run_id="run"))
    assert row is not None
    assert (row.host.silent, row.behind) == (False, True)
    await pool.execute("update vms set waiting_for = 'behind', due_at = null, phase = 'ready', observed_generation = 1")
    await store_report(pool, host_id, report(1))
    row = await passes.read(PassRef(vm_id=vm_id, pass_number=row.status.pass_number))
    assert row is not None
    assert not row.behind
    assert await pool.fetchval("select due_at is not null from vms"), "and who waited for that is woken"
