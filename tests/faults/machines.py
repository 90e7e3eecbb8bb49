"""What guests leave on a machine, looked at from outside: on one that is only told of, and on this one."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from drivers.cgroups import Cgroups
from drivers.headers import read_header
from drivers.names import HostNames
from drivers.network import Network
from drivers.processes import await_end, find_processes_of, kill_processes, read_boot_id
from drivers.simulated import Inventory, Simulation
from model.process import ProcessRecord
from tests.fixtures.guest import build_demo_guest
from workers.demo_image import publish_file

UIDS = 50
IMAGE_BYTES = 1 << 20
IGNORED_EFFECTS = frozenset({"press"})
"""A guest may be asked to end more than once; that it ends once is what counts."""
_MOST_BYTES = 1 << 40


class Machine(Protocol):
    """A machine with guests. A mark is what there was of a VM at one moment.

    host_settings: what its host worker is told. ignored: columns that may differ there.
    """

    ignored: frozenset[str]

    @property
    def host_settings(self) -> dict[str, Any]: ...

    def make_image(self, served: Path) -> dict[str, Any]:
        """Put an image's files into a folder that is served; return what the API is told of it."""
        ...

    def inventory(self, machines: Path) -> Inventory:
        """List what there is of each VM."""
        ...

    def mark(self, vm_id: str) -> Any: ...

    def changes_since(self, mark: Any, vm_id: str) -> dict[str, Any]:
        """Say what was done to a VM since."""
        ...

    def crash(self, vm_id: str) -> None:
        """End a VM's guest as its own fault would."""
        ...


class ToldMachine:
    """A simulated one: its journal has each effect as often as it was caused."""

    ignored = frozenset[str]()

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    @property
    def host_settings(self) -> dict[str, Any]:
        told = {"max_concurrent_creates": 0, "max_concurrent_boots": 0, "image_allow": ["127.0.0.0/8"]}
        return {**told, "simulated_guests": "only"}

    def make_image(self, served: Path) -> dict[str, Any]:
        file = served / "root.raw"
        file.write_bytes(bytes(IMAGE_BYTES))
        digest = sha256(file.read_bytes()).hexdigest()
        return {"name": "demo", "rootfs": {"url": f"file://{file}", "sha256": digest, "format": "raw"}}

    def inventory(self, machines: Path) -> Inventory:
        return self.simulation.inventory(machines)

    def mark(self, vm_id: str) -> int:
        return len(self._effects(vm_id))

    def changes_since(self, mark: int, vm_id: str) -> dict[str, Any]:
        return dict(Counter(effect for effect in self._effects(vm_id)[mark:] if effect not in IGNORED_EFFECTS))

    def crash(self, vm_id: str) -> None:
        self.simulation.cause(vm_id, "crash", "out of memory")

    def _effects(self, vm_id: str) -> list[str]:
        return [effect.effect for effect in self.simulation.journal() if effect.vm_id == vm_id]


class RealMachine:
    """This one, with users, cgroup and network namespace of the test's own. home: the host worker's folder."""

    ignored = frozenset[str]()

    def __init__(self, home: Path, netns: str) -> None:
        self.home = home
        base = 400_000 + secrets.randbelow(50_000) * 250
        self.names = HostNames(netns=netns, cgroup=f"hst-{secrets.token_hex(4)}", uid_base=base, uid_count=UIDS)

    @property
    def host_settings(self) -> dict[str, Any]:
        own = {name: getattr(self.names, name) for name in ("netns", "cgroup", "uid_base", "uid_count")}
        return {**own, "allow_emulated_guests": True}

    def make_image(self, served: Path) -> dict[str, Any]:
        guest = build_demo_guest()
        parts = {part: publish_file(guest.folder, guest.image[part], served) for part in ("rootfs", "kernel", "initrd")}
        return {"name": "demo", **parts, "command_line": guest.command_line}

    def inventory(self, machines: Path) -> Inventory:
        processes: dict[str, tuple[int, ...]] = {}
        for vm_id, found in self._guests():
            processes[vm_id] = (*processes.get(vm_id, ()), found.pid)
        taps: dict[str, tuple[str, ...]] = {}
        for link in self._links():
            vm_id = link.get("ifalias", "").rpartition(":")[2]
            taps[vm_id] = (*taps.get(vm_id, ()), link["ifname"])
        disks = {path.parent.name: _size_of(path) for path in machines.glob("*/disk")}
        return Inventory(processes=processes, taps=taps, addresses={}, disks=disks)

    def mark(self, vm_id: str) -> dict[str, Any]:
        """A process is known by pid and start, a disk by its inode: one that is made anew is another file."""
        owned = self.home / "machines" / vm_id / "disk"
        with contextlib.suppress(FileNotFoundError):
            found = owned.stat()
            return {"process": self._processes(vm_id), "disk": found.st_ino, "user": found.st_uid}
        return {"process": self._processes(vm_id), "disk": None, "user": None}

    def changes_since(self, mark: dict[str, Any], vm_id: str) -> dict[str, Any]:
        now = self.mark(vm_id)
        return {part: "none" if not now[part] else "kept" if now[part] == was else "new" for part, was in mark.items()}

    def crash(self, vm_id: str) -> None:
        kill_processes([found for owner, found in self._guests() if owner == vm_id])

    async def remove(self) -> None:
        """Leave nothing of it on this machine."""
        left = find_processes_of(self.names.users, read_boot_id())
        kill_processes(left)
        for process in left:
            assert await await_end(process, 10)
        await Network(self.names, self.home / "dnsmasq").stop_dhcp()
        cgroups = Cgroups.detect(self.names.cgroup)
        for vm_id in cgroups.list_ids():
            cgroups.remove(vm_id)
        for controller in cgroups.controllers:
            with contextlib.suppress(FileNotFoundError):
                (cgroups.root / controller / cgroups.name).rmdir()

    def _processes(self, vm_id: str) -> tuple[tuple[int, int], ...]:
        return tuple((found.pid, found.start_time) for owner, found in self._guests() if owner == vm_id)

    def _guests(self) -> list[tuple[str, ProcessRecord]]:
        """List each process of guests' users with the VM that its `-name` says; one that says none is of ``."""
        found: list[tuple[str, ProcessRecord]] = []
        for process in find_processes_of(self.names.users, read_boot_id()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                is_guest = b"-name" in words
                found.append((words[words.index(b"-name") + 1].decode() if is_guest else "", process))
        return found

    def _links(self) -> list[dict[str, Any]]:
        """List the taps of the test's namespace."""
        command = ["ip", "-n", str(self.names.netns), "-j", "link", "show"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [link for link in json.loads(shown or "[]") if self.names.owns_tap(link.get("ifname", ""))]


def _size_of(disk: Path) -> int:
    descriptor = os.open(disk, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = read_header(descriptor, max_virtual_size_bytes=_MOST_BYTES, stated_format="qcow2", overlay=True)
        return header.virtual_size_bytes
    finally:
        os.close(descriptor)
