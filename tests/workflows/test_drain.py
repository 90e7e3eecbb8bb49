"""Drains as they run for real: Postgres, Temporal, the control worker; only the host is in memory (H-D1, H-D2)."""

from __future__ import annotations

import asyncio

from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from model.record import HostOrder
from model.vm import PowerState
from store.campaign import CampaignStore
from store.database import Pool
from tests.histories.scenarios import created
from tests.workflows.conftest import Fleet, running_fleet
from tests.workflows.drains import ACTOR, begin_drain, drain, drain_workflow_id, hurry, swept, undrain, until_campaign
from workers.control import control_worker


async def status(fleet: Fleet) -> str:
    return await fleet.pool.fetchval("select status from hosts")


def runs(fleet: Fleet, vm_id: str) -> bool:
    return fleet.host.machine(vm_id).power is PowerState.RUNNING


async def test_a_drained_host_runs_nothing_and_an_undrain_brings_all_back(fleet: Fleet) -> None:
    """H-D1, H-D2: stopped and held, desired untouched; then running again, none held, and the host as it was."""
    up = [await created(fleet) for _ in range(3)]
    down = await created(fleet, power_state="stopped")
    wanted = await fleet.pool.fetch("select id, power_state, generation from vms order by id")
    found = await until_campaign(fleet, await drain(fleet), lambda c: c.state == "done")
    assert (found.done, found.total, found.failed, await status(fleet)) == (4, 4, 0, "drained")
    assert not any(runs(fleet, vm_id) for vm_id in (*up, down))
    assert {record["held_by"] for record in await fleet.pool.fetch("select held_by from vms")} == {
        "a drain of its host"
    }
    assert await fleet.pool.fetch("select id, power_state, generation from vms order by id") == wanted
    await undrain(fleet)
    async with swept(fleet):
        for vm_id in (*up, down):
            await fleet.until_settled(vm_id)
    assert [runs(fleet, vm_id) for vm_id in (*up, down)] == [True, True, True, False]
    assert await fleet.pool.fetchval("select count(*) from vms where held or hold_stops") == 0
    assert await status(fleet) == "ready"
    assert await fleet.pool.fetch("select id, power_state, generation from vms order by id") == wanted


async def test_case_l2_creates_in_flight_finish_and_one_failure_stops_no_other(fleet: Fleet) -> None:
    """H-D1, case L2: three creates in flight, ten VMs, one of which cannot be stopped: the host is not drained."""
    vms = await asyncio.gather(*(created(fleet) for _ in range(10)))
    go, stubborn = asyncio.Event(), vms[4]

    async def before(name: str, order: HostOrder) -> None:
        if name == "ensure_root_disk":
            await go.wait()
        if name == "ensure_stopped" and order.vm_id == stubborn and not mended.is_set():
            raise ApplicationError("the guest does not end", type="StepFailed")

    mended = asyncio.Event()
    fleet.host.before = before
    new = [await fleet.add_vm() for _ in range(3)]
    for vm_id in new:
        await fleet.poke(vm_id)
        await fleet.until(vm_id, lambda row: row["status_detail"] == "making the root disk")
    drain_id = await drain(fleet)
    waiting = await until_campaign(fleet, drain_id, lambda c: c.creating == 3)
    assert (waiting.todo, waiting.working, waiting.done) == (10, 0, 0)
    go.set()
    found = await until_campaign(fleet, drain_id, lambda c: c.failed == 1 and c.done == 12)
    ((failed),) = found.failures
    assert (failed.vm_id, "the guest does not end" in str(failed.why)) == (stubborn, True)
    assert await fleet.pool.fetchval("select count(*) from vms where first_ready_at is null") == 0
    assert (found.state, await status(fleet), runs(fleet, stubborn)) == ("running", "draining", True)
    mended.set()
    await fleet.wake(stubborn)
    await until_campaign(fleet, drain_id, lambda c: c.done == 13)
    await hurry(fleet, drain_id)
    await until_campaign(fleet, drain_id, lambda c: c.state == "done")
    assert await status(fleet) == "drained"


