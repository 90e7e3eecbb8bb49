"""What to do next for a VM: a pure function of what is wanted, what was recorded and what is seen.

Passes only execute it, and `hostler vm why` prints it. One call decides one step; after the step the host is looked
at again, so nothing here plans ahead. Rules in order: a record that cannot be read, deletion, a create that did not
complete, what a restart or a change asks for, the power state.
"""

from __future__ import annotations

from datetime import timedelta

from model.passes import PassType
from model.record import Observed, Record, View
from model.row import Row
from model.step import DESTROY_ORDER, Step, StepKind
from model.vm import PowerState

GIB = 1 << 30
UNREACHABLE_LOOK = timedelta(seconds=15)


def pass_type(*, deleted: bool, created: bool) -> PassType:
    """Name the type of pass that a row calls for."""
    if deleted:
        return "ReapVm"
    return "ConvergeVm" if created else "CreateVm"


def pass_type_of(row: Row) -> PassType:
    """Name the type of pass that `row` calls for."""
    return pass_type(deleted=row.desired.deleted, created=row.status.first_ready_at is not None)


def next_step(row: Row, view: View, done: tuple[StepKind, ...] = ()) -> Step:
    """Decide the next step. `done` are the destroying steps that this pass has finished."""
    if row.status.held:
        return Step(kind=StepKind.WAIT, reason="an operation holds this VM")
    if row.desired.deleted:
        return _next_of_reap(row, view, done)
    if view.unreadable is not None:
        return Step(kind=StepKind.REST, reason="its host cannot read the VM's record")
    if view.record is not None and view.record.quarantined_at is not None:
        return Step(kind=StepKind.RELEASE, reason="the VM was undeleted")
    if view.record is None and row.status.first_ready_at is not None:
        return Step(kind=StepKind.REST, reason="its host has lost the VM's record")
    if view.record is None or view.record.boot_id is None:
        return _next_of_create(row, view)
    return _next_of_converge(row, view.record, view.observed)


def _next_of_create(row: Row, view: View) -> Step:
    """L-C: each attempt starts at the beginning, since only the boot id on the record proves a completed create."""
    status = row.status
    if status.resting:
        return Step(kind=StepKind.REST, reason="creating ended with an error that trying again does not cure")
    if status.attempt_pass != status.pass_number:
        if status.retry_at is not None and status.retry_at > row.now:
            return Step(kind=StepKind.WAIT, reason="a pause between two attempts", until=status.retry_at)
        return Step(kind=StepKind.TAKE_ATTEMPT, reason="the VM has not been created yet")
    create = view.record.create if view.record else None
    if create is None or create.pass_number != status.pass_number:
        return Step(kind=StepKind.PREPARE, reason="an attempt starts at the beginning")
    if not create.image:
        return Step(kind=StepKind.FETCH_IMAGE, reason="the root disk is made from the image")
    if not create.disk:
        return Step(kind=StepKind.MAKE_DISK, reason="the guest needs a root disk")
    if not create.seed:
        return Step(kind=StepKind.WRITE_SEED, reason="the guest needs its seed")
    if row.desired.power_state is not PowerState.STOPPED:
        if not create.booted:
            return Step(kind=StepKind.BOOT, reason="the VM is wanted running")
        if row.desired.power_state is PowerState.PAUSED and view.observed.power_state is PowerState.RUNNING:
            return Step(kind=StepKind.PAUSE, reason="the VM is wanted paused")
    return Step(kind=StepKind.COMPLETE, reason="every part of the VM is there")


def _next_of_converge(row: Row, record: Record, seen: Observed) -> Step:
    """L-V: make what runs, and how, equal to what is wanted."""
    status, desired = row.status, row.desired
    if status.retry_at is not None and status.retry_at > row.now:
        return Step(kind=StepKind.WAIT, reason="a pause after a failed step", until=status.retry_at)
    if seen.power_state is None:
        return _next_of_silent(row, record, seen)
    if _must_grow(desired.disk_gib, record):
        return Step(kind=StepKind.GROW_DISK, reason="a larger root disk is wanted")
    if record.seed_digest != desired.input_digest:
        return Step(kind=StepKind.WRITE_SEED, reason="what the seed holds has changed")
    step = (
        _next_of_stopped(record, seen) if desired.power_state is PowerState.STOPPED else _next_of_up(row, record, seen)
    )
    if step is not None:
        return step
    if _applied(record) != (desired.generation, desired.spec_generation, desired.restart_generation):
        return Step(kind=StepKind.APPLY, reason="everything that is wanted has been done")
    return Step(kind=StepKind.SETTLED, reason="what is wanted is what is there")


def _next_of_silent(row: Row, record: Record, seen: Observed) -> Step:
    """The guest's process does not answer: only its user ends it, who asked for a stop or a restart (L-V3, case B2)."""
    if seen.process is not None and row.desired.power_state is PowerState.STOPPED:
        return Step(kind=StepKind.STOP, reason="the VM is wanted stopped")
    return _next_of_restart(row, record, seen) or Step(
        kind=StepKind.WAIT,
        reason="the guest's process lives but does not answer",
        until=row.now + UNREACHABLE_LOOK,
    )


