"""The real guests of a run, as the kernel shows them: processes and taps; and the whole folder of a host's disks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fixtures.guest import build_demo_guest

QCOW2 = b"QFI\xfb"
END_SECONDS = 10.0
PLACES = ("disk", "disk-2")
"""Where a VM's folder has root disks: the one in use, and the one that a rebuild put aside."""


@dataclass
class RealGuests:
    """What there is now, of which VM. system: a view of /sys of the namespace that the host works in."""

    system: Path
    processes: dict[str, list[int]] = field(default_factory=dict)
    taps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def look(self) -> list[tuple[str, int]]:
        """Look anew; return the VM and the process' id of each guest that was begun since the last look."""
        before = {pid for pids in self.processes.values() for pid in pids}
        self.processes, self.taps = {}, {}
        for vm_id, pid in _find_guests():
            self.processes.setdefault(vm_id, []).append(pid)
        for link in sorted((self.system / "class" / "net").glob("*")):
            with contextlib.suppress(OSError):  # it has gone meanwhile
                alias = (link / "ifalias").read_text().strip()
                if (link / "tun_flags").exists() and alias:
                    tap = {"tap": link.name, "mac": None, "address": None}
                    self.taps.setdefault(alias.rpartition(":")[2], []).append(tap)
        return [(vm_id, pid) for vm_id, pids in self.processes.items() for pid in pids if pid not in before]

    def end_with_the_machine(self) -> None:
        """Take away what a reboot takes: processes, links, rules. Only what is in this run's own namespaces."""
        for _, pid in _find_guests():
            _kill(pid)
        for pid in _find(lambda words: Path(words[0]).name == "dnsmasq"):
            _kill(pid)
        for link in (self.system / "class" / "net").glob("*"):
            if link.name != "lo":
                subprocess.run(["ip", "link", "del", link.name], check=False, capture_output=True)
        subprocess.run(["nft", "flush", "ruleset"], check=True)


def _find(matches: Any) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = path.read_bytes().decode(errors="replace").split("\0")
            if words[0] and matches(words):
                found.append(int(path.parent.name))
    return sorted(found)


def _find_guests() -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for pid in _find(lambda words: Path(words[0]).name.startswith("qemu-system") and "-name" in words):
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            found.append((words[words.index("-name") + 1], pid))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == b"":
                return  # a zombie, which its parent is about to bury
        except OSError:
            return
        time.sleep(0.01)
    raise RuntimeError(f"process {pid} did not end")


def find_disk_sizes(folder: Path) -> set[int]:
    """Return the sizes of the root disks in a VM's folder, in bytes: simulated ones, and real ones by their header."""
    return {size for place in PLACES if (size := _disk_size(folder / place)) is not None}


def _disk_size(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        with path.open("rb") as file:
            head = file.read(256)
        if head.startswith(QCOW2):
            return int.from_bytes(head[24:32])
        return int(json.loads(head)["simulated_disk_bytes"])
    return None


def serve_demo_guest(folder: Path) -> dict[str, Any]:
    """Lay the demo guest where the host may fetch from; return it as the API takes an image that it gives a name."""
    guest = build_demo_guest()
    names = ("rootfs", "kernel", "initrd")
    files = {name: shutil.copy(guest.folder / guest.image[name]["file"], folder) for name in names}
    shown = {
        name: {"url": Path(path).as_uri(), "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}
        for name, path in files.items()
    }
    shown["rootfs"]["format"] = guest.image["rootfs"]["format"]
    return {"name": "demo", "command_line": guest.command_line, **shown}
