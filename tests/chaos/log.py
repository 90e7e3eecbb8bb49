"""What happened in a run, in order: what users asked, which faults were, what the machine did, what was wrong."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

EVENTS_SHOWN = 50


@dataclass(frozen=True)
class Event:
    """at: seconds since the run began. vm_id None: it touches every VM."""

    at: float
    actor: str
    vm_id: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.at:8.2f}  {self.actor:<10} {self.vm_id or '':<36}  {self.text}"


@dataclass
class Log:
    """All events of a run, and the violations among them, each once."""

    began: float = field(default_factory=time.monotonic)
    events: list[Event] = field(default_factory=list)
    violations: list[Event] = field(default_factory=list)

    def note(self, actor: str, text: str, vm_id: str | None = None) -> None:
        self.events.append(Event(time.monotonic() - self.began, actor, vm_id, text))

    def violated(self, text: str, vm_id: str | None = None) -> None:
        """Note that something is as it must never be."""
        if any((each.text, each.vm_id) == (text, vm_id) for each in self.violations):
            return
        self.note("VIOLATION", text, vm_id)
        self.violations.append(self.events[-1])

    def of(self, vm_id: str | None, count: int = EVENTS_SHOWN) -> list[Event]:
        """Return the last events that touch a VM."""
        return [each for each in self.events if vm_id is None or each.vm_id in (vm_id, None)][-count:]
