"""What overtakes a pass: deletes, changes, other runs, workers that come and go. Nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.passes import PassActivities
from model.generations import VmChange
from model.record import HostOrder
from model.temporal import vm_workflow_id
from model.vm import PowerState
from runtime.temporal import control_worker_options
from store.audit import Actor
from store.database import Pool
from store.passes import PassStore
from store.vm_change import VmChanges
from tests.fixtures.rows import vm_spec
from tests.workflows.conftest import Fleet, polling, running_fleet
from tests.workflows.test_passes import CREATE, created
from workers.control import WORKFLOWS, control_worker
from workers.sweep import Sweep

ACTOR = Actor("test")
SPEC = vm_spec().model_dump(mode="json")
DESTROY = [
    "ensure_process_destroyed",
    "ensure_network_destroyed",
    "ensure_storage_destroyed",
    "ensure_records_destroyed",
]
NOW = timedelta(0)


class Gate:
    """Hold the host at the first time of a step, before or after its effect."""

    def __init__(self, fleet: Fleet, step: str, when: str = "before") -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self._step = step
        setattr(fleet.host, when, self._hold)

    async def _hold(self, name: str, order: HostOrder) -> None:
        if name == self._step and not self.go.is_set():
            self.reached.set()
            await self.go.wait()

    async def until_reached(self) -> None:
        await asyncio.wait_for(self.reached.wait(), 20)


async def delete(fleet: Fleet, vm_id: str, grace: timedelta = NOW) -> None:
    await VmChanges(fleet.pool).delete(None, vm_id, ACTOR, grace=grace)
    await fleet.poke(vm_id)


async def change(fleet: Fleet, vm_id: str, power_state: PowerState) -> int:
    """Change what is wanted as the API does, without a poke; return the generation."""
    await VmChanges(fleet.pool).change(None, vm_id, VmChange(power_state=power_state), ACTOR)
    row = await fleet.row(vm_id)
    assert row is not None
    return row["generation"]


async def run_id(fleet: Fleet, vm_id: str) -> str:
    described = await fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).describe()
    assert described.run_id is not None
    return described.run_id


async def histories(fleet: Fleet, vm_id: str) -> list[Any]:
    """Return every event of every run of a VM, oldest run first."""
    events: list[Any] = []
    async for run in fleet.client.list_workflows(f"WorkflowId = '{vm_workflow_id(vm_id)}'"):
        handle = fleet.client.get_workflow_handle(run.id, run_id=run.run_id)
        events = [*(await handle.fetch_history()).events, *events]
    return events


async def test_case_f1_a_delete_before_any_run_makes_nothing(fleet: Fleet):
    """Case F1, queued: the row was deleted before anything was begun; the host is only asked what it has."""
    vm_id = await fleet.add_vm()
    await VmChanges(fleet.pool).delete(None, vm_id, ACTOR, grace=NOW)
    await fleet.poke(vm_id)
    await fleet.until_gone(vm_id)
    assert set(fleet.host.calls) <= {"find_vm", *DESTROY}
    assert fleet.host.starts == 0


async def test_case_f1_a_delete_on_a_host_that_never_came_waits_and_goes_with_it(fleet: Fleet):
    """Case F1, placed: accepted and shown as waiting; the host's first report lets it go."""
    async with fleet.pool.acquire() as connection:
        await connection.execute("update hosts set last_report_at = null")
    vm_id = await fleet.add_vm()
    await delete(fleet, vm_id)
    await fleet.until(vm_id, lambda row: row["status_detail"] is not None and row["claim_until"] is None)
    assert fleet.host.calls == []
    async with fleet.pool.acquire() as connection:
        await connection.execute("update hosts set last_report_at = now() + interval '1 hour'")
    await fleet.poke(vm_id)
    await fleet.until_gone(vm_id)


@pytest.mark.parametrize("step", CREATE[1:])
async def test_case_f1_a_delete_while_a_result_is_lost_leaves_nothing(fleet: Fleet, step: str):
    """Case F1, L-R8: the step worked and nobody heard of it; the delete finds by looking what it left."""
    gate = Gate(fleet, step, "after")
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await gate.until_reached()
    await delete(fleet, vm_id)
    if step == "ensure_completed":
        gate.go.set()
    await fleet.until_gone(vm_id)
    gate.go.set()
    machine = fleet.host.machine(vm_id)
    assert (machine.record, machine.process, machine.tap, machine.disk_bytes) == (None, None, False, None)


