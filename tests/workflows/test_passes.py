"""Whole passes on a real Postgres and a real Temporal server."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError

from model.passes import Finish, Outcome
from model.record import HostOrder
from model.temporal import vm_workflow_id
from store.change import CLEAR, DISOWN, WAKE
from store.database import Pool
from store.passes import PassStore
from tests.workflows.conftest import Fleet, running_fleet

CREATE = [
    "find_vm",
    "ensure_prepared",
    "ensure_image",
    "ensure_root_disk",
    "ensure_seed",
    "ensure_booted",
    "ensure_completed",
]


async def created(fleet: Fleet, **columns: object) -> str:
    vm_id = await fleet.add_vm(**columns)
    await fleet.poke(vm_id)
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    fleet.host.calls.clear()
    fleet.host.starts = 0
    return vm_id


async def test_a_create_ends_ready(fleet: Fleet):
    """L-C: each step once, in its order; the run completes; nothing is due any more."""
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready")
    assert fleet.host.calls == CREATE
    assert fleet.host.starts == 1
    assert row["create_attempts"] == 1
    assert row["observed_generation"] == 1
    assert row["first_ready_at"] is not None
    described = await fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).describe()
    assert described.workflow_type == "CreateVm"
    assert described.status in (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.RUNNING)


async def test_a_stopped_vm_is_made_and_not_booted(fleet: Fleet):
    """L-C12."""
    vm_id = await fleet.add_vm(power_state="stopped")
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready")
    assert fleet.host.starts == 0
    assert row["observed_power_state"] == "stopped"


async def test_stop_start_restart(fleet: Fleet):
    """L-V3, L-V7: each once; the second poke finds nothing to do."""
    vm_id = await created(fleet)
    await fleet.change(vm_id, "power_state = 'stopped', generation = generation + 1")
    await fleet.until(vm_id, lambda row: row["observed_generation"] == 2 and row["due_at"] is None)
    assert fleet.host.machine(vm_id).process is None
    await fleet.change(vm_id, "power_state = 'running', generation = generation + 1")
    await fleet.until(vm_id, lambda row: row["observed_generation"] == 3 and row["due_at"] is None)
    assert fleet.host.starts == 1
    before = fleet.host.machine(vm_id).process
    await fleet.change(vm_id, "restart_generation = restart_generation + 1, generation = generation + 1")
    await fleet.until(vm_id, lambda row: row["observed_generation"] == 4 and row["due_at"] is None)
    assert fleet.host.machine(vm_id).process != before
    assert fleet.host.starts == 2
    await fleet.poke(vm_id)
    await fleet.until_settled(vm_id)
    assert fleet.host.starts == 2


REBUILD = [
    "ensure_stopped",
    "ensure_disk_set_aside",
    "ensure_image",
    "ensure_root_disk",
    "ensure_seed",
    "ensure_completed",
]


async def test_a_rebuild_is_shown_and_its_old_disk_goes_when_its_time_is_over(fleet: Fleet):
    """L-V10, L-N3: each step once; nothing is due but the kept disk's end, which the sweep would find."""
    vm_id = await created(fleet)
    shown: list[str] = []

    async def note(name: str, order: HostOrder) -> None:
        row = await fleet.row(vm_id)
        assert row is not None
        shown.append(row["phase"])

    fleet.host.before = note
    await fleet.rebuild(vm_id)
    row = await fleet.until_rebuilt(vm_id, 1)
    assert [call for call in fleet.host.calls if call != "find_vm"] == [*REBUILD, "ensure_booted", "ensure_applied"]
    assert shown[fleet.host.calls.index("ensure_image")] == "creating"
    assert (row["phase"], row["observed_generation"], row["kept_by"], fleet.host.starts) == ("ready", 2, 1, 1)
    fleet.host.calls.clear()
    await fleet.change(vm_id, "old_disk_until = now()")
    row = await fleet.until(vm_id, lambda row: row["old_disk_until"] is None and row["due_at"] is None)
    assert [call for call in fleet.host.calls if call != "find_vm"] == ["ensure_kept_disk_removed"]
    assert row["old_image"] is None


