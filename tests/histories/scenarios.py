"""Each type of pass, of campaign and of sync, in each of its endings: what to do to a fleet so that a run ends so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from temporalio.exceptions import ApplicationError

from model.record import HostOrder
from model.sync import SyncOrder
from model.temporal import vm_workflow_id
from store.campaign import CampaignStore
from store.roll import RollStore
from tests.fixtures.rows import vm_spec
from tests.workflows.conftest import Fleet
from tests.workflows.drains import (
    ACTOR,
    begin_drain,
    begin_roll,
    drain,
    drain_workflow_id,
    hurry,
    undrain,
    until_campaign,
)
from tests.workflows.syncs import hurry_sync, last_sync, until_synced, want

Scenario = Callable[[Fleet], Awaitable[list[tuple[str, str]]]]
"""Returns the (workflow id, run id) of the runs to record."""


async def _last_run(fleet: Fleet, vm_id: str) -> tuple[str, str]:
    handle = fleet.client.get_workflow_handle(vm_workflow_id(vm_id))
    described = await handle.describe()
    await handle.result()
    assert described.run_id is not None
    return described.id, described.run_id


async def created(fleet: Fleet, **columns: object) -> str:
    vm_id = await fleet.add_vm(**columns)
    await fleet.poke(vm_id)
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    return vm_id


async def create_ready(fleet: Fleet) -> list[tuple[str, str]]:
    return [await _last_run(fleet, await created(fleet))]


async def create_paused(fleet: Fleet) -> list[tuple[str, str]]:
    return [await _last_run(fleet, await created(fleet, power_state="paused"))]


async def create_stopped(fleet: Fleet) -> list[tuple[str, str]]:
    return [await _last_run(fleet, await created(fleet, power_state="stopped"))]


async def create_failed(fleet: Fleet) -> list[tuple[str, str]]:
    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_root_disk":
            raise ApplicationError("too small", type="Permanent", non_retryable=True)

    fleet.host.before = fail
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await fleet.until(vm_id, lambda row: row["phase"] == "failed" and row["due_at"] is None)
    return [await _last_run(fleet, vm_id)]


async def create_waiting(fleet: Fleet) -> list[tuple[str, str]]:
    fleet.host.waiting["ensure_image"] = "waiting for a free create slot (2 of 2 busy)"
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await fleet.until(vm_id, lambda row: row["status_detail"] is not None and row["claim_until"] is None)
    return [await _last_run(fleet, vm_id)]


async def create_waiting_certificate(fleet: Fleet) -> list[tuple[str, str]]:
    fleet.host.waiting["ensure_certificate"] = "waiting for the host certificate"
    vm_id = await fleet.add_vm(spec={"host_certificate": True})
    await fleet.poke(vm_id)
    await fleet.until(vm_id, lambda row: row["status_detail"] is not None and row["claim_until"] is None)
    first = await _last_run(fleet, vm_id)
    fleet.host.waiting.clear()
    await fleet.change(vm_id, "labels = '{}'")
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    return [first, await _last_run(fleet, vm_id)]


async def create_superseded(fleet: Fleet) -> list[tuple[str, str]]:
    """Deleted while creating: the create's run continues as new as a reap."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def hold(name: str, order: HostOrder) -> None:
        if name == "ensure_image" and not go.is_set():
            reached.set()
            await go.wait()

    fleet.host.before = hold
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await asyncio.wait_for(reached.wait(), 20)
    first = await fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).describe()
    await fleet.delete(vm_id, 0)
    await fleet.until_gone(vm_id)
    go.set()
    return [(first.id, first.run_id or ""), await _last_run(fleet, vm_id)]


async def converge_settled(fleet: Fleet) -> list[tuple[str, str]]:
    vm_id = await created(fleet)
    await fleet.change(vm_id, "power_state = 'stopped', generation = generation + 1")
    await fleet.until(vm_id, lambda row: row["observed_generation"] == 2 and row["due_at"] is None)
    return [await _last_run(fleet, vm_id)]


async def converge_restarted(fleet: Fleet) -> list[tuple[str, str]]:
    vm_id = await created(fleet)
    await fleet.change(vm_id, "restart_generation = restart_generation + 1, generation = generation + 1")
    await fleet.until(vm_id, lambda row: row["observed_generation"] == 2 and row["due_at"] is None)
    return [await _last_run(fleet, vm_id)]


