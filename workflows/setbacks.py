"""What a guest's end by itself, or a pause by its hypervisor, means for the row (L-V4, L-V11)."""

from __future__ import annotations

from typing import Any

from model.decide.setback import FAILING, count_setbacks, is_stalled, pause_after_setback, steady_at
from model.passes import Count, Outcome, PassRef
from model.record import Observed, View
from model.row import Row
from model.vm import Phase, PowerState
from model.waiting import Waiting

_CAUSES = {
    "no-space": "there is no room left for its disk on the host",
    "io-error": "its disk failed",
    "guest-panic": "the guest's kernel panicked",
    "internal-error": "the hypervisor came upon an error of its own",
}


def counted(row: Row, view: View, ref: PassRef, step_number: int, *, jitter: float) -> Outcome:
    """Count one setback, and say when the guest is brought up again; of what is from before a start only take note."""
    seen, before = view.observed, row.status.setbacks
    setbacks = count_setbacks(row, seen)
    pause = pause_after_setback(setbacks) * jitter
    count = Count(
        before=before, setbacks=setbacks, setback=seen.setback, up_again_at=row.now + pause if pause else None
    )
    told: dict[str, Any] = {"phase": row.status.phase}
    if is_stalled(row, seen):
        told = {"phase": Phase.FAILED, "write_error": True, "error": _why_stalled(seen)}
    elif setbacks >= FAILING:
        told = {"phase": Phase.FAILED, "write_error": True, "error": _why_failed(setbacks, seen)}
    return Outcome(**ref.model_dump(), step=step_number, count=count, **told)


def after_setbacks(row: Row, seen: Observed) -> dict[str, Any]:
    """Say what a guest that is as wanted owes to its setbacks: from the fifth on it must first run for ten minutes."""
    setbacks = row.status.setbacks or 0
    if setbacks < FAILING or row.desired.power_state is PowerState.STOPPED:
        return {}
    if steady_at(row, seen) is None:
        count = Count(before=setbacks, setbacks=0, setback=row.status.setback)
        return {"count": count, "write_error": True, "error": None}
    error = {"write_error": True, "error": _why_failed(setbacks, seen)}
    return {"phase": Phase.FAILED, "waits": Waiting.GUEST_UNSTEADY, **error}


def _why_failed(setbacks: int, seen: Observed) -> str:
    told = f"the guest ended or stood still by itself {setbacks} times in a row"
    return f"{told}; its last end: {seen.last_exit.reason}" if seen.last_exit else told


def _why_stalled(seen: Observed) -> str:
    return f"the hypervisor paused the guest: {_CAUSES.get(seen.paused_by_hypervisor or '', 'it did not say why')}"
