"""Which of a VM's volumes is to be made sure of, or let go, next (H-V2, L-C11)."""

from __future__ import annotations

from model.record import Record
from model.room import GIB
from model.row import Row
from model.step import Step, StepKind


def next_of_volumes(row: Row, record: Record) -> Step | None:
    """Let go of what is not wanted any more, then make sure of each volume in the order asked for; None: all is so."""
    wanted = {each.volume_id for each in row.desired.volumes}
    there = {each.volume_id: each.size_bytes for each in record.volumes}
    for volume_id in there:
        if volume_id not in wanted:
            return Step(kind=StepKind.DETACH_VOLUME, reason="the volume is not wanted any more", volume_id=volume_id)
    for each in row.desired.volumes:
        if each.volume_id not in there:
            return Step(kind=StepKind.ENSURE_VOLUME, reason="the VM is to have a volume", volume_id=each.volume_id)
        if there[each.volume_id] < each.size_gib * GIB:
            return Step(kind=StepKind.ENSURE_VOLUME, reason="a larger volume is wanted", volume_id=each.volume_id)
    return None