async def converge_rebuilt(fleet: Fleet) -> list[tuple[str, str]]:
    """Rebuilt, then undone, then the kept disk's time is over."""
    vm_id = await created(fleet)
    runs: list[tuple[str, str]] = []
    for generation, undo_of in ((1, None), (2, 1)):
        await fleet.rebuild(vm_id, undo_of=undo_of)
        await fleet.until_rebuilt(vm_id, generation)
        runs.append(await _last_run(fleet, vm_id))
    await fleet.change(vm_id, "old_disk_until = now()")
    await fleet.until(vm_id, lambda row: row["old_disk_until"] is None and row["due_at"] is None)
    return [*runs, await _last_run(fleet, vm_id)]


async def converge_failed_then_settled(fleet: Fleet) -> list[tuple[str, str]]:
    vm_id = await created(fleet)
    fleet.host.kill_guest(vm_id)
    fleet.host.calls.clear()

    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_booted" and fleet.host.calls.count(name) == 1:
            raise ApplicationError("no memory", type="StepFailed")

    fleet.host.before = fail
    await fleet.change(vm_id, "labels = '{}'")
    await fleet.until(vm_id, lambda row: row["phase"] == "failed")
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    return [await _last_run(fleet, vm_id)]


async def converge_setback(fleet: Fleet) -> list[tuple[str, str]]:
    """Dead and booted again at once, dead again and booted after a pause, then paused by its hypervisor."""
    vm_id = await created(fleet)
    runs: list[tuple[str, str]] = []
    for times in (1, 2):
        fleet.host.die(vm_id)
        await fleet.change(vm_id, "labels = '{}'")
        await fleet.until(vm_id, lambda row, times=times: row["setbacks"] == times)
        await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
        runs.append(await _last_run(fleet, vm_id))
    fleet.host.stall(vm_id, "no-space", remains=True)
    await fleet.change(vm_id, "labels = '{}'")
    await fleet.until(vm_id, lambda row: row["waiting_for"] == "guest_stalled" and row["claim_until"] is None)
    return [*runs, await _last_run(fleet, vm_id)]


async def _add_volume(fleet: Fleet, vm_id: str, name: str) -> str:
    """Insert a volume that a VM is to have, and return its id."""
    volume_id = f"{name}-{vm_id[-12:]}"
    async with fleet.pool.acquire() as connection:
        await connection.execute(
            """insert into volumes (id, project, name, size_gib, host_id, vm_id)
            select $1, project, $1, 1, host_id, id from vms where id = $2""",
            volume_id,
            vm_id,
        )
    return volume_id


async def converge_firewall(fleet: Fleet) -> list[tuple[str, str]]:
    """Made without one; then its rules come while the guest runs, and others once it is stopped."""
    vm_id = await created(fleet)
    runs: list[tuple[str, str]] = []
    everyone = [{"prefixes": ["0.0.0.0/0"]}]
    for power_state, inbound in (("running", []), ("stopped", everyone)):
        rules = {"firewall": {"enabled": True, "inbound": inbound}}
        wanted = "spec = spec || $2::jsonb, power_state = $3, generation = generation + 1"
        await fleet.change(vm_id, wanted, rules, power_state)
        await fleet.until(vm_id, lambda row: row["observed_generation"] == row["generation"] and row["due_at"] is None)
        runs.append(await _last_run(fleet, vm_id))
    return runs


async def converge_volumes(fleet: Fleet) -> list[tuple[str, str]]:
    """Made with a volume; then that one goes and two others come while the guest runs."""
    vm_id = await fleet.add_vm()
    ids = [await _add_volume(fleet, vm_id, name) for name in ("data", "logs", "more")]
    wanted = "spec = jsonb_build_object('volumes', $2::text[]), generation = generation + 1"
    await fleet.change(vm_id, wanted, ids[:1])
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    first = await _last_run(fleet, vm_id)
    await fleet.change(vm_id, wanted, ids[1:])
    await fleet.until(vm_id, lambda row: row["observed_generation"] == row["generation"] and row["due_at"] is None)
    assert [each.volume_id for each in fleet.host.machine(vm_id).record.volumes] == ids[1:]  # type: ignore[union-attr]
    return [first, await _last_run(fleet, vm_id)]


