"""The hypervisors of one host as one: each call goes to the one that a guest names, a search to all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from drivers.hypervisor import Availability, Guest, GuestEvent, GuestState, GuestVolume, Hypervisor
from model.errors import StepFailed
from model.process import ProcessRecord


class Hypervisors:
    """A `Hypervisor` made of several."""

    name = "any"

    def __init__(self, *drivers: Hypervisor) -> None:
        self._drivers = {driver.name: driver for driver in drivers}

    async def find_availability(self) -> tuple[Availability, ...]:
        found = await asyncio.gather(*(driver.find_availability() for driver in self._drivers.values()))
        return tuple(each for several in found for each in several)

    async def boot(
        self, guest: Guest, tap_fd: int, *, record: Callable[[ProcessRecord], Awaitable[None]]
    ) -> ProcessRecord:
        return await self._of(guest).boot(guest, tap_fd, record=record)

    async def find(self, guest: Guest, process: ProcessRecord | None) -> GuestState:
        return await self._of(guest).find(guest, process)

    async def pause(self, guest: Guest, process: ProcessRecord) -> None:
        await self._of(guest).pause(guest, process)

    async def resume(self, guest: Guest, process: ProcessRecord) -> None:
        await self._of(guest).resume(guest, process)

    async def ask_to_stop(self, guest: Guest, process: ProcessRecord) -> None:
        await self._of(guest).ask_to_stop(guest, process)

    async def end(self, guest: Guest, process: ProcessRecord | None, timeout_seconds: float) -> None:
        await self._of(guest).end(guest, process, timeout_seconds)

    async def await_end(self, guest: Guest, process: ProcessRecord, timeout_seconds: float) -> bool:
        return await self._of(guest).await_end(guest, process, timeout_seconds)

    async def grow_disk(self, guest: Guest, process: ProcessRecord, size_bytes: int) -> None:
        await self._of(guest).grow_disk(guest, process, size_bytes)

    async def attach_volume(self, guest: Guest, process: ProcessRecord, volume: GuestVolume) -> None:
        await self._of(guest).attach_volume(guest, process, volume)

    async def detach_volume(self, guest: Guest, process: ProcessRecord, volume_id: str) -> None:
        await self._of(guest).detach_volume(guest, process, volume_id)

    async def find_volumes(self, guest: Guest, process: ProcessRecord) -> frozenset[str]:
        return await self._of(guest).find_volumes(guest, process)

    async def release(self, vm_id: str, sockets: Path) -> None:
        for driver in self._drivers.values():
            await driver.release(vm_id, sockets)

    def find_console(self, guest: Guest) -> Path | None:
        return self._of(guest).find_console(guest)

    def watch(self, guest: Guest, process: ProcessRecord) -> AsyncIterator[GuestEvent]:
        return self._of(guest).watch(guest, process)

    async def find_processes(self) -> list[ProcessRecord]:
        found = await asyncio.gather(*(driver.find_processes() for driver in self._drivers.values()))
        return [process for several in found for process in several]

    async def find_strays(self, vm_id: str, owners: set[int]) -> list[ProcessRecord]:
        found = await asyncio.gather(*(driver.find_strays(vm_id, owners) for driver in self._drivers.values()))
        return [process for several in found for process in several]

    async def kill_strays(self, processes: Sequence[ProcessRecord]) -> None:
        for driver in self._drivers.values():
            await driver.kill_strays(processes)

    def _of(self, guest: Guest) -> Hypervisor:
        driver = self._drivers.get(guest.hypervisor)
        if driver is None:
            raise StepFailed(f"this host has no hypervisor {guest.hypervisor!r}, with which the guest was made")
        return driver
