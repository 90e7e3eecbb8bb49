"""By when each kind of work should be done; past it a VM is overdue, which changes nothing (L-G13)."""

from __future__ import annotations

from datetime import timedelta

from model.passes import PassType
from model.waiting import Waiting

EXPECTED: dict[PassType, timedelta] = {
    "CreateVm": timedelta(minutes=10),
    "ConvergeVm": timedelta(minutes=5),
    "ReapVm": timedelta(minutes=10),
}
RIGHTFUL = frozenset(
    {
        Waiting.HOLD,
        Waiting.CREATE_RESTS,
        Waiting.REFUSED,
        Waiting.UNREADABLE_RECORD,
        Waiting.LOST_RECORD,
        Waiting.CORRUPT_COUNTERS,
        Waiting.REFUSED_CHANGE,
        Waiting.BEHIND,
        Waiting.FROZEN,
        Waiting.GRACE,
        Waiting.HOST_DISK,
    }
)
"""What is waited for by right: nobody expects work to be done meanwhile."""
