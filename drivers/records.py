"""The records of a host's VMs: what survives worker, host and control plane (`machines/<id>/`).

All are read and checked at start; from then on memory holds what the disk holds, since one worker writes them. A
write is durable before it shows in memory, and a side effect follows it only if it did not fail (L-G3). Reading takes
no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from drivers.durable import Write, make_folder, open_folder, remove_durably, remove_leftovers, translated, write_durably
from drivers.stored import StoredConfig, StoredStatus, read_stored
from drivers.threads import finish
from model.errors import NotFound, StepFailed, Unreadable
from model.ids import check_label

CONFIG, STATUS = "config.json", "status.json"
DESTROYED = ("destroy_process", "destroy_network", "destroy_storage")
"""All that is destroyed before a VM's record, in that order (L-R5)."""
LOOKS, LOOK_SECONDS = 3, 0.005

Guard = Callable[[], None]


@dataclass(frozen=True)
class Entry:
    """One VM's record as it is on disk. `unreadable` is the reason of L-G8; the rest is None then.

    A config without a status is a create that was cut off before its record was complete: nothing has run yet.
    """

    vm_id: str
    config: StoredConfig | None = None
    status: StoredStatus | None = None
    unreadable: str | None = None


class RecordStore:
    """All records of one host worker. Writes of one VM are serial; each changes what is there at that instant."""

    def __init__(self, folder: Path, write: Write = write_durably) -> None:
        self._root = folder
        self._write_durably = write
        self._entries: dict[str, Entry] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def load(self) -> None:
        """Read and check every record (L-G8). No record's fault keeps another from being read."""
        make_folder(self._root)
        with translated("list the records"):
            folders = sorted(path for path in self._root.iterdir())
        for path in folders:
            try:
                check_label(path.name)
            except ValueError:
                continue  # no VM's folder: left alone
            self._entries[path.name] = _read(path)

    def folder(self, vm_id: str) -> Path:
        """Return the folder of a VM's files."""
        return self._root / check_label(vm_id)

    def find(self, vm_id: str) -> Entry | None:
        """Find a record, also an unreadable one."""
        return self._entries.get(vm_id)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def status(self, vm_id: str) -> StoredStatus:
        """Return a VM's status. Raises Unreadable, or NotFound when there is none."""
        entry = self._entries.get(vm_id)
        if entry is not None and entry.unreadable:
            raise Unreadable(entry.unreadable)
        if entry is None or entry.status is None:
            raise NotFound("this host has no record of the VM")
        return entry.status

    def config(self, vm_id: str) -> StoredConfig:
        """Return a VM's input and allocation. Raises Unreadable, or NotFound when there are none."""
        entry = self._entries.get(vm_id)
        if entry is not None and entry.unreadable:
            raise Unreadable(entry.unreadable)
        if entry is None or entry.config is None:
            raise NotFound("this host has no record of the VM")
        return entry.config

    async def write_config(self, config: StoredConfig, guard: Guard) -> None:
        """Write a VM's input and allocation, durable when this returns."""
        vm_id = config.vm_id
        async with self._lock(vm_id):
            entry = self._entries.get(vm_id) or Entry(vm_id)
            if entry.unreadable:
                raise Unreadable(entry.unreadable)
            guard()
            await finish(self._write(Entry(vm_id, config, entry.status), CONFIG, config, guard))

    async def begin(self, status: StoredStatus, guard: Guard) -> None:
        """Write the status of a create that begins, whatever an earlier attempt's said."""
        vm_id = status.vm_id
        async with self._lock(vm_id):
            entry = self._entries.get(vm_id)
            if entry is None or entry.config is None:
                raise StepFailed("the VM's configuration must be written before its status")
            guard()
            await finish(self._write(Entry(vm_id, entry.config, status), STATUS, status, guard))

    async def update(self, vm_id: str, change: Callable[[StoredStatus], StoredStatus], guard: Guard) -> StoredStatus:
        """Change a VM's status, durable when this returns; nothing is written when the change changes nothing."""
        async with self._lock(vm_id):
            guard()
            old = self.status(vm_id)
            new = change(old)
            if new == old:
                return old
            await finish(self._write(Entry(vm_id, self._entries[vm_id].config, new), STATUS, new, guard))
            return new

    async def remove(self, vm_id: str, guard: Guard) -> None:
        """Remove a VM's whole folder, also one that cannot be read; absence is as good. The status goes last."""
        async with self._lock(vm_id):
            guard()
            await finish(self._remove_and_forget(vm_id))

    def _lock(self, vm_id: str) -> asyncio.Lock:
        return self._locks.setdefault(check_label(vm_id), asyncio.Lock())

    async def _write(self, entry: Entry, name: str, stored: StoredConfig | StoredStatus, guard: Guard) -> None:
        """Write a file, then memory; the caller awaits the end of both, also while it is cancelled.

        What somebody else removed of the record comes back with it, so that a VM without its folder can be deleted
        like any other (case E6).
        """
        folder = self.folder(entry.vm_id)

        def write() -> None:
            guard()  # the newest order may have come while this waited for its thread
            if name == STATUS and entry.config is not None and not (folder / CONFIG).exists():
                self._write_file(folder, CONFIG, entry.config)
            self._write_file(folder, name, stored)

        await asyncio.to_thread(write)
        self._entries[entry.vm_id] = entry

    def _write_file(self, folder: Path, name: str, stored: StoredConfig | StoredStatus) -> None:
        if name == CONFIG:
            if not self._root.exists():
                make_folder(self._root)
            make_folder(folder)
        data = json.dumps(stored.model_dump(mode="json"), separators=(",", ":")).encode()
        self._write_durably(folder / name, data, mode=0o600)

    async def _remove_and_forget(self, vm_id: str) -> None:
        await asyncio.to_thread(_remove, self.folder(vm_id))
        self._entries.pop(vm_id, None)


