"""The pause after a step that failed: the same wait whatever the pass does (L-V5)."""

from __future__ import annotations

from model.row import Row
from model.step import Step, StepKind
from model.waiting import Waiting


def next_of_pause(row: Row) -> Step | None:
    """Wait while the pause lasts; None: there is none, or it is over."""
    retry_at = row.status.retry_at
    if retry_at is None or retry_at <= row.now:
        return None
    return Step(kind=StepKind.WAIT, reason="a pause after a failed step", until=retry_at, waits=Waiting.STEP_PAUSE)