async def converge_lost_record(fleet: Fleet) -> list[tuple[str, str]]:
    vm_id = await created(fleet)
    fleet.host.machine(vm_id).record = None
    await fleet.change(vm_id, "labels = '{}'")
    await fleet.until(vm_id, lambda row: row["phase"] == "failed" and row["due_at"] is None)
    return [await _last_run(fleet, vm_id)]


async def reap_gone(fleet: Fleet) -> list[tuple[str, str]]:
    vm_id = await created(fleet)
    await fleet.delete(vm_id, 2)
    await fleet.until_gone(vm_id)
    return [await _last_run(fleet, vm_id)]


async def reap_undeleted(fleet: Fleet) -> list[tuple[str, str]]:
    vm_id = await created(fleet)
    await fleet.delete(vm_id, 600)
    await fleet.until(vm_id, lambda row: row["quarantine_stopped_at"] is not None and row["claim_until"] is None)
    first = await fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).describe()
    await fleet.change(
        vm_id,
        """deleted = false, generation = generation + 1, quarantine_kind = null, quarantine_since = null,
        quarantine_grace = null, destroy_at = null, quarantine_stopped_at = null""",
    )
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    return [(first.id, first.run_id or ""), await _last_run(fleet, vm_id)]


async def reap_waiting(fleet: Fleet) -> list[tuple[str, str]]:
    """The host is silent: the delete is recorded, the run ends as waiting."""
    vm_id = await created(fleet)
    async with fleet.pool.acquire() as connection:
        await connection.execute("update hosts set last_report_at = null")
    await fleet.delete(vm_id, 0)
    await fleet.until(vm_id, lambda row: row["status_detail"] is not None and row["claim_until"] is None)
    return [await _last_run(fleet, vm_id)]


async def _drain_run(fleet: Fleet, drain_id: str) -> tuple[str, str]:
    handle = fleet.client.get_workflow_handle(drain_workflow_id(fleet, drain_id))
    described = await handle.describe()
    await handle.result()
    return described.id, described.run_id or ""


async def drain_done(fleet: Fleet) -> list[tuple[str, str]]:
    """A create in flight, a VM that runs, and one that is deleted while it is held."""
    vm_id, go = await created(fleet), asyncio.Event()

    async def hold(name: str, order: HostOrder) -> None:
        if name == "ensure_image":
            await go.wait()

    fleet.host.before = hold
    await fleet.poke(await fleet.add_vm())
    drain_id = await drain(fleet)
    await until_campaign(fleet, drain_id, lambda c: c.creating == 1)
    go.set()
    await until_campaign(fleet, drain_id, lambda c: c.state == "done")
    first = await _drain_run(fleet, drain_id)
    await fleet.delete(vm_id, 0)
    await hurry(fleet, drain_id)
    await fleet.until_gone(vm_id)
    return [first, await _drain_run(fleet, drain_id)]


async def drain_failing(fleet: Fleet) -> list[tuple[str, str]]:
    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_stopped":
            raise ApplicationError("it does not end", type="StepFailed")

    vm_id = await created(fleet)
    fleet.host.before = fail
    drain_id = await drain(fleet)
    await until_campaign(fleet, drain_id, lambda c: c.failed == 1)
    run = await _drain_run(fleet, drain_id)
    fleet.host.before = None
    await fleet.wake(vm_id)
    await until_campaign(fleet, drain_id, lambda c: c.done == 1)
    return [run]


async def drain_paused(fleet: Fleet) -> list[tuple[str, str]]:
    await created(fleet)
    drain_id = await begin_drain(fleet)
    await CampaignStore(fleet.pool).pause(drain_id, "drain", ACTOR)
    await hurry(fleet, drain_id)
    return [await _drain_run(fleet, drain_id)]


