"""Counters of what was applied never lead those of what was asked for, but after a restore (L-N5)."""

from __future__ import annotations

from model.record import Record
from model.row import Row
from model.step import Step, StepKind
from model.waiting import Waiting


def next_of_counters(row: Row, record: Record | None) -> Step | None:
    """Refuse a record that is ahead of its row; under a higher epoch than its own the row follows it instead.

    A fleet's epoch rises when its database was restored: what was asked for since the backup is lost, not corrupt.
    """
    ahead = [told for told in _counters(row, record) if told[1] > told[2]] if record is not None else []
    if record is None or not ahead:
        return None
    if row.epoch > record.epoch:
        return Step(kind=StepKind.TAKE_OVER, reason="the fleet was restored to a time before its host's record")
    told = "; ".join(f"{name} {applied} applied, {wanted} wanted" for name, applied, wanted in ahead)
    return Step(
        kind=StepKind.REST,
        reason=f"its host's record is ahead of all that was ever asked for: {told}",
        waits=Waiting.CORRUPT_COUNTERS,
    )


def _counters(row: Row, record: Record) -> tuple[tuple[str, int, int], ...]:
    """Return the name, what was applied and what is wanted, for each counter."""
    desired = row.desired
    return (
        ("generation", record.applied_generation, desired.generation),
        ("spec_generation", record.applied_spec_generation, desired.spec_generation),
        ("restart_generation", record.applied_restart_generation, desired.restart_generation),
        ("rebuild_generation", record.applied_rebuild_generation, desired.rebuild_generation),
    )
