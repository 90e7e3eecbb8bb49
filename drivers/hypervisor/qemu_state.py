"""What QEMU's run state means for a guest; a pure function, so that a look after a restart says the same."""

from __future__ import annotations

from dataclasses import dataclass

from drivers.hypervisor import GuestEvent, GuestState, Power
from model.process import ProcessRecord

RUNNING = frozenset({"running", "prelaunch", "colo"})
PAUSED = frozenset({"paused", "suspended", "save-vm", "restore-vm", "inmigrate", "finish-migrate", "postmigrate"})
NO_SPACE = "no-space"
"""No run state of QEMU's: `io-error` on a disk for which there was no room."""
PAUSED_BY_HYPERVISOR = {
    "io-error": "io-error",
    NO_SPACE: NO_SPACE,
    "guest-panicked": "guest-panic",
    "internal-error": "internal-error",
    "watchdog": "watchdog",
}
ENDED = {"shutdown": "guest-shutdown"}
"""By `-action shutdown=pause` only a guest's own end leads there: what the host asks for ends the process."""


@dataclass(frozen=True)
class Seen:
    state: GuestState

    def find_events(self, last: GuestState | None) -> list[GuestEvent]:
        """List what moved since the last look that could tell."""
        now = self.state
        events: list[GuestEvent] = []
        if now.process is None:
            events.append(GuestEvent(kind="gone", reason=now.ended))
        elif now.ended is not None and (last is None or last.ended is None):
            events.append(GuestEvent(kind="ended", reason=now.ended))
        elif now.power == "paused" and (last is None or (last.power, last.paused_by_hypervisor) != paused(now)):
            events.append(GuestEvent(kind="paused", reason=now.paused_by_hypervisor))
        elif now.power == "running" and last is not None and last.power == "paused":
            events.append(GuestEvent(kind="resumed"))
        return events


def paused(state: GuestState) -> tuple[Power | None, str | None]:
    return state.power, state.paused_by_hypervisor


def read_state(
    process: ProcessRecord | None, status: str | None, *, recorded: bool, detail: str = "", cause_remains: bool = False
) -> Seen:
    """Tell a guest's state from its live process (None: there is none), and QEMU's run state (None: no answer).

    recorded: the live process is the recorded one, or, when there is none, one had been recorded.
    """
    if process is None:
        ended = "process-gone" if recorded else None
        return Seen(GuestState(power="stopped", ended=ended, detail=detail))
    if not recorded:
        detail = detail or "a process of this VM lives that is not the recorded one"
    power: Power | None = None
    if status is None:
        detail = detail or "QEMU does not answer"
    elif status in ENDED:
        power = "stopped"
    elif status in PAUSED or status in PAUSED_BY_HYPERVISOR:
        power = "paused"
    elif status in RUNNING:
        power = "running"
    else:
        detail = "QEMU answered with a run state that is not known"
    return Seen(
        GuestState(
            power=power,
            ended=ENDED.get(status or ""),
            paused_by_hypervisor=PAUSED_BY_HYPERVISOR.get(status or ""),
            cause_remains=cause_remains,
            process=process,
            detail=detail,
        )
    )
