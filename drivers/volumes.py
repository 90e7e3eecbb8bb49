"""The volumes of one host: sparse files with records of their own, in `volumes/<id>/` (H-V1 to H-V4).

A volume's record says that it was made, so that one whose file is missing is never made anew in silence (L-C11). Who
has it is told by that VM's record alone: the volume's own names the VM that had it last, for where that one cannot be
read. Files belong to root: a hypervisor gets them as descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pydantic

from drivers.durable import (
    Write,
    give,
    make_folder,
    new_name,
    open_regular,
    publish_durably,
    remove_durably,
    remove_leftovers,
    translated,
)
from drivers.formats import LIMIT_BYTES, VOLUME, parse
from drivers.space import Space
from drivers.threads import finish, in_thread
from model.base import Frozen
from model.capacity import Entitlement
from model.errors import Busy, HostlerError, Permanent, StepFailed, Unreadable
from model.ids import check_label
from model.room import GIB, MIB
from model.versions import VERSION
from model.volume import VolumeReport, WantedVolume

RECORD, FILE = "volume.json", "disk"
Guard = Callable[[], None]
Holds = Callable[[str, str], bool]


class StoredVolume(Frozen):
    """volume.json. `made`: its file was there once. `vm_id`: the VM that had it last."""

    format: int = VOLUME.format
    release: str = VERSION
    volume_id: str
    size_bytes: int
    made: bool = False
    vm_id: str | None = None


@dataclass(frozen=True)
class VolumeEntry:
    """One volume's record as it is on disk; `unreadable` says why there is none to go by (L-G8)."""

    volume_id: str
    stored: StoredVolume | None = None
    unreadable: str | None = None


