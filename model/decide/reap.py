"""The order of a VM's end: quarantine, grace, destruction, proof (rules L-R)."""

from __future__ import annotations

from model.decide.converge import UNREACHABLE_LOOK
from model.decide.pause import next_of_pause
from model.record import View
from model.row import Row
from model.step import DESTROY_ORDER, Step, StepKind
from model.waiting import Waiting


def next_of_reap(row: Row, view: View, done: tuple[StepKind, ...]) -> Step:
    """L-R: quarantine first, then wait, then destroy in order, then make sure that nothing is left."""
    quarantine = row.status.quarantine
    if row.frozen:
        return Step(kind=StepKind.WAIT, reason="the fleet is frozen", waits=Waiting.FROZEN)
    if row.status.destroying:
        return _next_of_destroy(row, view, done)
    pause = next_of_pause(row)
    if pause is not None:
        return pause
    readable = view.record is not None and view.unreadable is None
    if readable and (view.record.quarantined_at is None or view.observed.process is not None):  # type: ignore[union-attr]
        return Step(kind=StepKind.QUARANTINE, reason="the VM was deleted")
    if quarantine is not None and quarantine.stopped_at is None and view.observed.process is None:
        return Step(kind=StepKind.NOTE_STOPPED, reason="the grace runs from when the guest is proven stopped")
    if quarantine is not None and quarantine.destroy_at > row.now:
        return Step(
            kind=StepKind.GRACE,
            reason="the VM can still be undeleted",
            until=quarantine.destroy_at,
            waits=Waiting.GRACE,
        )
    return Step(kind=StepKind.MARK_DESTROYING, reason="the grace is over")


def _next_of_destroy(row: Row, view: View, done: tuple[StepKind, ...]) -> Step:
    if view.observed.nothing:
        return Step(kind=StepKind.RECORD_GONE, reason="a search on the host found nothing of the VM")
    pause = next_of_pause(row)
    if pause is not None:
        return pause
    recorded = set(view.record.destroyed) if view.record else set[str]()
    for kind in DESTROY_ORDER:
        if kind not in done and kind.value not in recorded:
            return Step(kind=kind, reason="the grace is over")
    return Step(
        kind=StepKind.WAIT,
        reason="something of the VM is still on the host after it was destroyed",
        until=row.now + UNREACHABLE_LOOK,
        waits=Waiting.REMAINS,
    )