def find_owners(folder: Path) -> set[int]:
    """Find the users that own files of a VM's folder; what vanishes meanwhile, or is no folder, counts for nothing."""
    owners: set[int] = set()
    if folder.is_symlink():
        return owners
    with translated("look at a VM's folder"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                owners.add(path.lstat().st_uid)
    return owners


def _remove(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        remove_durably(folder)
        return
    if not folder.exists():
        return
    with translated("remove the VM's folder"):
        for path in folder.iterdir():
            if path.name == STATUS:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        remove_durably(folder / STATUS)
        folder.rmdir()
        with open_folder(folder.parent) as parent:
            os.fsync(parent)


def _read_both(folder: Path) -> tuple[StoredConfig | None, StoredStatus | None]:
    """Read both files; when only one of them is there, look again before believing it (H-S9)."""
    for look in range(LOOKS):
        config = read_stored(folder / CONFIG, StoredConfig, folder.name)
        status = read_stored(folder / STATUS, StoredStatus, folder.name)
        if (config is None) == (status is None) or look == LOOKS - 1:
            return config, status
        time.sleep(LOOK_SECONDS)
    raise AssertionError("the last look always returns")


def _read(folder: Path) -> Entry:
    vm_id = folder.name
    if folder.is_symlink() or not folder.is_dir():
        return Entry(vm_id, unreadable=f"{vm_id} among the records is no folder: remove it or delete the VM")
    try:
        remove_leftovers(folder)
        config, status = _read_both(folder)
    except (Unreadable, StepFailed) as error:
        return Entry(vm_id, unreadable=error.detail)
    if config is None and status is None and any(folder.iterdir()):
        return Entry(vm_id, unreadable=f"{CONFIG} and {STATUS} are missing, but files of a VM are there")
    if config is None and status is not None and status.record.destroyed != DESTROYED:
        return Entry(vm_id, unreadable=f"{CONFIG} is missing beside {STATUS}")
    return Entry(vm_id, config, status)