async def test_case_f2_a_vm_whose_attempts_are_used_up_can_be_deleted(fleet: Fleet):
    """Cases F2, E5, L-R8: failed for good, at rest; the delete needs nobody's repair, and its name is free again."""

    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_booted":
            raise ApplicationError("no kernel in the image", type="StepFailed")

    fleet.host.before = fail
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    for attempt in range(1, 5):
        await fleet.until(vm_id, lambda row, n=attempt: row["create_attempts"] == n and row["claim_until"] is None)
        await fleet.change(vm_id, "retry_at = null")
    row = await fleet.until(vm_id, lambda row: row["phase"] == "failed" and row["due_at"] is None)
    assert (row["create_attempts"], row["resting"], row["last_error"]) == (5, True, "no kernel in the image")
    await delete(fleet, vm_id)
    await fleet.until_gone(vm_id)
    assert fleet.host.calls[-4:] == DESTROY
    assert await fleet.add_vm(name=row["name"])


async def test_case_f3_whoever_closes_at_once_reaches_the_goal(fleet: Fleet):
    """Case F3: two deletes, the sweep and a storm of pokes; each succeeds, everything is destroyed once."""
    vm_id = await created(fleet)
    changes, sweep = VmChanges(fleet.pool), Sweep(fleet.pool, fleet.client, search_attributes=False)
    await asyncio.gather(
        changes.delete(None, vm_id, ACTOR, grace=NOW),
        changes.delete(None, vm_id, ACTOR, grace=NOW, asked=True),
        *(sweep.sweep_once() for _ in range(3)),
        *(fleet.poke(vm_id) for _ in range(10)),
    )
    await fleet.poke(vm_id)
    await fleet.until_gone(vm_id)
    assert [fleet.host.calls.count(name) for name in DESTROY] == [1, 1, 1, 1]


@pytest.mark.parametrize("step", ["ensure_quarantined", *DESTROY])
async def test_case_f6_a_sweep_at_each_step_of_a_delete_doubles_nothing(fleet: Fleet, step: str):
    """Case F6: what is being deleted is no leak: the run in hand goes on, each part is released once."""
    vm_id = await created(fleet)
    gate = Gate(fleet, step)
    await delete(fleet, vm_id)
    await gate.until_reached()
    before = await run_id(fleet, vm_id)
    await force_due(fleet, vm_id)
    assert await Sweep(fleet.pool, fleet.client, search_attributes=False).sweep_once() == 1
    assert await run_id(fleet, vm_id) == before
    gate.go.set()
    await fleet.until_gone(vm_id)
    assert [fleet.host.calls.count(name) for name in DESTROY] == [1, 1, 1, 1]


async def force_due(fleet: Fleet, vm_id: str) -> None:
    async with fleet.pool.acquire() as connection:
        await connection.execute("update vms set due_at = now() where id = $1", vm_id)


async def test_case_i2_a_change_at_any_instant_of_a_pass_is_acted_on(fleet: Fleet, monkeypatch: pytest.MonkeyPatch):
    """Case I2, L-G1: no flag is read and then slept over: at every await of a pass, also when the poke is lost.

    Only what comes after the pass has ended needs its poke: then nobody is there who could look.
    """
    left, missed = -1, False

    async def point(where: str) -> None:
        nonlocal left, missed
        left -= 1
        if left == 0:
            await change(fleet, vm_id, PowerState.RUNNING)
            if where == "after finish":
                missed = True
                await fleet.poke(vm_id)

    for name in ("claim", "read", "begin_step", "write_outcome", "finish"):
        monkeypatch.setattr(PassStore, name, _between(getattr(PassStore, name), name, point))
    fleet.host.before = fleet.host.after = lambda name, order: point(name)
    vm_id = await created(fleet, spec=SPEC)
    for at in range(1, 100):
        generation = await change(fleet, vm_id, PowerState.STOPPED)
        left = at
        await fleet.poke(vm_id)
        await fleet.until(vm_id, lambda row, at_least=generation: _applied(row, at_least))
        await fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).result()
        if left > 0:
            assert missed, "the end of the pass was never met"
            assert at > 15, "too few instants to be a pass"
            return
        await fleet.until(vm_id, lambda row, at_least=generation + 1: _applied(row, at_least))
        assert fleet.host.machine(vm_id).process is not None
    raise AssertionError("the pass does not end")


