"""What to do next for a VM: a pure function of what is wanted, what was recorded and what is seen.

Passes only execute it, and `hostler vm why` prints it. One call decides one step; after the step the host is looked
at again, so nothing here plans ahead. Rules in order: deletion, a record that cannot be read or is ahead of the row, a
create that did not complete, what a restart or a change asks for, the power state.
"""

from __future__ import annotations

from model.decide.converge import next_of_converge
from model.decide.counters import next_of_counters
from model.decide.create import next_of_create
from model.decide.held import next_of_held
from model.decide.reap import next_of_reap
from model.passes import PassType
from model.record import View
from model.row import Row
from model.step import Step, StepKind
from model.vm import PowerState
from model.waiting import Waiting


def pass_type(*, deleted: bool, created: bool) -> PassType:
    """Name the type of pass that a row calls for."""
    if deleted:
        return "ReapVm"
    return "ConvergeVm" if created else "CreateVm"


def pass_type_of(row: Row) -> PassType:
    """Name the type of pass that `row` calls for."""
    return pass_type(deleted=row.desired.deleted, created=row.status.first_ready_at is not None)


def next_step(row: Row, view: View, done: tuple[StepKind, ...] = ()) -> Step:
    """Decide the next step. `done` are the destroying steps that this pass has finished.

    Of a row that may be older than its host's last orders nothing is done: neither what it says nor how it differs from
    what is there means anything (H-R1).
    """
    step = _next_step(row, view, done)
    if row.behind and step.kind not in (StepKind.SETTLED, StepKind.GRACE):
        return Step(
            kind=StepKind.WAIT, reason="the store may be behind what its host was ordered last", waits=Waiting.BEHIND
        )
    return step


def _next_step(row: Row, view: View, done: tuple[StepKind, ...]) -> Step:
    if row.status.held:
        return next_of_held(row, view)
    if row.desired.deleted:
        return next_of_reap(row, view, done)
    if view.unreadable is not None:
        return Step(kind=StepKind.REST, reason="its host cannot read the VM's record", waits=Waiting.UNREADABLE_RECORD)
    counters = next_of_counters(row, view.record)
    if counters is not None:
        return counters
    if view.record is not None and view.record.quarantined_at is not None:
        return Step(kind=StepKind.RELEASE, reason="the VM was undeleted")
    if view.record is None and row.status.first_ready_at is not None and not row.rebuilding:
        return Step(kind=StepKind.REST, reason="its host has lost the VM's record", waits=Waiting.LOST_RECORD)
    if view.record is None or view.record.boot_id is None:
        return next_of_create(row, view)
    return next_of_converge(row, view.record, view.observed)


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