async def drain_cancelled(fleet: Fleet) -> list[tuple[str, str]]:
    """Undone while a guest is being stopped."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def hold(name: str, order: HostOrder) -> None:
        if name == "ensure_stopped":
            reached.set()
            await go.wait()

    vm_id = await created(fleet)
    fleet.host.before = hold
    drain_id = await drain(fleet)
    await asyncio.wait_for(reached.wait(), 20)
    await undrain(fleet)
    run = await _drain_run(fleet, drain_id)
    go.set()
    await fleet.until_settled(vm_id)
    return [run]


async def restartable(fleet: Fleet, **columns: object) -> str:
    return await created(fleet, spec=vm_spec().model_dump(mode="json"), **columns)


async def _roll_run(fleet: Fleet, roll_id: str) -> tuple[str, str]:
    handle = fleet.client.get_workflow_handle(f"roll/{roll_id}")
    described = await handle.describe()
    await handle.result()
    return described.id, described.run_id or ""


async def roll_done(fleet: Fleet) -> list[tuple[str, str]]:
    for _ in range(2):
        await restartable(fleet)
    roll_id = await begin_roll(fleet, batch_size=1)
    await hurry(fleet, roll_id, "roll")
    await until_campaign(fleet, roll_id, lambda c: c.state == "done")
    return [await _roll_run(fleet, roll_id)]


async def roll_paused(fleet: Fleet) -> list[tuple[str, str]]:
    """Paused by itself, resumed, and cancelled."""
    for _ in range(3):
        await restartable(fleet)

    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_booted":
            raise ApplicationError("no memory", type="StepFailed")

    fleet.host.before = fail
    store = CampaignStore(fleet.pool)
    roll_id = await begin_roll(fleet, batch_size=1)
    await hurry(fleet, roll_id, "roll")
    await until_campaign(fleet, roll_id, lambda c: c.state == "paused")
    first = await _roll_run(fleet, roll_id)
    await store.resume(roll_id, "roll", ACTOR)
    await hurry(fleet, roll_id, "roll")
    await until_campaign(fleet, roll_id, lambda c: c.todo == 1)
    await RollStore(fleet.pool).cancel(roll_id, ACTOR)
    await hurry(fleet, roll_id, "roll")
    last = await _roll_run(fleet, roll_id)
    fleet.host.before = None
    return [first, last]


async def sync_applied(fleet: Fleet) -> list[tuple[str, str]]:
    """Woken once more amid it."""

    async def change_once(order: SyncOrder) -> None:
        if fleet.host.calls.count("ensure_sets") == 1:
            await want(fleet, "10.84.0.8")

    fleet.host.before_sync = change_once
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    await until_synced(fleet, lambda found: not found.due)
    return [await last_sync(fleet)]


async def sync_fenced(fleet: Fleet) -> list[tuple[str, str]]:
    fleet.host.synced = (7, 3)
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    await until_synced(fleet, lambda found: found.synced.fenced is not None)
    return [await last_sync(fleet)]


async def sync_failed(fleet: Fleet) -> list[tuple[str, str]]:
    """At its first set; then the step itself."""
    fleet.host.sync_error = "the kernel refuses"
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    await until_synced(fleet, lambda found: found.synced.error is not None)
    first = await last_sync(fleet)

    async def refuse(order: SyncOrder) -> None:
        raise ApplicationError("it cannot be read", type="Unreadable", non_retryable=True)

    fleet.host.before_sync = refuse
    await hurry_sync(fleet)
    await until_synced(fleet, lambda found: found.synced.why == "no_answer")
    return [first, await last_sync(fleet)]


async def sync_waiting(fleet: Fleet) -> list[tuple[str, str]]:
    async with fleet.pool.acquire() as connection:
        await connection.execute("update hosts set activity_names = '{find_vm}'")
    await want(fleet, "10.84.0.9")
    await hurry_sync(fleet)
    await until_synced(fleet, lambda found: found.synced.why == "host_outdated")
    return [await last_sync(fleet)]


SCENARIOS: dict[str, Scenario] = {
    "create-ready": create_ready,
    "create-paused": create_paused,
    "create-stopped": create_stopped,
    "create-failed": create_failed,
    "create-waiting": create_waiting,
    "create-waiting-certificate": create_waiting_certificate,
    "create-superseded": create_superseded,
    "converge-settled": converge_settled,
    "converge-restarted": converge_restarted,
    "converge-rebuilt": converge_rebuilt,
    "converge-failed-then-settled": converge_failed_then_settled,
    "converge-setback": converge_setback,
    "converge-volumes": converge_volumes,
    "converge-firewall": converge_firewall,
    "converge-lost-record": converge_lost_record,
    "reap-gone": reap_gone,
    "reap-undeleted": reap_undeleted,
    "reap-waiting": reap_waiting,
    "drain-done": drain_done,
    "drain-failing": drain_failing,
    "drain-paused": drain_paused,
    "drain-cancelled": drain_cancelled,
    "roll-done": roll_done,
    "roll-paused": roll_paused,
    "sync-applied": sync_applied,
    "sync-fenced": sync_fenced,
    "sync-failed": sync_failed,
    "sync-waiting": sync_waiting,
}
