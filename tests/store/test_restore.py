"""A store that is behind its hosts: how that is seen, and what stands still meanwhile (H-R1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model.errors import Conflict, Gone, Invalid, NotFound
from model.passes import ClaimRequest, PassRef
from model.report import Recorded, VmReport
from store.audit import Actor
from store.database import Pool
from store.fleet import ensure_fleet, get_fleet, note_hearing
from store.host_report import store_report
from store.passes import PassStore
from store.restore import begin_restore, finish_restore, list_restore
from store.restore_settle import settle
from store.vm import VmStore
from tests.fixtures.rows import HOST_ACTIVITIES, add_host, add_vm
from tests.store.test_host_report import report, vm_report

ACTOR = Actor("operator")
DAY = timedelta(days=1)
DIGEST = "a" * 64


def held(vm_id: str, generation: int = 1, power: str | None = "running", **changed: Any) -> VmReport:
    """What a host tells of a VM whose last applied change was that of `generation`."""
    counters = {"spec_generation": 1, "restart_generation": 0, "rebuild_generation": 0, "input_digest": DIGEST}
    counters |= {name: changed.pop(name) for name in (*counters, "epoch") if name in changed}
    recorded = Recorded(**{"epoch": 1, "generation": generation, **counters})
    return vm_report(vm_id, 50, power, recorded=recorded, **changed)


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


async def test_passes_drawn_since_the_servers_start_hide_nothing(pool: Pool, host_id: str) -> None:
    """H-R1: a restored store draws passes before its hosts report; they were ordered nothing of them."""
    vm_id = await add_vm(pool, host_id)
    seen = await pool.fetchval("select nextval('pass')") + 3
    await pool.execute("update fleet set server_started_at = null")
    await pool.execute("update hosts set last_report_at = pg_postmaster_start_time() - interval '1 second'")
    for number in range(5):
        await PassStore(pool).claim(ClaimRequest(vm_id=vm_id, run_id=f"run-{number}"))
    await store_report(pool, host_id, report(1, pass_number=seen, epoch=1))
    assert (await get_fleet(pool)).behind
    await pool.execute("update fleet set behind = false")
    drawn = await pool.fetchval("select last_value from pass")
    await store_report(pool, host_id, report(2, pass_number=drawn, epoch=1))
    assert not (await get_fleet(pool)).behind, "one that was heard since may have seen what was drawn since"


@pytest.fixture
async def restored(pool: Pool, host_id: str) -> str:
    """A database from before most of what its host holds, once the host has told all of it."""
    past = datetime.now(UTC) - timedelta(days=3)
    lived = {"first_ready_at": past, "phase": "ready", "due_at": None, "input_digest": DIGEST}
    deleted = {"deleted": True, "quarantine_kind": "tombstone", "quarantine_grace": DAY}
    deleted |= {"quarantine_since": past, "destroy_at": past, "quarantine_stopped_at": past}
    for vm_id in ("same", "changed", "deleted-since", "lost", "lost-too"):
        await add_vm(pool, host_id, id=vm_id, name=vm_id, **lived)
    await add_vm(pool, host_id, id="undeleted-since", name="undeleted-since", **lived, **deleted)
    await add_vm(pool, host_id, id="gone-since", name="gone-since", **lived, **deleted)
    told = (
        held("same"),
        held("changed", 3, "stopped", restart_generation=1),
        held("deleted-since", 2, "stopped", quarantined_at=past),
        held("undeleted-since", 3),
        held("made-since"),
    )
    await store_report(
        pool, host_id, report(9, *told, whole=True, pass_number=5000, epoch=1, activity_names=tuple(HOST_ACTIVITIES))
    )
    return host_id


async def test_what_rows_and_hosts_do_not_share_is_listed(pool: Pool, restored: str) -> None:
    """H-R1: unknown, missing and changed VMs; what is alike, and what ends by itself, is not."""
    found = await list_restore(pool)
    assert found.unheard == ()
    assert {item.vm_id: (item.kind, item.differs) for item in found.items} == {
        "changed": (
            "changed",
            (
                "it was changed since (generation 3 there, 1 here)",
                "it was restarted since (restart_generation 1 there, 0 here)",
            ),
        ),
        "deleted-since": (
            "changed",
            ("it was deleted since", "it was changed since (generation 2 there, 1 here)"),
        ),
        "undeleted-since": (
            "changed",
            ("it is deleted here, and not in quarantine there", "it was changed since (generation 3 there, 1 here)"),
        ),
        "made-since": ("unknown", ("its host holds it, no row does",)),
        "lost": ("missing", ("its host holds nothing of it",)),
        "lost-too": ("missing", ("its host holds nothing of it",)),
    }


async def test_a_person_settles_each_and_nothing_ends_before(pool: Pool, restored: str) -> None:
    """H-R1: finishing lifts epoch, passes and counters above the host's, and starts every grace anew."""
    h2 = await add_host(pool, name="h2", instance_id="two")
    with pytest.raises(Conflict, match=r"not all hosts have told what they hold: h2; bring them back"):
        await finish_restore(pool, ACTOR)
    await store_report(pool, h2, report(1, whole=True, instance_id="two", epoch=4))
    with pytest.raises(Conflict, match="6 of 6 VMs are not settled"):
        await finish_restore(pool, ACTOR)
    for vm_id, choice in (
        ("changed", "host"),
        ("deleted-since", "host"),
        ("undeleted-since", "host"),
        ("made-since", "leave"),
        ("lost", "recreate"),
        ("lost-too", "give_up"),
    ):
        await settle(pool, vm_id, choice, ACTOR, grace=DAY)
    assert await finish_restore(pool, ACTOR) == 5
    fleet = await get_fleet(pool)
    assert (fleet.behind, fleet.behind_why, fleet.epoch) == (False, None, 5)
    assert (await ensure_fleet(pool)).behind is False
    assert await pool.fetchval("select nextval('pass')") > 5000
    rows = {row["id"]: row for row in await pool.fetch("select *, destroy_at > now() as kept from vms")}
    assert set(rows) == {"same", "changed", "deleted-since", "undeleted-since", "gone-since", "lost"}
    changed = rows["changed"]
    assert (changed["power_state"], changed["generation"], changed["restart_generation"]) == ("stopped", 4, 1)
    assert (rows["deleted-since"]["deleted"], rows["deleted-since"]["kept"]) == (True, True)
    assert (rows["undeleted-since"]["deleted"], rows["undeleted-since"]["generation"]) == (False, 4)
    assert rows["gone-since"]["kept"], "its grace is a new one, too"
    assert rows["lost"]["rebuild_generation"] == 1
    assert rows["same"]["generation"] == 1
    assert all(row["due_at"] is not None and row["run_id"] is None for row in rows.values())
    with pytest.raises(Gone, match="was given up with what was on its host"):
        await VmStore(pool).get(None, "lost-too")
    with pytest.raises(Conflict, match="nothing is being restored"):
        await finish_restore(pool, ACTOR)


