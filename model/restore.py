"""What a person has to settle after the fleet's database was restored: a pure comparison of rows and hosts (H-R1)."""

from __future__ import annotations

from typing import Literal

from model.base import Frozen
from model.report import Recorded, VmReport
from model.vm import PowerState

Kind = Literal["unknown", "missing", "changed"]
Choice = Literal["leave", "adopt", "quarantine", "recreate", "give_up", "row", "host"]

CHOICES: dict[Kind, tuple[Choice, ...]] = {
    "unknown": ("adopt", "quarantine", "leave"),
    "missing": ("recreate", "give_up", "leave"),
    "changed": ("row", "host"),
}
MEANING: dict[Choice, str] = {
    "adopt": "make a row of it again, from its host's record, and keep it as its host has it now",
    "quarantine": "stop it, and keep it for the grace of one that lost its row",
    "leave": "leave it as it is",
    "recreate": "make it anew from its image, without what was on its disk",
    "give_up": "release its name and what it holds; it is not made again",
    "row": "make it what the restored row says",
    "host": "keep it as its host has it now: running, paused, stopped, deleted or not",
}


class Wanted(Frozen):
    """What the restored row of a VM says."""

    power_state: PowerState
    deleted: bool
    generation: int
    spec_generation: int
    restart_generation: int
    rebuild_generation: int
    input_digest: str


def compare(wanted: Wanted | None, told: VmReport | None) -> tuple[Kind, tuple[str, ...]] | None:
    """Say what a person has to settle of a VM, and what differs; None: nothing.

    A row that is to be destroyed, and of which its host holds nothing, ends by itself.
    """
    if told is not None and told.observed.nothing:
        told = None
    if wanted is None:
        return ("unknown", ("its host holds it, no row does",)) if told is not None else None
    if told is None:
        return None if wanted.deleted else ("missing", ("its host holds nothing of it",))
    differs = _differs(wanted, told)
    return ("changed", differs) if differs else None


def _differs(wanted: Wanted, told: VmReport) -> tuple[str, ...]:
    """List what was done since. A row that is ahead of its host was only not done yet when the backup was taken."""
    found: list[str] = []
    if told.quarantined_at is not None and not wanted.deleted:
        found.append("it was deleted since")
    if told.quarantined_at is None and wanted.deleted:
        found.append("it is deleted here, and not in quarantine there")
    if told.unreadable is not None:
        found.append("its record there cannot be read")
    if told.recorded is not None:
        found += _counters(wanted, told.recorded)
    return tuple(found)


def _counters(wanted: Wanted, there: Recorded) -> list[str]:
    words = {
        "generation": "it was changed since",
        "spec_generation": "its sizes were changed since",
        "restart_generation": "it was restarted since",
        "rebuild_generation": "it was rebuilt since",
    }
    found = [
        f"{text} ({name} {getattr(there, name)} there, {getattr(wanted, name)} here)"
        for name, text in words.items()
        if getattr(there, name) > getattr(wanted, name)
    ]
    if there.input_digest != wanted.input_digest and there.generation >= wanted.generation:
        found.append("what it was given differs")
    return found
