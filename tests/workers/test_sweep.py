"""The sweep on a real Postgres and a real Temporal: whatever lost its wake-up is found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from model.ids import new_id
from model.record import HostOrder
from model.temporal import CONTROL_QUEUE, vm_workflow_id
from store.database import Pool
from tests.workflows.conftest import Fleet, running_fleet
from workers.control import control_worker
from workers.sweep import Sweep


@pytest.fixture
async def fleet(temporal_client: Client, pool: Pool) -> AsyncIterator[Fleet]:
    async with running_fleet(temporal_client, pool, f"h-{new_id()[-12:]}") as fleet:
        yield fleet


def sweep(fleet: Fleet) -> Sweep:
    return Sweep(fleet.pool, fleet.client, search_attributes=False)


async def test_case_c5_a_lost_poke_is_found(fleet: Fleet):
    """L-G1 (case C5): a row that nobody was poked for is created by the sweep, once."""
    vm_id = await fleet.add_vm()
    assert await sweep(fleet).sweep_once() == 1
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert await sweep(fleet).sweep_once() == 0
    assert fleet.host.starts == 1


async def test_case_o14_a_terminated_run_is_found_once_its_claim_lapsed(fleet: Fleet):
    """Case O14: while the claim lasts the row is not due; then the sweep starts another pass."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def hold(name: str, order: HostOrder) -> None:
        if name == "ensure_image" and not go.is_set():
            reached.set()
            await go.wait()

    fleet.host.before = hold
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await asyncio.wait_for(reached.wait(), 20)
    await fleet.terminate(vm_id)
    assert await sweep(fleet).sweep_once() == 0
    await lapse(fleet, vm_id, "10 seconds")
    go.set()
    assert await sweep(fleet).sweep_once() == 1
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)


async def test_a_stuck_run_is_ended_and_started_anew(fleet: Fleet):
    """A run that holds its id but renews no claim, as one whose worker is gone for good."""
    vm_id = await fleet.add_vm()
    await fleet.client.start_workflow(
        "CreateVm", {"vm_id": vm_id}, id=vm_workflow_id(vm_id), task_queue="nobody-polls-this"
    )
    await lapse(fleet, vm_id, "3 minutes")
    assert await sweep(fleet).sweep_once() == 1
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)


async def test_a_run_that_is_none_of_ours_cannot_hold_an_id(fleet: Fleet):
    """Whoever reaches Temporal can start something under a VM's id: it is ended as any stuck run."""
    vm_id = await fleet.add_vm()
    await fleet.client.start_workflow("SomethingElse", id=vm_workflow_id(vm_id), task_queue=CONTROL_QUEUE)
    async with fleet.pool.acquire() as connection:
        await connection.execute("update vms set due_at = now() - interval '3 minutes' where id = $1", vm_id)
    assert await sweep(fleet).sweep_once() == 1
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)


async def test_case_f7_a_run_that_waits_for_its_turn_is_left_alone(temporal_client: Client, pool: Pool):
    """Case F7: however long the control workers' queue is, the sweep ends no run in it; each would be last again."""
    async with running_fleet(temporal_client, pool, f"h-{new_id()[-12:]}", controls=False) as fleet:
        vm_id = await fleet.add_vm()
        await fleet.poke(vm_id)
        handle = fleet.client.get_workflow_handle(vm_workflow_id(vm_id))
        before = (await handle.describe()).run_id
        await lapse(fleet, vm_id, "3 minutes")
        assert await sweep(fleet).sweep_once() == 1
        assert (await handle.describe()).run_id == before
        async with control_worker(fleet.client, pool, build_id=None):
            await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
        assert (await handle.describe()).run_id == before


async def test_rows_that_no_pass_claims_hide_none_behind_them(
    temporal_client: Client, pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    """L-G1: more rows than are woken at once stay due for ever; what became due after them is woken all the same."""
    monkeypatch.setattr("workers.sweep.POKES_A_SECOND", 2)
    async with running_fleet(temporal_client, pool, f"h-{new_id()[-12:]}", controls=False) as fleet:
        sweeper, vm_ids = sweep(fleet), [await fleet.add_vm() for _ in range(3)]
        for place, vm_id in enumerate(vm_ids):
            await lapse(fleet, vm_id, f"{50 - place} seconds")
        assert [await sweeper.sweep_once() for _ in range(3)] == [2, 1, 2]
        for vm_id in vm_ids:
            assert (await fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).describe()).status is not None


@pytest.mark.parametrize(
    ("wish", "step"),
    [
        ("labels = '{}'", "find_vm"),
        ("power_state = 'stopped', generation = generation + 1", "ensure_stopped"),
        ("restart_generation = restart_generation + 1, generation = generation + 1", "ensure_booted"),
        ("delete", "ensure_quarantined"),
        ("delete", "ensure_storage_destroyed"),
        ("delete", "ensure_records_destroyed"),
    ],
)
async def test_case_o14_what_was_terminated_by_hand_is_finished_by_the_sweep(fleet: Fleet, wish: str, step: str):
    """Case O14: the VM stays listed, its wish is fulfilled by one sweep, and a new verb works."""
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await fleet.until_settled(vm_id)
    fleet.host.starts = 1
    reached, go = asyncio.Event(), asyncio.Event()

    async def hold(name: str, order: HostOrder) -> None:
        if name == step and not go.is_set():
            reached.set()
            await go.wait()

    fleet.host.before = hold
    await (fleet.delete(vm_id, 0) if wish == "delete" else fleet.change(vm_id, wish))
    await asyncio.wait_for(reached.wait(), 20)
    await fleet.terminate(vm_id)
    assert await fleet.row(vm_id) is not None
    go.set()
    await lapse(fleet, vm_id, "10 seconds")
    assert await sweep(fleet).sweep_once() == 1
    if wish == "delete":
        await fleet.until_gone(vm_id)
        return
    await fleet.until(vm_id, lambda row: row["observed_generation"] == row["generation"] and row["due_at"] is None)
    await fleet.delete(vm_id, 0)
    await fleet.until_gone(vm_id)


async def lapse(fleet: Fleet, vm_id: str, ago: str) -> None:
    async with fleet.pool.acquire() as connection:
        await connection.execute(
            f"update vms set claim_until = now() - interval '{ago}', due_at = now() - interval '{ago}' where id = $1",
            vm_id,
        )
