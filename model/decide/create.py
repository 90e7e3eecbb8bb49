"""The order of a create (rules L-C)."""

from __future__ import annotations

from model.record import Observed, View
from model.row import Row
from model.step import Step, StepKind
from model.vm import PowerState
from model.waiting import Waiting


def lacks_certificate(row: Row, seen: Observed) -> bool:
    """Say whether the host is yet to get the VM's host certificate, or a newer one (L-C2)."""
    desired = row.desired
    if not desired.host_certificate:
        return False
    return seen.certificate_serial is None or desired.certificate_serial not in (None, seen.certificate_serial)


def next_of_create(row: Row, view: View) -> Step:
    """L-C: each attempt starts at the beginning, since only the boot id on the record proves a completed create."""
    status = row.status
    if status.resting:
        return Step(
            kind=StepKind.REST,
            reason="creating ended with an error that trying again does not cure",
            waits=Waiting.CREATE_RESTS,
        )
    if status.attempt_pass != status.pass_number:
        if status.retry_at is not None and status.retry_at > row.now:
            return Step(
                kind=StepKind.WAIT,
                reason="a pause between two attempts",
                until=status.retry_at,
                waits=Waiting.ATTEMPT_PAUSE,
            )
        if lacks_certificate(row, view.observed):
            return Step(kind=StepKind.CERTIFY, reason="the VM needs a host certificate before it is made")
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
