"""Why a guest's process ended, or stands still: recorded once and before anything is done about it (L-V4, L-V11)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from drivers.host.parts import Parts
from drivers.hypervisor import GuestState
from drivers.stored import StoredStatus
from model.process import ProcessRecord
from model.record import Setback
from model.text import clean_text
from model.vm import LastExit

TURNED_OFF = "guest-shutdown"
STOPPED = "it was stopped"
_WORDS = {TURNED_OFF: "the guest turned itself off", "guest-panic": "the guest's kernel panicked"}


async def note_exit(
    parts: Parts, status: StoredStatus, state: GuestState, guard: Callable[[], None], *, stopped: str = STOPPED
) -> StoredStatus:
    """Record the end of the recorded process, once; return the status as it is then.

    stopped: how a stop that was asked for came about.
    """
    process = status.process
    is_over = state.ended is not None or state.process != process
    if process is None or status.exit_of == process or not is_over:
        return status
    seen = explain(parts, status, state, stopped=stopped)

    def change(now: StoredStatus) -> StoredStatus:
        if now.process != process or now.exit_of == process:
            return now
        # A guest that has ended by its own doing did run, whether or not a worker lived to see it begin.
        by_itself = seen.by == "guest" or (seen.by == "hypervisor" and now.started_at is not None)
        told: dict[str, object] = {"exit_of": process, "last_exit": seen, "stalled": False}
        if by_itself:
            told |= {"setback": _next(now, process), "turned_off": state.ended == TURNED_OFF}
        return now.model_copy(update=told)

    return await parts.records.update(status.vm_id, change, guard)


async def note_stall(parts: Parts, status: StoredStatus, state: GuestState, guard: Callable[[], None]) -> StoredStatus:
    """Record that its hypervisor has paused the guest, once, or that it runs again; return the status as it is then."""
    process = status.process
    stalled = state.paused_by_hypervisor is not None
    if process is None or state.process != process or state.power is None or status.stalled == stalled:
        return status

    def change(now: StoredStatus) -> StoredStatus:
        if now.process != process or now.stalled == stalled:
            return now
        return now.model_copy(update={"stalled": stalled, "setback": _next(now, process) if stalled else now.setback})

    return await parts.records.update(status.vm_id, change, guard)


def _next(status: StoredStatus, process: ProcessRecord) -> Setback:
    return Setback(number=status.setback.number + 1 if status.setback else 1, process=process)


def explain(parts: Parts, status: StoredStatus, state: GuestState, *, stopped: str = STOPPED) -> LastExit:
    """Say who ended a guest and why."""
    now = datetime.now(UTC)
    if status.record.stop_intended or status.record.quarantined_at is not None:
        return LastExit(at=now, by="user", reason=stopped)
    if status.process is not None and status.process.boot_id != parts.boot_id():
        return LastExit(at=now, by="host", reason="its host was rebooted")
    if state.ended in _WORDS:
        return LastExit(at=now, by="guest", reason=_WORDS[state.ended])
    detail = clean_text(state.detail, 512)
    return LastExit(at=now, by="hypervisor", reason=f"its process ended{': ' + detail if detail else ''}")