def _applied(row: dict[str, Any], generation: int) -> bool:
    current = row["generation"] >= generation and row["observed_generation"] == row["generation"]
    return current and row["due_at"] is None and row["claim_until"] is None


def _between(method: Callable[..., Awaitable[Any]], name: str, point: Callable[[str], Awaitable[None]]) -> Any:
    async def wrapped(self: PassStore, request: Any) -> Any:
        await point(f"before {name}")
        answer = await method(self, request)
        await point(f"after {name}")
        return answer

    return wrapped


async def test_case_i3_a_stop_longer_than_its_grace_is_one_attempt(fleet: Fleet):
    """Case I3: the guest used up its grace and was then killed: stopped, without an error or a second try."""
    vm_id = await created(fleet, stop_timeout_seconds=1)

    async def slowly(name: str, order: HostOrder) -> None:
        if name == "ensure_stopped":
            await asyncio.sleep(order.stop_timeout_seconds * 1.5)

    fleet.host.before = slowly
    await fleet.change(vm_id, "power_state = 'stopped', generation = generation + 1")
    row = await fleet.until(vm_id, lambda row: row["observed_generation"] == 2 and row["due_at"] is None)
    assert (row["observed_power_state"], row["last_error"]) == ("stopped", None)
    assert fleet.host.calls.count("ensure_stopped") == 1


@pytest.mark.parametrize("step", ["ensure_restart_noted", "ensure_stopped", "ensure_booted", "ensure_applied"])
async def test_case_i4_a_result_that_cannot_be_read_is_looked_up_and_not_repeated(fleet: Fleet, step: str):
    """Case I4: the host did it and its answer ends the run; the sweep's next pass sees that, and goes on from there."""
    vm_id = await created(fleet)
    fleet.host.starts = 1
    fleet.host.garbled.add(step)
    await fleet.change(vm_id, "restart_generation = restart_generation + 1, generation = generation + 1")
    with pytest.raises(WorkflowFailureError):
        await fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).result()
    await force_due(fleet, vm_id)
    assert await Sweep(fleet.pool, fleet.client, search_attributes=False).sweep_once() == 1
    row = await fleet.until(vm_id, lambda row: row["observed_generation"] == 2 and row["due_at"] is None)
    assert (fleet.host.starts, fleet.host.calls.count(step), row["last_error"]) == (2, 1, None)


@pytest.mark.slow
async def test_case_m3_control_workers_that_come_and_go_lose_no_delete(temporal_client: Client, pool: Pool):
    """Case M3: fifty deletes while every control worker is replaced again and again: all end."""
    async with running_fleet(temporal_client, pool, "h-rolled", controls=False) as fleet:
        passes = PassActivities(PassStore(pool))
        async with control_worker(temporal_client, pool, build_id=None, passes=passes):
            names = await asyncio.gather(*(created(fleet) for _ in range(50)))
        await asyncio.gather(*(delete(fleet, vm_id) for vm_id in names))
        for _ in range(4):
            async with control_worker(temporal_client, pool, build_id=None, passes=passes):
                await asyncio.sleep(0.5)
        async with control_worker(temporal_client, pool, build_id=None, passes=passes):
            for vm_id in names:
                await fleet.until_gone(vm_id)
    assert all(machine.record is None and machine.process is None for machine in fleet.host.machines.values())


async def test_case_o4_pokes_amid_results_replay_the_same_without_a_cache(temporal_client: Client, pool: Pool):
    """Case O4: every task is replayed from the first event; pokes arrive while steps and local activities complete."""
    options = control_worker_options(build_id=None) | {"max_cached_workflows": 0}
    passes = PassActivities(PassStore(pool))
    methods = [getattr(passes, name) for name in dir(passes) if not name.startswith("_")]
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(running_fleet(temporal_client, pool, "h-cold", controls=False))
        await stack.enter_async_context(Worker(temporal_client, workflows=WORKFLOWS, activities=methods, **options))

        async def poke_amid(name: str, order: HostOrder) -> None:
            await fleet.poke(order.vm_id)

        fleet.host.before = fleet.host.after = poke_amid
        vm_id = await fleet.add_vm(spec=SPEC)
        await fleet.poke(vm_id)
        await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
        await change(fleet, vm_id, PowerState.STOPPED)
        await fleet.poke(vm_id)
        await fleet.until(vm_id, lambda row: row["observed_power_state"] == "stopped" and row["due_at"] is None)
        kinds = [event.event_type for event in await histories(fleet, vm_id)]
        assert kinds.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED) >= len(CREATE)
        assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in kinds