@pytest.mark.parametrize("wish", ["stop", "restart", "delete"])
async def test_what_is_asked_for_amid_a_rebuild_is_done(fleet: Fleet, wish: str):
    """L-V10: a stop leaves it rebuilt and stopped, a restart needs no boot of its own, a delete ends it (L-R8)."""
    vm_id = await created(fleet)
    reached, go = asyncio.Event(), asyncio.Event()

    async def hold(name: str, order: HostOrder) -> None:
        if name == "ensure_image" and not go.is_set():
            reached.set()
            await go.wait()

    fleet.host.before = hold
    await fleet.rebuild(vm_id)
    await asyncio.wait_for(reached.wait(), 20)
    if wish == "delete":
        await fleet.delete(vm_id, 0)
        await fleet.until_gone(vm_id)
        return
    field = "power_state = 'stopped'" if wish == "stop" else "restart_generation = restart_generation + 1"
    await fleet.change(vm_id, f"{field}, generation = generation + 1")
    go.set()
    row = await fleet.until_rebuilt(vm_id, 1)
    assert row["observed_generation"] == 3
    assert fleet.host.starts == (0 if wish == "stop" else 1)


async def test_a_dead_guest_and_a_reboot_boot_once_each(fleet: Fleet):
    """L-V1, L-V2 (cases A2, A7)."""
    vm_id = await created(fleet)
    fleet.host.kill_guest(vm_id)
    await fleet.change(vm_id, "labels = '{}'")
    await fleet.until_settled(vm_id)
    fleet.host.reboot("boot-2")
    await fleet.change(vm_id, "labels = '{}'")
    await fleet.until_settled(vm_id)
    assert fleet.host.starts == 2
    assert fleet.host.machine(vm_id).process is not None


async def test_delete_waits_out_its_grace_and_destroys_in_order(fleet: Fleet):
    """L-R2 to L-R6."""
    vm_id = await created(fleet)
    await fleet.delete(vm_id, 2.0)
    row = await fleet.until(vm_id, lambda row: row["phase"] == "quarantined")
    assert row["destroy_at"] is not None
    await fleet.until_gone(vm_id)
    assert fleet.host.calls[-4:] == [
        "ensure_process_destroyed",
        "ensure_network_destroyed",
        "ensure_storage_destroyed",
        "ensure_records_destroyed",
    ]
    async with fleet.pool.acquire() as connection:
        assert await connection.fetchval("select project from gone where vm_id = $1", vm_id) == "default"


@pytest.mark.parametrize(("grace", "patience"), [(0, 0), (600, 5)])
async def test_a_guest_is_asked_first_unless_its_disk_goes_at_once(fleet: Fleet, grace: int, patience: int):
    """L-R2, L-V3: nobody waits for a guest to save what is destroyed in the same breath."""
    vm_id = await created(fleet)
    asked: list[int] = []

    async def note(name: str, order: HostOrder) -> None:
        if name == "ensure_quarantined":
            asked.append(order.stop_timeout_seconds)

    fleet.host.before = note
    await fleet.delete(vm_id, grace)
    if grace:
        await fleet.until(vm_id, lambda row: row["quarantine_stopped_at"] is not None)
    else:
        await fleet.until_gone(vm_id)
    assert asked == [patience]


async def test_undelete_brings_the_vm_back(fleet: Fleet):
    """L-R4: the same record and disk, up again, without a create."""
    vm_id = await created(fleet)
    await fleet.delete(vm_id, 600)
    await fleet.until(vm_id, lambda row: row["quarantine_stopped_at"] is not None and row["claim_until"] is None)
    await fleet.change(
        vm_id,
        """deleted = false, generation = generation + 1, quarantine_kind = null, quarantine_since = null,
        quarantine_grace = null, destroy_at = null, quarantine_stopped_at = null""",
    )
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert row["observed_generation"] == row["generation"]
    assert fleet.host.machine(vm_id).process is not None
    assert "ensure_prepared" not in fleet.host.calls


async def test_a_permanent_error_rests_and_says_why(fleet: Fleet):
    """L-C6."""

    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_root_disk":
            raise ApplicationError("1 GiB is wanted, the image has 4", type="Permanent", non_retryable=True)

    fleet.host.before = fail
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["phase"] == "failed" and row["due_at"] is None)
    assert row["last_error"] == "1 GiB is wanted, the image has 4"
    assert row["resting"]
    await fleet.delete(vm_id, 0)
    await fleet.until_gone(vm_id)


