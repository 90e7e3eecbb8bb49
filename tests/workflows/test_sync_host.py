"""Syncs as they run for real: Postgres, Temporal, the control worker; only the host is in memory (H-S1 to H-S5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from model.sync import SET_NAMES, SyncOrder
from model.temporal import host_workflow_id
from store.database import Pool
from tests.histories.scenarios import created
from tests.workflows.conftest import Fleet, running_fleet
from tests.workflows.syncs import hurry_sync, last_sync, stored, until_synced, want
from workers.control import control_worker


async def column(fleet: Fleet, name: str) -> Any:
    return await fleet.pool.fetchval(f"select {name} from hosts where id = $1", fleet.host.host_id)


async def test_a_host_takes_over_what_is_wanted_of_it(fleet: Fleet) -> None:
    """H-S1: under an epoch and a number from the store; then nothing is due, and it costs Temporal nothing."""
    vm_id = await created(fleet)
    before = await fleet.pool.fetchval("select last_value from pass")
    await want(fleet, "10.84.0.9")
    assert (await stored(fleet)).due
    await hurry_sync(fleet)
    found = await until_synced(fleet, lambda s: not s.due)
    synced = found.synced
    assert (found.revision, synced.revision, fleet.host.revision) == (1, 1, 1)
    assert (synced.instance_id, synced.epoch, synced.number) == ("i1", 1, fleet.host.synced[1])
    assert synced.number > before
    assert (synced.states, synced.vms, synced.error) == (dict.fromkeys(SET_NAMES, "off"), 1, None)
    row = await fleet.row(vm_id)
    assert row is not None
    assert row["phase"] == "ready"


async def test_sets_that_change_amid_a_sync_are_synced_too(fleet: Fleet) -> None:
    """H-S4: by the same run, one at a time, each under a number of its own."""
    numbers: list[int] = []

    async def change_once(order: SyncOrder) -> None:
        numbers.append(order.fence.pass_number)
        if len(numbers) == 1:
            await want(fleet, "10.84.0.8")

    fleet.host.before_sync = change_once
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    await until_synced(fleet, lambda s: not s.due)
    assert fleet.host.revision == 2
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 2


async def test_a_fenced_answer_acknowledges_and_releases_nothing(fleet: Fleet) -> None:
    """H-S4: the pair that was seen is shown; no VM's row moves, though the listing names none of them."""
    vm_id = await created(fleet)
    before = await fleet.row(vm_id)
    fleet.host.synced = (7, 3)
    fleet.host.machines.clear()
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    found = await until_synced(fleet, lambda s: s.synced.fenced is not None)
    assert (found.synced.fenced, found.synced.revision, found.due) == ((7, 3), None, True)
    await last_sync(fleet)
    assert await fleet.row(vm_id) == before
    assert await column(fleet, "due_at > now() + interval '40 seconds'"), "tried again in a minute"


async def test_what_failed_is_shown_and_tried_again(fleet: Fleet) -> None:
    """H-S2: what is wanted stays due until the host has all of it."""
    fleet.host.sync_error = "the kernel refuses"
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    found = await until_synced(fleet, lambda s: s.synced.error is not None)
    assert (found.synced.error, found.synced.states["privileged_addresses"]) == ("the kernel refuses", "failed")
    await last_sync(fleet)
    fleet.host.sync_error = None
    await fleet.pool.execute("update hosts set due_at = now()")
    assert (await until_synced(fleet, lambda s: not s.due)).synced.error is None


async def test_a_host_that_does_not_answer_is_asked_again(fleet: Fleet) -> None:
    """H-S4, S-4: how the step failed is shown; nothing is taken to be applied."""

    async def refuse(order: SyncOrder) -> None:
        raise ApplicationError("the number of the last sync cannot be read", type="Unreadable", non_retryable=True)

    fleet.host.before_sync = refuse
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    found = await until_synced(fleet, lambda s: s.synced.why is not None)
    assert (found.synced.why, found.synced.error) == ("no_answer", "the number of the last sync cannot be read")
    assert found.synced.revision is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("last_report_at = null", "host_away"),
        ("activity_names = '{find_vm}'", "host_outdated"),
        ("worker_version = '1.2.0'", "host_below_floor"),
    ],
)
async def test_a_host_that_cannot_take_it_up_is_not_asked(fleet: Fleet, change: str, why: str) -> None:
    """H-S5, H-D4, H-S10: its next report that shows otherwise begins it."""
    await fleet.pool.execute("update fleet set min_worker_version = '1.4.0'")
    await fleet.pool.execute(f"update hosts set {change}")
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    found = await until_synced(fleet, lambda s: s.synced.why is not None)
    assert (found.synced.why, found.due) == (why, True)
    await last_sync(fleet)
    assert (await column(fleet, "due_at"), fleet.host.calls) == (None, [])


async def test_while_the_store_is_behind_no_host_is_synced(fleet: Fleet) -> None:
    """H-R1: its number would raise what hosts tell that they have seen."""
    await fleet.pool.execute("update fleet set behind = true, behind_since = now(), behind_why = 'restored'")
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    await until_synced(fleet, lambda s: s.synced.why == "behind")
    assert fleet.host.calls == []


async def test_a_terminated_run_is_taken_up_by_the_sweep(temporal_client: Client, pool: Pool) -> None:
    """L-G1: lost pokes and terminated runs alike; the late answer of the former changes nothing."""
    async with running_fleet(temporal_client, pool, "h-ended", controls=False) as fleet:
        reached, go = asyncio.Event(), asyncio.Event()

        async def hang_once(order: SyncOrder) -> None:
            if not reached.is_set():
                reached.set()
                await go.wait()

        fleet.host.before_sync = hang_once
        async with control_worker(temporal_client, pool, build_id=None):
            await want(fleet, "10.84.0.9")
            await hurry_sync(fleet)
            await asyncio.wait_for(reached.wait(), 20)
            await temporal_client.get_workflow_handle(host_workflow_id("h-ended")).terminate("by hand")
            await pool.execute("update hosts set due_at = now()")
            found = await until_synced(fleet, lambda s: not s.due)
            go.set()
        assert (found.synced.revision, found.synced.number) == (1, fleet.host.synced[1])
