"""The machine: simulated guests as its journal tells them, real ones as the kernel shows them.

Only the order of the journal's lines counts here, no time in them: the clocks of those who wrote them may be off.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.real import PLACES, RealGuests, find_disk_sizes


@dataclass
class Machine:
    """What there is now. `processes` and `taps` are those of simulated guests."""

    host: Path
    boot_id: Callable[[], str]
    real: RealGuests
    processes: dict[str, dict[int, str]] = field(default_factory=dict)
    """Of each VM its live processes, by pid, with the boot that they are of."""
    taps: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    _read: int = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the lines that were appended since, whole ones only; `follow` takes each over."""
        try:
            with (self.host / "simulated" / "journal.jsonl").open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return [found for line in whole.splitlines() if (found := _parse(line)) is not None]

    def follow(self, line: dict[str, Any]) -> None:
        """Take one line over."""
        vm_id, effect = line["vm_id"], line["effect"]
        pid = (line.get("process") or {}).get("pid")
        if effect == "boot":
            self.processes.setdefault(vm_id, {})[pid] = line["boot_id"]
        elif effect == "kill" or (effect == "happen" and line.get("what") == "crash"):
            self.processes.get(vm_id, {}).pop(pid, None)
        elif effect == "tap":
            self.taps.setdefault(vm_id, {})[line["tap"]["tap"]] = {**line["tap"], "boot_id": line["boot_id"]}
        elif effect == "remove_tap":
            self.taps.get(vm_id, {}).pop(line["tap"]["tap"], None)

    def live(self, vm_id: str) -> list[int]:
        """Return the pids of a VM's live processes."""
        now = self.boot_id()
        told = [pid for pid, boot_id in self.processes.get(vm_id, {}).items() if boot_id == now]
        return told + self.real.processes.get(vm_id, [])

    def plugged(self, vm_id: str) -> list[dict[str, Any]]:
        """Return a VM's taps."""
        now = self.boot_id()
        told = [tap for tap in self.taps.get(vm_id, {}).values() if tap["boot_id"] == now]
        return told + self.real.taps.get(vm_id, [])

    def known(self) -> set[str]:
        """Return every VM that anything is told of."""
        return {*self.processes, *self.taps, *self.real.processes, *self.real.taps}

    def disk_sizes(self, vm_id: str) -> set[int]:
        """Return how large a VM's root disks are, in bytes: the one in use, and the one that a rebuild put aside."""
        return find_disk_sizes(self.host / "machines" / vm_id)

    def disk_ids(self) -> set[str]:
        """Return the VMs whose root disk is there."""
        return {path.parent.name for place in PLACES for path in self.host.glob(f"machines/*/{place}")}

    def folder_ids(self) -> set[str]:
        """Return the VMs of which the host keeps a folder."""
        return {path.name for path in self.host.glob("machines/*")}


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None  # cut off by a full disk: it was never caused
    return found if isinstance(found, dict) and "effect" in found else None