async def test_what_a_user_cleared_is_not_written_back_by_the_pass_that_it_overtook(fleet: Fleet):
    """L-C4, L-G9: also where its wake-up was lost, so that the pass hears of the change by its own refused write."""

    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_root_disk" and fleet.host.calls.count(name) == 1:
            await fleet.pool.execute(f"update vms set {CLEAR}, {WAKE} where id = $1", order.vm_id)
            raise ApplicationError("too old", type="BelowFloor", non_retryable=True)

    fleet.host.before = fail
    vm_id = await fleet.add_vm(refunds=10, step_refunds={"ensure_root_disk": 0, "complete": 0})
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["claim_until"] is None and row["run_id"] is not None)
    assert (row["phase"], row["resting"], row["last_error"], row["refunds"]) == ("ready", False, None, 0)


async def test_a_permanent_error_of_a_step_that_was_cut_off_counts_for_nothing(fleet: Fleet):
    """L-C5, L-C6: another pass has taken the row; how the step of the former one ends says nothing of the VM."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_root_disk" and not reached.is_set():
            reached.set()
            try:
                await go.wait()
            except asyncio.CancelledError:
                raise ApplicationError("too small", type="Permanent", non_retryable=True) from None

    fleet.host.before = fail
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await asyncio.wait_for(reached.wait(), 20)
    await fleet.change(vm_id, DISOWN)
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert (row["create_attempts"], row["refunds"], row["last_error"], row["resting"]) == (1, 1, None, False)


async def test_a_failed_attempt_is_counted_and_paused(fleet: Fleet):
    """L-C4: the error shows, the phase stays creating, the next attempt is due after a pause."""

    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_image" and fleet.host.calls.count(name) == 1:
            raise ApplicationError("the digest does not match", type="StepFailed")

    fleet.host.before = fail
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["retry_at"] is not None and row["claim_until"] is None)
    assert (row["phase"], row["create_attempts"]) == ("creating", 1)
    assert row["last_error"] == "the digest does not match"
    assert 3 < (row["due_at"] - row["updated_at"]).total_seconds() < 12
    await fleet.change(vm_id, "retry_at = null")
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready")
    assert row["create_attempts"] == 2
    assert row["last_error"] is None


async def test_waiting_for_a_slot_uses_up_no_attempt(fleet: Fleet):
    """L-C7."""
    fleet.host.waiting["ensure_image"] = "waiting for a free create slot (2 of 2 busy)"
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["status_detail"] is not None and row["claim_until"] is None)
    assert row["status_detail"] == "waiting for a free create slot (2 of 2 busy)"
    assert row["create_attempts"] == 0
    fleet.host.waiting.clear()
    await fleet.change(vm_id, "labels = '{}'")
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready")
    assert row["create_attempts"] == 1


@pytest.mark.parametrize("step", CREATE[1:])
async def test_case_f1_delete_while_creating_cancels_and_reaps(fleet: Fleet, step: str):
    """L-R8 (case F1): at each step; the create never writes `ready` afterwards."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def hold(name: str, order: HostOrder) -> None:
        if name == step and not go.is_set():
            reached.set()
            await go.wait()

    fleet.host.before = hold
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await asyncio.wait_for(reached.wait(), 20)
    await fleet.delete(vm_id, 0)
    if step == "ensure_completed":
        go.set()
    await fleet.until_gone(vm_id)
    go.set()
    assert fleet.host.machine(vm_id).process is None
    assert fleet.host.machine(vm_id).disk_bytes is None


@pytest.mark.parametrize("step", CREATE)
async def test_case_o14_a_run_terminated_at_each_step_is_started_anew(fleet: Fleet, step: str):
    """L-G2, L-C1 (case O14): another pass finishes the create; one process, one boot that counts."""
    reached = asyncio.Event()
    go = asyncio.Event()

    async def hold(name: str, order: HostOrder) -> None:
        if name == step and not go.is_set():
            reached.set()
            await go.wait()

    fleet.host.before = hold
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await asyncio.wait_for(reached.wait(), 20)
    await fleet.terminate(vm_id)
    go.set()
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert fleet.host.machine(vm_id).process is not None
    assert row["pass_number"] >= 2