async def test_case_l3_drained_and_undrained_in_a_loop(fleet: Fleet) -> None:
    """H-D2, case L3: whenever it is undone, every VM runs again, none is held, and each once."""
    vms = await asyncio.gather(*(created(fleet) for _ in range(4)))
    for turn in range(6):
        drain_id = await drain(fleet)
        await until_campaign(fleet, drain_id, lambda c, turn=turn: c.working + c.done >= min(turn, 4))
        await undrain(fleet)
        assert await fleet.pool.fetchval("select count(*) from vms where held") == 0
    async with swept(fleet):
        for vm_id in vms:
            row = await fleet.until_settled(vm_id)
            assert (row["phase"], row["power_state"], runs(fleet, vm_id)) == ("ready", "running", True)
    assert await status(fleet) == "ready"


async def test_a_paused_drain_takes_no_more_and_goes_on_when_resumed(fleet: Fleet) -> None:
    """H-D1: the host stays closed meanwhile."""
    vms = [await created(fleet) for _ in range(2)]
    store, drain_id = CampaignStore(fleet.pool), await begin_drain(fleet)
    await store.pause(drain_id, "drain", ACTOR)
    await hurry(fleet, drain_id)
    await fleet.client.get_workflow_handle(drain_workflow_id(fleet, drain_id)).result()
    paused = await store.get(drain_id)
    assert (paused.state, paused.todo, paused.paused_by, await status(fleet)) == ("paused", 2, "tester", "draining")
    assert all(runs(fleet, vm_id) for vm_id in vms)
    await store.resume(drain_id, "drain", ACTOR)
    await hurry(fleet, drain_id)
    await until_campaign(fleet, drain_id, lambda c: c.state == "done")
    assert not any(runs(fleet, vm_id) for vm_id in vms)


async def test_left_vms_run_on(fleet: Fleet) -> None:
    """H-D1: by the policy `leave` a host is drained when nothing new comes any more."""
    vm_id = await created(fleet)
    found = await until_campaign(fleet, await drain(fleet, "leave"), lambda c: c.state == "done")
    assert (found.left, found.done, await status(fleet), runs(fleet, vm_id)) == (1, 0, "drained", True)
    assert await fleet.pool.fetchval("select count(*) from vms where held") == 0


async def test_a_vm_that_is_deleted_meanwhile_is_let_go_and_reaped(fleet: Fleet) -> None:
    """H-D1, L-G12: a drain does not keep a VM from its end, else no drained host would ever be empty."""
    vm_id = await created(fleet)
    drain_id = await drain(fleet)
    await until_campaign(fleet, drain_id, lambda c: c.state == "done")
    await fleet.delete(vm_id, 0)
    await hurry(fleet, drain_id)
    await fleet.until_gone(vm_id)
    assert (await CampaignStore(fleet.pool).get(drain_id)).total == 0


async def test_a_vm_that_comes_back_to_a_drained_host_is_stopped(fleet: Fleet) -> None:
    """H-D1, L-R4: an undelete brings it back; the drain is in force until it is undone."""
    vm_id = await created(fleet)
    await fleet.delete(vm_id, 600)
    await fleet.until(vm_id, lambda row: row["quarantine_stopped_at"] is not None)
    drain_id = await drain(fleet)
    await until_campaign(fleet, drain_id, lambda c: c.state == "done")
    await fleet.change(
        vm_id,
        """deleted = false, generation = generation + 1, quarantine_kind = null, quarantine_since = null,
        quarantine_grace = null, destroy_at = null, quarantine_stopped_at = null""",
    )
    await hurry(fleet, drain_id)
    await until_campaign(fleet, drain_id, lambda c: c.done == 1)
    assert not runs(fleet, vm_id)


async def test_terminated_runs_and_a_killed_worker_lose_nothing(temporal_client: Client, pool: Pool) -> None:
    """H-D1, L-G1, case O12: what is wanted and how far it is stands in the store."""
    async with running_fleet(temporal_client, pool, "h-drained", controls=False) as fleet:
        async with control_worker(temporal_client, pool, build_id=None):
            vms = [await created(fleet) for _ in range(3)]
        drain_id = await begin_drain(fleet)
        for _ in range(3):
            await hurry(fleet, drain_id)
            await fleet.client.get_workflow_handle(drain_workflow_id(fleet, drain_id)).terminate("by hand")
        await hurry(fleet, drain_id)
        async with control_worker(temporal_client, pool, build_id=None):
            await until_campaign(fleet, drain_id, lambda c: c.state == "done")
        assert not any(runs(fleet, vm_id) for vm_id in vms)
