"""What to do about a guest that ended by itself, or was paused by its hypervisor (L-V4, L-V11).

Each is counted once, before the guest is brought up again: the host numbers them, and boots none over one that the
pass does not know.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from model.record import Observed, Record
from model.row import Row
from model.step import Step, StepKind
from model.vm import PowerState
from model.waiting import Waiting

FAILING = 5
"""From so many setbacks on the VM counts as failed, although it is brought up again."""
STEADY = timedelta(minutes=10)
"""A guest that has run for so long begins anew."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(minutes=5)
REPORT_LOOK = timedelta(seconds=15)
CAUSE_LOOK = timedelta(minutes=5)


def pause_after_setback(setbacks: int) -> timedelta:
    """Return the pause before a guest is brought up after its n-th setback, before jitter: none at first (L-V4)."""
    if setbacks <= 1:
        return timedelta(0)
    return min(FIRST_PAUSE * 2 ** min(setbacks - 2, 10), LONGEST_PAUSE)


def next_of_ended(row: Row, record: Record, seen: Observed) -> Step | None:
    """What comes before the boot of a guest that is gone; None: nothing, or somebody else ended it."""
    if is_powered_off_for_good(row, seen):
        return Step(
            kind=StepKind.WAIT,
            reason="the guest turned itself off, and is stopped with its host's report of that",
            until=row.now + REPORT_LOOK,
            waits=Waiting.GUEST_POWEROFF,
        )
    if must_count(row, seen) or (row.status.setbacks and _ended_by_host(seen) and has_run_for(seen) >= STEADY):
        return Step(kind=StepKind.COUNT_SETBACK, reason="what befell the guest is counted before it is brought up")
    until = row.status.up_again_at
    if until is not None and until > row.now and not record.stop_intended and record.boot_id == seen.boot_id:
        return Step(
            kind=StepKind.WAIT,
            reason="a pause before a guest that ended by itself is booted again",
            until=until,
            waits=Waiting.GUEST_ENDED,
        )
    return None


def next_of_stalled(row: Row, seen: Observed) -> Step | None:
    """What comes before a guest that its hypervisor paused is resumed; it is never ended for that."""
    if must_count(row, seen):
        return Step(kind=StepKind.COUNT_SETBACK, reason="what befell the guest is counted")
    if not is_stalled(row, seen):
        return None
    until = row.now + CAUSE_LOOK if seen.cause_remains else row.status.up_again_at
    if until is not None and until > row.now:
        return Step(
            kind=StepKind.WAIT,
            reason="the hypervisor paused the guest",
            until=until,
            waits=Waiting.GUEST_STALLED,
        )
    return None


def is_stalled(row: Row, seen: Observed) -> bool:
    """Say whether the guest stands still although it is wanted running, and no user paused it."""
    wanted = row.desired.power_state is PowerState.RUNNING
    return wanted and seen.power_state is PowerState.PAUSED and seen.paused_by_hypervisor is not None


def is_powered_off_for_good(row: Row, seen: Observed) -> bool:
    """Say whether the guest's own power-off is to stop the VM, and the API has not taken the report of it yet."""
    desired = row.desired
    asked = desired.power_state is PowerState.RUNNING and desired.on_guest_poweroff == "stop"
    return asked and seen.turned_off and seen.setback != desired.poweroff_taken


def must_count(row: Row, seen: Observed) -> bool:
    """Say whether there is a setback that the row does not know, or nobody knows which was the last before a start."""
    return row.status.setbacks is None or seen.setback not in (None, row.status.setback)


def has_run_for(seen: Observed) -> timedelta:
    """Return how long the guest ran, by its host's clock, until its end or until it was seen."""
    if seen.started_at is None:
        return timedelta(0)
    is_over = seen.power_state is PowerState.STOPPED and seen.last_exit is not None
    return (seen.last_exit.at if is_over and seen.last_exit else seen.seen_at) - seen.started_at


def count_setbacks(row: Row, seen: Observed) -> int:
    """Return how often something has befallen the guest since it ran for long, or since its user's start.

    The reboot of its host that ends one which has run for long is no setback: the next one is the first.
    """
    before, news = row.status.setbacks, seen.setback not in (None, row.status.setback)
    if before is None:
        return 0
    return int(news) if has_run_for(seen) >= STEADY else before + news


def _ended_by_host(seen: Observed) -> bool:
    return seen.last_exit is not None and seen.last_exit.by == "host"


def steady_at(row: Row, seen: Observed) -> datetime | None:
    """Return when a guest that failed too often will have run for long enough; None where it has, or need not."""
    if (row.status.setbacks or 0) < FAILING or seen.started_at is None or seen.power_state is PowerState.STOPPED:
        return None
    left = STEADY - has_run_for(seen)
    return row.now + left if left > timedelta(0) else None
