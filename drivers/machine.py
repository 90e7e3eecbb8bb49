"""The machine and the state directory: who this host is, and how much room it has (H-E2, H-E3, H-S7)."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import uuid
from pathlib import Path

import pydantic

from drivers.durable import Write, make_folder, remove_leftovers, write_durably
from drivers.formats import HOST, parse
from drivers.threads import in_thread
from model.base import Frozen
from model.errors import Conflict, Unreadable
from model.report import Capacity
from model.versions import VERSION

NUMBERS_RESERVED = 30
"""A state directory that was rolled back by more than so many reports begins below one that was acknowledged (H-E2)."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACHINE_ID = Path("/etc/machine-id")
MEMORY = Path("/proc/meminfo")
ARCHITECTURE = "x86_64"
"""What guests of every host are run on so far."""


class HostFile(Frozen):
    """host.json. `report_number` is above every number that was ever used; `epoch` is the highest one seen."""

    format: int = HOST.format
    release: str = VERSION
    fleet_id: str
    host_id: str
    instance_id: str
    machine_id: str
    epoch: int = 0
    report_number: int = 0


def lock_worker(home: Path) -> int:
    """Let one host worker at a time use a state directory (H-E3); return the descriptor that holds the lock.

    A worker never closes it: the kernel frees the lock once the last thread of the process has ended, however that
    came, and one that is stopped or hangs still has it. Raises Conflict, which names the holder.
    """
    make_folder(home)
    descriptor = os.open(home / "worker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 64).decode(errors="replace").strip()
        os.close(descriptor)
        raise Conflict(
            f"another host worker (process {holder or 'unknown'}) uses this state directory: stop that one first"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


class HostIdentity:
    """What host.json says, kept in memory; its numbers only rise."""

    def __init__(self, path: Path, stored: HostFile, write: Write = write_durably) -> None:
        self._path = path
        self._write_durably = write
        self._stored = stored
        self._number = stored.report_number

    @classmethod
    def open(
        cls,
        home: Path,
        *,
        fleet_id: str,
        host_id: str,
        machine_id_path: Path = MACHINE_ID,
        write: Write = write_durably,
    ) -> HostIdentity:
        """Read host.json, or make it with a new instance id when the state directory has none (H-E2).

        Raises Conflict when another machine's or another fleet's directory is found, Unreadable when it cannot be read.
        """
        make_folder(home)
        remove_leftovers(home)
        path = home / "host.json"
        machine_id = read_machine_id(machine_id_path)
        stored = read_host_file(path)
        if stored is None:
            stored = HostFile(fleet_id=fleet_id, host_id=host_id, instance_id=str(uuid.uuid4()), machine_id=machine_id)
            write_durably(path, json.dumps(stored.model_dump()).encode())
        if (stored.fleet_id, stored.host_id) != (fleet_id, host_id):
            raise Conflict(
                f"this state directory belongs to host {stored.host_id} of fleet {stored.fleet_id}, "
                f"the credentials to host {host_id} of fleet {fleet_id}: enrol with an empty state directory"
            )
        if stored.machine_id != machine_id:
            raise Conflict(
                "this state directory was made on another machine: if that machine is gone for good, "
                f"`hostler host replace {stored.host_id}` prints what this one joins with to take its place"
            )
        return cls(path, stored, write)

    @property
    def fleet_id(self) -> str:
        return self._stored.fleet_id

    @property
    def host_id(self) -> str:
        return self._stored.host_id

    @property
    def instance_id(self) -> str:
        return self._stored.instance_id

    @property
    def machine_id(self) -> str:
        return self._stored.machine_id

    @property
    def epoch(self) -> int:
        return self._stored.epoch

    async def next_number(self) -> int:
        """Return a report number above all earlier ones, also those before a crash: numbers are reserved in blocks."""
        if self._number + 1 > self._stored.report_number:
            await self._write(report_number=self._number + NUMBERS_RESERVED)
        self._number += 1
        return self._number

    async def raise_epoch(self, epoch: int) -> None:
        """Take a higher epoch over; a lower one is ignored."""
        if epoch > self._stored.epoch:
            await self._write(epoch=epoch)

    async def _write(self, **changed: int) -> None:
        stored = self._stored.model_copy(update=changed)
        await in_thread(self._write_durably, self._path, json.dumps(stored.model_dump()).encode())
        self._stored = stored


def take_machine(home: Path, machine_id: str) -> None:
    """Make a state directory this machine's own: an operator said that it takes the former one's place (H-E2)."""
    stored = read_host_file(home / "host.json")
    if stored is not None and stored.machine_id != machine_id:
        changed = stored.model_copy(update={"machine_id": machine_id})
        write_durably(home / "host.json", json.dumps(changed.model_dump()).encode())


def read_host_file(path: Path) -> HostFile | None:
    """Read host.json; None where there is none. Raises Unreadable."""
    try:
        return HostFile.model_validate(parse(HOST, path.name, path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, pydantic.ValidationError) as error:
        raise Unreadable("host.json cannot be read: restore it, or enrol this host anew") from error


def read_machine_id(path: Path = MACHINE_ID) -> str:
    """Return the machine's id (machine-id(5)), or its host name where there is none."""
    try:
        found = path.read_text().strip()
    except OSError:
        found = ""
    return found or f"name-{platform.node()}"


def read_boot_id(path: Path = BOOT_ID) -> str:
    """Return the id of the machine's present boot; the path is a setting (proc(5), random/boot_id)."""
    try:
        found = path.read_text().strip()
    except OSError as error:
        raise Unreadable("the host's boot id cannot be read: check the path that is set for it") from error
    if not found:
        raise Unreadable("the host's boot id is empty: check the path that is set for it")
    return found


def measure_capacity(home: Path, *, committed_millicores: int | None, promised_bytes: int | None) -> Capacity:
    """Measure the machine's room; what cannot be measured is None (H-S7)."""
    total, available = _memory()
    try:
        disk = shutil.disk_usage(home)
    except OSError:
        disk = None
    cpus = os.cpu_count()
    return Capacity(
        cpu_millicores_total=cpus * 1000 if cpus else None,
        cpu_millicores_committed=committed_millicores,
        memory_mib_total=total,
        memory_mib_available=available,
        storage_bytes_total=disk.total if disk else None,
        storage_bytes_free=disk.free if disk else None,
        storage_bytes_promised=promised_bytes,
    )


def total_memory_mib() -> int | None:
    """Return the machine's memory; None when it cannot be measured."""
    return _memory()[0]


def _memory() -> tuple[int | None, int | None]:
    try:
        lines = MEMORY.read_text().splitlines()
        found = {
            name: int(rest.split()[0]) // 1024 for name, _, rest in (line.partition(":") for line in lines) if rest
        }
    except (OSError, ValueError, IndexError):
        return None, None
    return found.get("MemTotal"), found.get("MemAvailable")