class Volumes:
    """All volumes of one host worker. What changes one is serial.

    holds: says whether a VM, by its record, has a volume; also where that record cannot be read. changed: called when
    there is something new to report.
    """

    def __init__(self, folder: Path, space: Space, holds: Holds, changed: Callable[[], None], write: Write) -> None:
        self._root = folder
        self._space = space
        self._holds = holds
        self._changed = changed
        self._write_durably = write
        self._entries: dict[str, VolumeEntry] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def load(self) -> None:
        """Read every record; one that cannot be read is neither repaired nor removed (L-G8)."""
        make_folder(self._root)
        with translated("list the volumes"):
            folders = sorted(self._root.iterdir())
        for path in folders:
            with contextlib.suppress(ValueError):
                entry = _read(path)
                if entry is not None:
                    self._entries[check_label(path.name)] = entry

    def __iter__(self) -> Iterator[VolumeEntry]:
        return iter(list(self._entries.values()))

    def path(self, volume_id: str) -> Path:
        """Return where a volume's file is."""
        return self._folder(volume_id) / FILE

    def committed(self) -> Iterator[tuple[str, Entitlement]]:
        """Give what each volume holds of the host, by a key that no VM has (H-A1)."""
        for entry in self:
            if entry.stored is not None:
                yield ledger_key(entry.volume_id), Entitlement(disk_gib=-(-entry.stored.size_bytes // GIB))

    def report(self) -> tuple[VolumeReport, ...]:
        """Tell the volumes that were made."""
        made = (entry.stored for entry in self if entry.stored is not None and entry.stored.made)
        return tuple(VolumeReport.model_validate(each, from_attributes=True) for each in made)

    @contextlib.asynccontextmanager
    async def claimed(self, volume_id: str, vm_id: str) -> AsyncGenerator[None]:
        """Let nobody else change a volume; raise Busy while another VM has it, by that one's record (H-V1)."""
        async with self._locks.setdefault(check_label(volume_id), asyncio.Lock()):
            holder = self._find_holder(volume_id)
            if holder not in (None, vm_id):
                raise Busy(f"the volume {volume_id} is still with the VM {holder} on this host: wait until it is free")
            yield

    async def ensure(self, wanted: WantedVolume, vm_id: str, guard: Guard, *, live: bool) -> int:
        """Have the volume's file for a VM that has claimed it; return the size in bytes that it is to have.

        live: a guest runs, whose hypervisor makes a file that is there larger. Raises Permanent where the volume was
        made once and its file is missing (L-C11), Unreadable, OutOfSpace.
        """
        volume_id = wanted.volume_id
        stored, found = self._known(volume_id), await in_thread(_find_size, self.path(volume_id))
        if found is None and (wanted.made or (stored is not None and stored.made)):
            raise _missing(volume_id)
        size = max(wanted.size_gib * GIB, stored.size_bytes if stored else 0, found or 0)
        was_made = stored is not None and stored.made
        begun = StoredVolume(volume_id=volume_id, size_bytes=size, made=was_made, vm_id=vm_id)
        await self._store(begun, guard)
        if found is None:
            await self._make(volume_id, size, guard)
        elif found < size and not live:
            guard()
            await in_thread(_grow, self.path(volume_id), size)
        await self._store(begun.model_copy(update={"made": True}), guard)
        return size

    async def check(self, volume_id: str) -> None:
        """Raise Permanent unless a volume's file is there (L-C11)."""
        if await in_thread(_find_size, self.path(volume_id)) is None:
            raise _missing(volume_id)

    async def remove(self, volume_id: str) -> None:
        """Remove a volume for good; that nothing of it is there is as good. Raises Busy while a VM has it."""
        async with self._locks.setdefault(check_label(volume_id), asyncio.Lock()):
            holder = self._find_holder(volume_id)
            if holder is not None:
                raise Busy(f"the volume {volume_id} is still with the VM {holder} on this host: it is not removed")
            if not await in_thread(self._folder(volume_id).exists) and volume_id not in self._entries:
                return
            await finish(self._remove(volume_id))
        self._changed()

    def _find_holder(self, volume_id: str) -> str | None:
        entry = self._entries.get(volume_id)
        last = entry.stored.vm_id if entry is not None and entry.stored is not None else None
        return last if last is not None and self._holds(last, volume_id) else None

    def _known(self, volume_id: str) -> StoredVolume | None:
        entry = self._entries.get(volume_id)
        if entry is not None and entry.unreadable is not None:
            raise Unreadable(f"the record of the volume {volume_id} cannot be read on its host: {entry.unreadable}")
        return entry.stored if entry is not None else None

    async def note_holder(self, volume_id: str, vm_id: str, size_bytes: int, guard: Guard) -> None:
        """Write down who is about to have a volume, before that VM's record says so."""
        stored = self._known(volume_id) or StoredVolume(volume_id=volume_id, size_bytes=size_bytes)
        await self._store(stored.model_copy(update={"vm_id": vm_id}), guard)

    async def _make(self, volume_id: str, size: int, guard: Guard) -> None:
        self._space.check(MIB, "a volume")
        new = self._folder(volume_id) / new_name(FILE)
        try:
            await in_thread(_create, new, size)
            guard()
            await in_thread(publish_durably, new, self.path(volume_id))
        except BaseException:
            await in_thread(remove_durably, new)
            raise

    async def _store(self, stored: StoredVolume, guard: Guard) -> None:
        guard()
        entry = self._entries.get(stored.volume_id)
        if entry is None or entry.stored != stored:
            await finish(self._write(stored, guard))
            self._changed()

    async def _write(self, stored: StoredVolume, guard: Guard) -> None:
        """Write the record, then memory; the caller awaits the end of both, also while it is cancelled."""
        data = json.dumps(stored.model_dump(mode="json"), separators=(",", ":")).encode()

        def write() -> None:
            guard()
            make_folder(self._root)
            make_folder(self._folder(stored.volume_id))
            self._write_durably(self._folder(stored.volume_id) / RECORD, data)

        await asyncio.to_thread(write)
        self._entries[stored.volume_id] = VolumeEntry(stored.volume_id, stored)

    async def _remove(self, volume_id: str) -> None:
        await asyncio.to_thread(remove_durably, self._folder(volume_id))
        self._entries.pop(volume_id, None)

    def _folder(self, volume_id: str) -> Path:
        return self._root / check_label(volume_id)


def ledger_key(volume_id: str) -> str:
    """Name a volume among what the ledger holds; no VM's id has a slash."""
    return f"volume/{volume_id}"


def _missing(volume_id: str) -> Permanent:
    return Permanent(
        f"the volume {volume_id} was made on this host, and its file is missing there: it is not made anew, since its "
        "data would be lost in silence; put the file back, or detach the volume and delete it"
    )


def _read(folder: Path) -> VolumeEntry | None:
    """Read a volume's record; None for a folder in which a worker that was killed had not written any yet."""
    name = folder.name
    try:
        remove_leftovers(folder)
        with os.fdopen(open_regular(folder / RECORD), "rb") as file:
            raw = parse(VOLUME, RECORD, file.read(LIMIT_BYTES + 1))
        stored = StoredVolume.model_validate(raw)
    except FileNotFoundError:
        is_empty = not any(folder.iterdir())
        return (
            None if is_empty else VolumeEntry(name, unreadable=f"{RECORD} is missing, but files of a volume are there")
        )
    except OSError as error:
        return VolumeEntry(name, unreadable=f"{RECORD} cannot be read: {error.strerror}")
    except pydantic.ValidationError:
        return VolumeEntry(name, unreadable=f"{RECORD} is corrupt")
    except HostlerError as error:
        return VolumeEntry(name, unreadable=error.detail)
    if stored.volume_id != name:
        return VolumeEntry(name, unreadable=f"{RECORD} belongs to another volume than its folder")
    return VolumeEntry(name, stored)


def _find_size(path: Path) -> int | None:
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StepFailed("a volume on the host is no regular file: look at it there") from error
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _create(path: Path, size: int) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with translated("make the volume"):
        descriptor = os.open(path, flags, 0o600)
        try:
            give(descriptor, mode=0o600)
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _grow(path: Path, size: int) -> None:
    with translated("grow the volume"):
        descriptor = open_regular(path, os.O_RDWR)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
