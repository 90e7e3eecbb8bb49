"""How often an attempt may be given back before its create rests (L-C5)."""

from __future__ import annotations

from collections.abc import Mapping

from model.step import StepKind

MOST_REFUNDS = 10
MOST_OF_ONE_STEP = 3
_ORDER = (
    StepKind.PREPARE,
    StepKind.FETCH_IMAGE,
    StepKind.MAKE_DISK,
    StepKind.WRITE_SEED,
    StepKind.ENSURE_VOLUME,
    StepKind.SET_NETWORK,
    StepKind.BOOT,
    StepKind.PAUSE,
    StepKind.COMPLETE,
)
"""The steps of an attempt: one that ends in a later step than all before it has made progress."""


def count_refund(
    refunds: int, step_refunds: Mapping[str, int], step: str | None, *, host_died: bool
) -> tuple[int, dict[str, int]]:
    """Count one more attempt that was given back, and where; progress begins both counts anew.

    step_refunds: of each step in which an attempt was given back, how often the host had died there.
    """
    places = [kind.value for kind in _ORDER]
    place = places.index(step) if step in places else -1
    furthest = max((places.index(name) for name in step_refunds if name in places), default=-1)
    kept = dict(step_refunds)
    if refunds and place > furthest:
        refunds, kept = 0, {}
    if step is not None and place >= 0:
        kept[step] = kept.get(step, 0) + host_died
    return refunds + 1, kept


def why_no_more(refunds: int, step_refunds: Mapping[str, int]) -> str | None:
    """Say why nothing is tried any more; None while it is."""
    for step, times in step_refunds.items():
        if times > MOST_OF_ONE_STEP:
            return f"its host went silent or its worker died {times} times in the same step of its create ({step})"
    if refunds > MOST_REFUNDS:
        return f"its create was interrupted {refunds} times and came no further"
    return None