async def test_the_restored_rows_may_be_what_is_wanted(pool: Pool, restored: str) -> None:
    """H-R1: a restart that was applied since is none that is wanted again; the row's word goes on above the host's."""
    for vm_id in ("changed", "deleted-since", "undeleted-since"):
        await settle(pool, vm_id, "row", ACTOR, grace=DAY)
    for vm_id in ("made-since", "lost", "lost-too"):
        await settle(pool, vm_id, "leave", ACTOR, grace=DAY)
    await finish_restore(pool, ACTOR)
    rows = {row["id"]: row for row in await pool.fetch("select * from vms")}
    changed = rows["changed"]
    assert (changed["power_state"], changed["generation"], changed["restart_generation"]) == ("running", 4, 1)
    assert not rows["deleted-since"]["deleted"]
    assert rows["undeleted-since"]["deleted"]
    assert set(rows) >= {"lost", "lost-too"}


async def test_only_what_is_listed_is_settled_by_a_choice_that_it_has(pool: Pool, restored: str) -> None:
    """H-R1: whole sentences; a choice that was carried out is not made again."""
    with pytest.raises(NotFound, match="nothing has to be settled of a VM same"):
        await settle(pool, "same", "row", ACTOR, grace=DAY)
    with pytest.raises(Invalid, match="choice: this VM is missing: choose one of recreate, give_up, leave"):
        await settle(pool, "lost", "host", ACTOR, grace=DAY)
    await settle(pool, "changed", "row", ACTOR, grace=DAY)
    await settle(pool, "changed", "host", ACTOR, grace=DAY)
    with pytest.raises(Conflict, match="the VM changed is settled already: host"):
        await settle(pool, "changed", "row", ACTOR, grace=DAY)


async def test_an_operator_can_declare_it(pool: Pool, host_id: str) -> None:
    """H-R1: a database that was replaced in place by an older one, or moved, shows by nothing else."""
    await begin_restore(pool, ACTOR)
    found = await list_restore(pool)
    assert found.fleet.behind_why == "an operator has declared that it was restored, moved or made anew"
    assert [name for name, _ in found.unheard] == ["h1"]
    await store_report(pool, host_id, report(1, whole=True))
    assert await finish_restore(pool, ACTOR) == 2