def _next_of_restart(row: Row, record: Record, seen: Observed) -> Step | None:
    """A restart is done when the process that was noted for it is dead and another runs (L-V7)."""
    wanted = row.desired.restart_generation
    if seen.process is None or record.applied_restart_generation >= wanted:
        return None
    noted = wanted if record.restart_of_generation is None else record.restart_of_generation
    if record.restart_of is None or noted < wanted:
        return Step(kind=StepKind.NOTE_RESTART, reason="a restart was asked for")
    if record.restart_of == seen.process:
        return Step(kind=StepKind.STOP, reason="a restart replaces the guest's process")
    return None


def _applied(record: Record) -> tuple[int, int, int]:
    return (record.applied_generation, record.applied_spec_generation, record.applied_restart_generation)


def _must_grow(disk_gib: int | None, record: Record) -> bool:
    return disk_gib is not None and record.disk_bytes is not None and disk_gib * GIB > record.disk_bytes


def _next_of_stopped(record: Record, seen: Observed) -> Step | None:
    if seen.power_state is not PowerState.STOPPED or seen.process is not None:
        return Step(kind=StepKind.STOP, reason="the VM is wanted stopped")
    if not record.stop_intended or record.boot_id != seen.boot_id:
        return Step(kind=StepKind.RECORD_STOP, reason="the guest is gone and is wanted stopped")
    return None


def _next_of_up(row: Row, record: Record, seen: Observed) -> Step | None:
    """Running or paused is wanted."""
    if seen.power_state is PowerState.STOPPED:
        return Step(kind=StepKind.BOOT, reason=_why_boot(record, seen))
    restart = _next_of_restart(row, record, seen)
    if restart is not None:
        return restart
    if row.desired.power_state is PowerState.PAUSED and seen.power_state is PowerState.RUNNING:
        return Step(kind=StepKind.PAUSE, reason="the VM is wanted paused")
    if row.desired.power_state is PowerState.RUNNING and seen.power_state is PowerState.PAUSED:
        return Step(kind=StepKind.RESUME, reason="the VM is wanted running")
    return None


def _why_boot(record: Record, seen: Observed) -> str:
    if record.boot_id != seen.boot_id:
        return "its host was rebooted and the VM is wanted up"
    if record.stop_intended:
        return "the VM is stopped and wanted up"
    return "the guest ended by itself and is wanted up"


def _next_of_reap(row: Row, view: View, done: tuple[StepKind, ...]) -> Step:
    """L-R: quarantine first, then wait, then destroy in order, then make sure that nothing is left."""
    quarantine = row.status.quarantine
    if row.status.destroying:
        return _next_of_destroy(row, view, done)
    if row.frozen:
        return Step(kind=StepKind.WAIT, reason="the fleet is frozen")
    if row.status.retry_at is not None and row.status.retry_at > row.now:
        return Step(kind=StepKind.WAIT, reason="a pause after a failed step", until=row.status.retry_at)
    readable = view.record is not None and view.unreadable is None
    if readable and (view.record.quarantined_at is None or view.observed.process is not None):  # type: ignore[union-attr]
        return Step(kind=StepKind.QUARANTINE, reason="the VM was deleted")
    if quarantine is not None and quarantine.stopped_at is None and view.observed.process is None:
        return Step(kind=StepKind.NOTE_STOPPED, reason="the grace runs from when the guest is proven stopped")
    if quarantine is not None and quarantine.destroy_at > row.now:
        return Step(kind=StepKind.GRACE, reason="the VM can still be undeleted", until=quarantine.destroy_at)
    return Step(kind=StepKind.MARK_DESTROYING, reason="the grace is over")


def _next_of_destroy(row: Row, view: View, done: tuple[StepKind, ...]) -> Step:
    if view.observed.nothing:
        return Step(kind=StepKind.RECORD_GONE, reason="a search on the host found nothing of the VM")
    if row.status.retry_at is not None and row.status.retry_at > row.now:
        return Step(kind=StepKind.WAIT, reason="a pause after a failed step", until=row.status.retry_at)
    recorded = set(view.record.destroyed) if view.record else set[str]()
    for kind in DESTROY_ORDER:
        if kind not in done and kind.value not in recorded:
            return Step(kind=kind, reason="the grace is over")
    return Step(
        kind=StepKind.WAIT,
        reason="something of the VM is still on the host after it was destroyed",
        until=row.now + UNREACHABLE_LOOK,
    )


def supersedes(row: Row, step: StepKind, digest: str) -> bool:
    """Say whether the row has moved on so far that `step`, begun for the input `digest`, must be cancelled."""
    if step not in (
        StepKind.PREPARE,
        StepKind.FETCH_IMAGE,
        StepKind.MAKE_DISK,
        StepKind.WRITE_SEED,
        StepKind.BOOT,
    ):
        return False
    if row.desired.deleted or row.desired.input_digest != digest:
        return True
    return step is StepKind.BOOT and row.desired.power_state is PowerState.STOPPED
