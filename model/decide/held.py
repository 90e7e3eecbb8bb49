"""A held VM is left alone, but that its holder may want its guest stopped meanwhile, as a drain does (L-G12, H-D1)."""

from __future__ import annotations

from model.decide.pause import next_of_pause
from model.record import Observed, View
from model.row import Row
from model.step import Step, StepKind
from model.vm import PowerState
from model.waiting import Waiting


def is_up(seen: Observed) -> bool:
    """Say whether anything of the guest lives."""
    return seen.process is not None or seen.power_state in (PowerState.RUNNING, PowerState.PAUSED)


def next_of_held(row: Row, view: View) -> Step:
    """Decide for a VM that an operation holds. A deleted one waits: its end stops it."""
    must_stop = row.status.hold_stops and not row.desired.deleted and view.unreadable is None
    if not must_stop or view.record is None or not is_up(view.observed):
        return Step(kind=StepKind.WAIT, reason="an operation holds this VM", waits=Waiting.HOLD)
    pause = next_of_pause(row)
    if pause is not None:
        return pause
    return Step(kind=StepKind.STOP, reason="the operation that holds the VM wants its guest stopped")