async def test_a_storm_of_pokes_doubles_nothing(fleet: Fleet):
    """L-G1: pokes carry nothing."""
    vm_id = await fleet.add_vm()
    await asyncio.gather(*(fleet.poke(vm_id) for _ in range(100)))
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert fleet.host.starts == 1


async def test_a_failed_boot_of_a_created_vm_is_tried_again_for_ever(fleet: Fleet):
    """L-V5: failed with the reason, a pause, then ready again with the error cleared by the boot (L-V6)."""
    vm_id = await created(fleet)
    fleet.host.kill_guest(vm_id)

    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_booted" and fleet.host.calls.count(name) == 1:
            raise ApplicationError("KVM not accessible", type="StepFailed")

    fleet.host.before = fail
    await fleet.change(vm_id, "labels = '{}'")
    row = await fleet.until(vm_id, lambda row: row["phase"] == "failed")
    assert row["last_error"] == "KVM not accessible"
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert row["last_error"] is None
    assert row["failures"] == 0


@pytest.mark.slow
async def test_case_o8_a_step_that_nobody_picks_up_ends_the_pass_as_waiting(temporal_client: Client, pool: Pool):
    """L-G7 (case O8): the host reports but does not poll; no attempt is used, and the wait is shown."""
    async with running_fleet(temporal_client, pool, "h-deaf", polls=False) as fleet:
        vm_id = await fleet.add_vm()
        await fleet.poke(vm_id)
        row = await fleet.until(
            vm_id, lambda row: row["status_detail"] is not None and row["ended_pass"] is not None, 90
        )
        assert row["status_detail"] == "waiting for the host to report and take up work"
        assert row["create_attempts"] == 0
        assert row["due_at"] is not None
        assert row["phase"] == "creating"


async def test_a_silent_host_is_waited_for_and_nothing_is_sent(fleet: Fleet):
    """L-G7, H-S10: only missing reports make a host silent; a delete is recorded and the wait is shown (L-R8)."""
    vm_id = await created(fleet)
    async with fleet.pool.acquire() as connection:
        await connection.execute("update hosts set last_report_at = null")
    await fleet.delete(vm_id, 0)
    row = await fleet.until(vm_id, lambda row: row["status_detail"] is not None and row["claim_until"] is None)
    assert row["status_detail"] == "waiting for the host to report and take up work"
    assert row["phase"] != "destroying"
    assert fleet.host.calls == []


@pytest.mark.parametrize("call", ["write_outcome", "finish"])
async def test_case_i2_a_wish_between_the_decision_and_its_end_is_acted_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, call: str
):
    """Case I2, L-G1: what woke the row after it was decided on is no part of the decision; the poke itself is lost."""
    original = getattr(PassStore, call)
    changed: list[str] = []

    async def change_first(self: PassStore, request: Outcome | Finish) -> object:
        if not changed and (call == "finish" or request.observed_generation is not None):
            changed.append(request.vm_id)
            await self._pool.execute(
                """update vms set power_state = 'stopped', generation = generation + 1, wake = wake + 1, due_at = now()
                where id = $1""",
                request.vm_id,
            )
        return await original(self, request)

    monkeypatch.setattr(PassStore, call, change_first)
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["observed_power_state"] == "stopped" and row["due_at"] is None)
    assert row["observed_generation"] == 2


async def test_a_create_waits_for_its_certificate_and_counts_nothing(fleet: Fleet):
    """L-C2: the pass ends as waiting, the row says what for, no attempt is taken; woken, the create goes on."""
    fleet.host.waiting["ensure_certificate"] = "waiting for the host certificate"
    vm_id = await fleet.add_vm(spec={"host_certificate": True})
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["status_detail"] is not None and row["claim_until"] is None)
    assert row["status_detail"] == "waiting for the host certificate"
    assert (row["phase"], row["create_attempts"], row["last_error"]) == ("creating", 0, None)
    assert fleet.host.calls == ["find_vm", "ensure_certificate"]
    fleet.host.waiting.clear()
    await fleet.change(vm_id, "certificate_serial = null")
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready")
    assert fleet.host.calls[2:] == ["find_vm", "ensure_certificate", *CREATE[1:]]
    assert row["create_attempts"] == 1
