"""The order of a create (rules L-C)."""

from __future__ import annotations

from datetime import timedelta

from model.decide.network import next_of_network
from model.decide.pause import next_of_pause
from model.decide.refund import why_no_more
from model.decide.volumes import next_of_volumes
from model.record import CreateProgress, Observed, View
from model.room import DISK_STOP_CREATES_PERCENT, describe_room, is_below
from model.row import Row
from model.step import Step, StepKind
from model.vm import PowerState
from model.waiting import Waiting

ROOM_LOOK = timedelta(seconds=30)


def lacks_certificate(row: Row, seen: Observed) -> bool:
    """Say whether the host is yet to get the VM's host certificate, or a newer one (L-C2)."""
    desired = row.desired
    if not desired.host_certificate:
        return False
    return seen.certificate_serial is None or desired.certificate_serial not in (None, seen.certificate_serial)


def lacks_room(row: Row) -> bool:
    """Say whether the host's filesystem is so full that no VM is made there (D-12)."""
    return is_below(DISK_STOP_CREATES_PERCENT, row.host.storage_bytes_free, row.host.storage_bytes_total)


def _wait_for_room(row: Row) -> Step:
    room = describe_room(row.host.storage_bytes_free, row.host.storage_bytes_total)
    return Step(
        kind=StepKind.WAIT,
        reason=f"refused: its host has {room}, and no VM is made below {DISK_STOP_CREATES_PERCENT} %",
        until=row.now + ROOM_LOOK,
        waits=Waiting.HOST_DISK,
    )


def next_of_create(row: Row, view: View) -> Step:
    """L-C: each attempt starts at the beginning, since only the boot id on the record proves a completed create.

    Of a VM that lived before and is rebuilt without its record no attempts are counted (L-V9, L-V10).
    """
    status, again = row.status, row.status.first_ready_at is not None
    if status.resting:
        return Step(
            kind=StepKind.REST,
            reason="creating ended with an error that trying again does not cure",
            waits=Waiting.CREATE_RESTS,
        )
    exhausted = None if again else why_no_more(status.refunds, status.step_refunds)
    if exhausted is not None and status.attempt_pass != status.pass_number:
        return Step(kind=StepKind.REST, reason=exhausted, waits=Waiting.CREATE_RESTS)
    pause = next_of_pause(row) if again else None
    if pause is not None:
        return pause
    if not again and status.attempt_pass != status.pass_number:
        if status.retry_at is not None and status.retry_at > row.now:
            return Step(
                kind=StepKind.WAIT,
                reason="a pause between two attempts",
                until=status.retry_at,
                waits=Waiting.ATTEMPT_PAUSE,
            )
        if lacks_certificate(row, view.observed):
            return Step(kind=StepKind.CERTIFY, reason="the VM needs a host certificate before it is made")
        if lacks_room(row):
            return _wait_for_room(row)
        return Step(kind=StepKind.TAKE_ATTEMPT, reason="the VM has not been created yet")
    create = view.record.create if view.record else None
    if create is None or create.pass_number != status.pass_number:
        if again and lacks_certificate(row, view.observed):
            return Step(kind=StepKind.CERTIFY, reason="the VM needs a host certificate before it is made")
        return Step(kind=StepKind.PREPARE, reason="an attempt starts at the beginning")
    record = view.record
    part = next_part(create) or (next_of_network(row, record) or next_of_volumes(row, record) if record else None)
    if part is not None:
        return part
    if row.desired.power_state is not PowerState.STOPPED:
        if not create.booted:
            return Step(kind=StepKind.BOOT, reason="the VM is wanted running")
        if row.desired.power_state is PowerState.PAUSED and view.observed.power_state is PowerState.RUNNING:
            return Step(kind=StepKind.PAUSE, reason="the VM is wanted paused")
    return Step(kind=StepKind.COMPLETE, reason="every part of the VM is there")


def next_part(create: CreateProgress) -> Step | None:
    """Image, root disk and seed, in this order; None when all are there."""
    if not create.image:
        return Step(kind=StepKind.FETCH_IMAGE, reason="the root disk is made from the image")
    if not create.disk:
        return Step(kind=StepKind.MAKE_DISK, reason="the guest needs a root disk")
    if not create.seed:
        return Step(kind=StepKind.WRITE_SEED, reason="the guest needs its seed")
    return None
