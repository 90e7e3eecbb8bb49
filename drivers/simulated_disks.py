"""Root disks of simulated guests: small files that say how large a disk would be (X-4)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from drivers.disks import DiskState, Guard
from drivers.durable import remove_durably
from drivers.images import BaseImage
from drivers.simulated import Simulation, read_disk, write_disk
from drivers.threads import in_thread
from model.errors import Permanent, StepFailed


class RootDisks(Protocol):
    """What a host does with its VMs' root disks; `Disks` says what each call promises."""

    async def make_overlay(
        self, base: BaseImage, path: Path, size_bytes: int | None, *, uid: int, gid: int, guard: Guard
    ) -> DiskState: ...

    async def grow(self, path: Path, size_bytes: int, *, uid: int, gid: int, guard: Guard) -> DiskState: ...

    async def find(self, path: Path) -> DiskState | None: ...

    async def remove(self, path: Path) -> None: ...


class SimulatedDisks:
    """The `RootDisks` of a simulated machine; a disk lies where a real one would, in the folder of its VM."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    async def make_overlay(
        self, base: BaseImage, path: Path, size_bytes: int | None, *, uid: int, gid: int, guard: Guard
    ) -> DiskState:
        del uid, gid
        if (found := await self.find(path)) is not None:
            return found
        size = size_bytes or base.virtual_size_bytes
        if size < base.virtual_size_bytes:
            raise Permanent("the root disk is to be smaller than its image; ask for a larger disk")
        return await self._write(path, size, "disk", guard)

    async def grow(self, path: Path, size_bytes: int, *, uid: int, gid: int, guard: Guard) -> DiskState:
        del uid, gid
        found = await self.find(path)
        if found is None:
            raise StepFailed("the root disk is missing on the host")
        if found.virtual_size_bytes > size_bytes:
            raise Permanent("a root disk cannot shrink; ask for no less than it has")
        if found.virtual_size_bytes == size_bytes:
            return found
        return await self._write(path, size_bytes, "grow", guard)

    async def find(self, path: Path) -> DiskState | None:
        size = await in_thread(read_disk, path)
        return None if size is None else DiskState("qcow2", size, 0)

    async def remove(self, path: Path) -> None:
        await in_thread(remove_durably, path)

    async def _write(self, path: Path, size: int, effect: str, guard: Guard) -> DiskState:
        guard()
        await in_thread(write_disk, path, size)
        self._simulation.append(effect, path.parent.name, size_bytes=size)
        return DiskState("qcow2", size, 0)