async def test_case_o5_nothing_is_lost_over_hops_and_ends(fleet: Fleet):
    """Case O5: a hundred changes, each of which makes another type of pass: each is answered, the last one counts."""
    vm_id = await created(fleet, spec=SPEC)
    changes, grace = VmChanges(fleet.pool), timedelta(hours=1)
    for _ in range(50):
        await changes.delete(None, vm_id, ACTOR, grace=grace)
        await fleet.poke(vm_id)
        await changes.undelete(None, vm_id, ACTOR)
        await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: _applied(row, 101))
    assert (row["generation"], row["phase"], row["quarantine_kind"]) == (101, "ready", None)
    assert fleet.host.machine(vm_id).process is not None
    async with fleet.pool.acquire() as connection:
        assert await connection.fetchval("select count(*) from operations where vm_id = $1", vm_id) >= 100
        assert await connection.fetchval("select count(*) from operations where ended_at is null") == 0


async def test_case_o5_a_pass_goes_on_however_often_its_user_thinks_again(fleet: Fleet):
    """Case O5, L-G1: each change takes the row from the pass that is amid a step; no sweep is needed to go on."""
    vm_id = await created(fleet, spec=SPEC)
    changes, left = VmChanges(fleet.pool), 5

    async def think_again(name: str, order: HostOrder) -> None:
        nonlocal left
        if left:
            left -= 1
            await changes.delete(None, vm_id, ACTOR, grace=timedelta(hours=1))
            await changes.undelete(None, vm_id, ACTOR)

    fleet.host.before = think_again
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: not left and _applied(row, row["generation"]))
    assert (row["generation"], row["phase"]) == (11, "ready")


async def test_case_o5_a_deadline_stands_through_pokes_and_lost_runs(fleet: Fleet):
    """Case O5, L-R3: whoever waits out the grace, however often anew, the moment of destruction never moves."""
    vm_id = await created(fleet)
    await delete(fleet, vm_id, timedelta(hours=1))
    row = await fleet.until(vm_id, lambda row: row["quarantine_stopped_at"] is not None and row["claim_until"] is None)
    for _ in range(3):
        await fleet.terminate(vm_id)
        await fleet.change(vm_id, "labels = '{}'")
        again = await fleet.until(vm_id, lambda row: row["claim_until"] is None and row["due_at"] == row["destroy_at"])
        assert again["destroy_at"] == row["destroy_at"]
    assert fleet.host.machine(vm_id).disk_bytes is not None


async def test_case_o8_a_host_that_is_back_does_old_work_once(temporal_client: Client, pool: Pool):
    """Case O8: an order that waited in the queue and one of a newer pass: the older one changes nothing."""
    async with running_fleet(temporal_client, pool, "h-late", polls=False) as fleet:
        vm_id = await fleet.add_vm()
        await fleet.poke(vm_id)
        await fleet.until(vm_id, lambda row: row["pass_number"] > 0)
        await fleet.terminate(vm_id)
        await fleet.poke(vm_id)
        async with polling(temporal_client, fleet.host):
            await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
        assert [fleet.host.calls.count(name) for name in CREATE[1:]] == [1] * len(CREATE[1:])
        assert fleet.host.starts == 1


async def test_case_o9_the_next_control_worker_takes_a_waiting_run_over(temporal_client: Client, pool: Pool):
    """Case O9: a run that one worker holds in its cache is woken at another one, without its first task timing out."""
    assert control_worker_options(build_id=None)["sticky_queue_schedule_to_start_timeout"] <= timedelta(seconds=2)
    passes = PassActivities(PassStore(pool))
    async with running_fleet(temporal_client, pool, "h-sticky", controls=False) as fleet:
        async with control_worker(temporal_client, pool, build_id=None, passes=passes):
            vm_id = await created(fleet, spec=SPEC)
            await delete(fleet, vm_id, timedelta(hours=1))
            await fleet.until(vm_id, lambda row: row["quarantine_stopped_at"] is not None and not row["claim_until"])
        async with control_worker(temporal_client, pool, build_id=None, passes=passes):
            await VmChanges(pool).undelete(None, vm_id, ACTOR)
            await fleet.poke(vm_id)
            await fleet.until(vm_id, lambda row: _applied(row, 3))
        kinds = [event.event_type for event in await histories(fleet, vm_id)]
        assert EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT not in kinds


