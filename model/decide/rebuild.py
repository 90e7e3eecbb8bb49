"""The order of a rebuild, and the end of what it put aside (L-V10)."""

from __future__ import annotations

from datetime import datetime

from model.decide.create import next_part
from model.record import Observed, Record
from model.row import Row
from model.step import Step, StepKind


def next_of_rebuild(row: Row, record: Record, seen: Observed) -> Step | None:
    """Make root disk and seed anew, or bring the kept disk back; None when the last rebuild is done.

    It ends where every part is made: the boot is the business of what keeps the VM as it is wanted.
    """
    wanted = row.desired.rebuild_generation
    if record.applied_rebuild_generation >= wanted:
        return None
    if seen.process is not None:
        return Step(kind=StepKind.STOP, reason="a rebuild replaces the root disk")
    create = record.create
    if create is None or (create.pass_number, create.rebuild_generation) != (row.status.pass_number, wanted):
        return Step(kind=StepKind.SET_ASIDE, reason="a rebuild was asked for")
    return next_part(create) or Step(kind=StepKind.COMPLETE, reason="every part of the VM is there")


def must_drop(row: Row, record: Record) -> bool:
    """Say whether the kept disk's time is over, by Postgres' clock; without a time it stays (L-R3, H-R3)."""
    until = row.desired.old_disk_until
    return record.kept is not None and until is not None and until <= row.now and not row.frozen


def kept_until(row: Row, record: Record) -> datetime | None:
    """Return when the kept disk's time will be over; a frozen fleet keeps it beyond."""
    until = row.desired.old_disk_until
    return until if record.kept is not None and until is not None and until > row.now else None
