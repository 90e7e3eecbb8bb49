"""Limit what a guest's processes take from their host, and find them by where they are (cgroups(7)).

One interface over version 2, version 1 with a mount per controller, and a host that has neither. A guest's processes
cannot leave their cgroup, so that what is in it is the guest's whatever it calls itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from drivers.durable import translated
from drivers.processes import find_start_time
from model.capacity import Entitlement
from model.errors import StepFailed

Backend = Literal["v2", "v1", "none"]

CONTROLLERS = ("cpu", "memory", "pids")
PERIOD_MICROSECONDS = 100_000
REMOVE_SECONDS = 5.0
_ID = re.compile(r"[0-9a-z][0-9a-z_-]{0,62}", re.ASCII)


@dataclass(frozen=True)
class CgroupLimits:
    """What the processes of one guest may take together; memory includes what the hypervisor itself needs."""

    cpu_millicores: int
    memory_bytes: int
    pids: int


@dataclass(frozen=True)
class Cgroups:
    """The cgroups of one installation: `name` beneath each controller, and one beneath it per VM."""

    backend: Backend
    name: str
    root: Path
    controllers: tuple[str, ...]

    @classmethod
    def detect(cls, name: str, root: Path = Path("/sys/fs/cgroup")) -> Cgroups:
        """Find which version this host offers, and those of our controllers that it has."""
        with contextlib.suppress(OSError):
            unified = (root / "cgroup.controllers").read_text().split()
            found = tuple(controller for controller in CONTROLLERS if controller in unified)
            return cls("v2" if found else "none", name, root, found)
        found = tuple(c for c in CONTROLLERS if (root / c / "cgroup.procs").exists())
        return cls("v1" if found else "none", name, root, found)

    def ensure(self, vm_id: str, limits: CgroupLimits) -> tuple[Path, ...]:
        """Make a VM's cgroup with its limits; return the files through which a process joins it."""
        with translated("make a cgroup"):
            if self.backend == "v2":
                self._delegate()
            for folder in self._folders(vm_id):
                folder.mkdir(parents=True, exist_ok=True)
        self.set_limits(vm_id, limits)
        return tuple(folder / "cgroup.procs" for folder in self._folders(vm_id))

    def set_limits(self, vm_id: str, limits: CgroupLimits) -> None:
        """Set a VM's limits, also while it runs."""
        quota = max(1000, limits.cpu_millicores * PERIOD_MICROSECONDS // 1000)
        with translated("set the limits of a cgroup"):
            if self.backend == "v2":
                (folder,) = self._folders(vm_id)
                if "cpu" in self.controllers:
                    write(folder / "cpu.max", f"{quota} {PERIOD_MICROSECONDS}")
                if "memory" in self.controllers:
                    write(folder / "memory.max", str(limits.memory_bytes))
                    with contextlib.suppress(FileNotFoundError, PermissionError):
                        write(folder / "memory.swap.max", "0")  # a kernel without swap accounting has no such file
                if "pids" in self.controllers:
                    write(folder / "pids.max", str(limits.pids))
            elif self.backend == "v1":
                self._set_v1_limits(vm_id, limits, quota)

    def _set_v1_limits(self, vm_id: str, limits: CgroupLimits, quota: int) -> None:
        for controller, folder in zip(self.controllers, self._folders(vm_id), strict=True):
            if controller == "cpu":
                write(folder / "cpu.cfs_period_us", str(PERIOD_MICROSECONDS))
                write(folder / "cpu.cfs_quota_us", str(quota))
            elif controller == "memory":
                files = [folder / "memory.limit_in_bytes", folder / "memory.memsw.limit_in_bytes"]
                files = [file for file in files if file.exists()]
                if len(files) == 2 and int(files[1].read_text()) < limits.memory_bytes:
                    files.reverse()  # memory alone may never be above memory with swap
                for file in files:
                    write(file, str(limits.memory_bytes))
            else:
                write(folder / "pids.max", str(limits.pids))

    def find_processes(self, vm_id: str) -> list[int]:
        """List the live pids in a VM's cgroup; a zombie, which stays there until it is reaped, is dead."""
        found: set[int] = set()
        with translated("read a cgroup"):
            for folder in self._folders(vm_id):
                with contextlib.suppress(FileNotFoundError):
                    found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
        return sorted(pid for pid in found if find_start_time(pid) is not None)

    def count_memory_kills(self, vm_id: str) -> int:
        """Count what the kernel killed in a VM's cgroup, since it was made, because its memory was at its limit."""
        file = "memory.events" if self.backend == "v2" else "memory.oom_control"
        for folder in self._folders(vm_id):
            with contextlib.suppress(OSError):
                counts = dict(line.split() for line in (folder / file).read_text().splitlines())
                return int(counts.get("oom_kill", 0))
        return 0

    def find_use(self, vm_id: str) -> Entitlement:
        """Say what a VM's cgroup lets it take of processors, and has taken of memory; without one, nothing (H-S9)."""
        files = ("cpu.max", "memory.current") if self.backend == "v2" else ("cpu.cfs_quota_us", "memory.usage_in_bytes")
        quota, memory_bytes = (self._read_number(vm_id, file) for file in files)
        return Entitlement(
            cpu_millicores=max(0, quota) * 1000 // PERIOD_MICROSECONDS, memory_mib=-(-memory_bytes // (1 << 20))
        )

    def _read_number(self, vm_id: str, file: str) -> int:
        """Read the first number of a file of a VM's cgroup; 0 for one that is not there, or holds a word."""
        for folder in self._folders(vm_id):
            with contextlib.suppress(OSError, ValueError, IndexError):
                return int((folder / file).read_text().split()[0])
        return 0

    def remove(self, vm_id: str) -> None:
        """Remove a VM's cgroup; that it is absent is as good. StepFailed while a process is in it."""
        with translated("remove a cgroup"):
            for folder in self._folders(vm_id):
                deadline = time.monotonic() + REMOVE_SECONDS
                while not remove_folder(folder) and not self.find_processes(vm_id) and time.monotonic() < deadline:
                    time.sleep(0.01)  # a process is in it until it was reaped
                if folder.exists():
                    raise StepFailed("the VM's cgroup still holds processes: end them first")

    def list_ids(self) -> list[str]:
        """List the VMs that have a cgroup here."""
        found: set[str] = set()
        for parent in self._parents():
            with contextlib.suppress(FileNotFoundError):
                found.update(entry.name for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False))
        return sorted(found)

    def _parents(self) -> list[Path]:
        if self.backend == "v2":
            return [self.root / self.name]
        return [self.root / controller / self.name for controller in self.controllers]

    def _folders(self, vm_id: str) -> list[Path]:
        if _ID.fullmatch(vm_id) is None:
            raise StepFailed("an id that is no name for a cgroup")
        return [parent / vm_id for parent in self._parents()] if self.backend != "none" else []

    def _delegate(self) -> None:
        """Let controllers reach down to the VMs' cgroups: each level passes them on to the next."""
        (parent,) = self._parents()
        parent.mkdir(exist_ok=True)
        for folder in (self.root, parent):
            file = folder / "cgroup.subtree_control"
            passed = file.read_text().split() if file.exists() else []
            missing = [f"+{controller}" for controller in self.controllers if controller not in passed]
            if missing:
                write(file, " ".join(missing))


def write(file: Path, value: str) -> None:
    file.write_text(value)


def remove_folder(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise
    return True
