"""Read how a host step failed: what it says about the VM, and what it says nothing about (S-4)."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    FailureError,
    TimeoutError,
    TimeoutType,
)


class FailureKind(StrEnum):
    """How a pass goes on after a failed step.

    NOT_PICKED_UP: nobody polls the host's queue; nothing ran (L-G7). UNKNOWN_THERE: the host's worker is of a release
    that has no such step, so that it was not asked (H-D4). CANCELLED: this pass cancelled it. MOVED_ON: an
    older order than the host has seen, or the row changed under it. AWAY: the host could not begin, through no fault
    of the VM. SILENT: its worker died or went silent meanwhile. BELOW_FLOOR: the host worker is too old. REFUSED: the
    host's caps leave no room for it (L-C3). PERMANENT: the VM's own fault (L-C6). IMAGE_UNREACHABLE: counts only after
    a time (L-C4). BEHIND: the row may be older than the host's last orders, so that it was not asked (H-R1). FAILED:
    the step worked and failed.
    """

    NOT_PICKED_UP = "not_picked_up"
    UNKNOWN_THERE = "unknown_there"
    CANCELLED = "cancelled"
    MOVED_ON = "moved_on"
    AWAY = "away"
    SILENT = "silent"
    BELOW_FLOOR = "below_floor"
    REFUSED = "refused"
    PERMANENT = "permanent"
    IMAGE_UNREACHABLE = "image_unreachable"
    BEHIND = "behind"
    FAILED = "failed"


class Failure(NamedTuple):
    """A failed step: how to go on, and the sentence for the row."""

    kind: FailureKind
    text: str


_BY_TYPE = {
    "Fenced": FailureKind.MOVED_ON,
    "Superseded": FailureKind.MOVED_ON,
    "BelowFloor": FailureKind.BELOW_FLOOR,
    "NoRoom": FailureKind.REFUSED,
    "Permanent": FailureKind.PERMANENT,
    "Busy": FailureKind.AWAY,
    "Unavailable": FailureKind.AWAY,
    "ImageUnreachable": FailureKind.IMAGE_UNREACHABLE,
    "PayloadValidationError": FailureKind.AWAY,
}


def read_failure(error: FailureError, words: str) -> Failure:
    """Classify the failure of the host step that was narrated as `words`.

    An answer that is not this order's comes as a bare application error, everything else inside an activity's.
    """
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, CancelledError):
        return Failure(FailureKind.CANCELLED, "")
    if isinstance(cause, TimeoutError):
        return _read_timeout(cause, words)
    if isinstance(cause, ApplicationError):
        kind = _BY_TYPE.get(cause.type or "", FailureKind.FAILED)
        return Failure(kind, cause.message)
    return Failure(FailureKind.AWAY, f"the step '{words}' ended in a way that tells nothing; it will be tried again")


def _read_timeout(cause: TimeoutError, words: str) -> Failure:
    if cause.type == TimeoutType.SCHEDULE_TO_START:
        # Without an inner cause no try was ever picked up; with one, an earlier try did run.
        kind = FailureKind.NOT_PICKED_UP if cause.cause is None else FailureKind.SILENT
        return Failure(kind, "the host's worker does not take up work")
    if cause.type == TimeoutType.HEARTBEAT:
        return Failure(FailureKind.SILENT, f"the host's worker went silent during the step '{words}'")
    return Failure(FailureKind.FAILED, f"the step '{words}' did not end in time; it will be tried again")