async def test_case_o12_a_host_worker_that_starts_ten_times_makes_one_vm(temporal_client: Client, pool: Pool):
    """Case O12: each start takes up what the one before was about to do."""
    async with running_fleet(temporal_client, pool, "h-flaps", polls=False) as fleet:
        vm_id = await fleet.add_vm()
        await fleet.poke(vm_id)
        for _ in range(10):
            async with polling(temporal_client, fleet.host):
                await asyncio.sleep(0.1)
        async with polling(temporal_client, fleet.host):
            row = await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
        assert fleet.host.starts == 1
        assert row["create_attempts"] == 1


async def test_case_o12_two_ways_to_the_same_operation_share_one_run(fleet: Fleet):
    """Case O12: the API's poke and the sweep's meet in one run, whoever comes second."""
    gate = Gate(fleet, "ensure_image")
    vm_id = await fleet.add_vm()
    sweep = Sweep(fleet.pool, fleet.client, search_attributes=False)
    await asyncio.gather(fleet.poke(vm_id), sweep.sweep_once(), fleet.poke(vm_id))
    await gate.until_reached()
    first = await run_id(fleet, vm_id)
    await force_due(fleet, vm_id)
    await asyncio.gather(fleet.poke(vm_id), sweep.sweep_once())
    assert await run_id(fleet, vm_id) == first
    gate.go.set()
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert fleet.host.starts == 1


async def test_case_o15_a_pass_that_was_overtaken_writes_nothing_more(fleet: Fleet):
    """Case O15: its run was ended while its step works on; neither row nor host take anything of it afterwards."""
    gate = Gate(fleet, "ensure_image", "after")
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await gate.until_reached()
    old = await fleet.row(vm_id)
    assert old is not None
    await fleet.terminate(vm_id)
    await delete(fleet, vm_id)
    await fleet.until_gone(vm_id)
    gate.go.set()
    assert await fleet.row(vm_id) is None
    assert fleet.host.machine(vm_id).record is None
    async with fleet.pool.acquire() as connection:
        assert await connection.fetchval("select pass_number from gone where vm_id = $1", vm_id) > old["pass_number"]


async def test_case_o10_every_tick_is_a_run_of_its_own_and_all_are_alike(fleet: Fleet):
    """Case O10: a tick's history knows nothing of those before it, so that the 60 000th is as long as these are."""
    vm_id = await created(fleet)
    lengths: list[int] = []
    for _ in range(30):
        await fleet.change(vm_id, "labels = '{}'")
        await fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).result()
        described = await fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).describe()
        lengths.append(described.history_length)
        await fleet.until_settled(vm_id)
    # A poke may meet the end of the run before, and so share it with its successor.
    assert max(lengths[15:]) <= max(lengths[:15])
    assert max(lengths) < 100


async def test_case_o11_the_largest_vm_has_small_payloads_in_every_step(fleet: Fleet):
    """Case O11: what the API lets pass never makes a payload that Temporal refuses; the specification is in none."""
    large = vm_spec(
        ssh_authorized_keys=tuple("k" * 8000 for _ in range(30)),
        metadata={f"m{number}": "v" * 1000 for number in range(48)},
        user_data_bytes=64 << 10,
    ).model_dump(mode="json")
    labels = {f"{number}": "l" * 60 for number in range(64)}
    vm_id = await fleet.add_vm(spec=large, labels=labels, secrets=b"s" * (128 << 10), input_digest="d" * 64)
    await fleet.poke(vm_id)
    await fleet.until_settled(vm_id)
    await change(fleet, vm_id, PowerState.STOPPED)
    await fleet.poke(vm_id)
    await fleet.until(vm_id, lambda row: _applied(row, 2))
    await delete(fleet, vm_id)
    await fleet.until_gone(vm_id)
    events = await histories(fleet, vm_id)
    assert len(events) > 60
    assert max(event.ByteSize() for event in events) < 8 << 10
