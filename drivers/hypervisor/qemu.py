"""Guests on QEMU: q35, virtio, KVM where it really works and emulation else (X-3)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

from drivers.cgroups import Cgroups
from drivers.confine import Confinement, Jail, await_end, is_alive, launch_detached
from drivers.durable import remove_durably
from drivers.hypervisor import QEMU, Availability, Guest, GuestEvent, GuestState, GuestVolume
from drivers.hypervisor.guest_files import opened_files
from drivers.hypervisor.monitor import Monitor
from drivers.hypervisor.qemu_arguments import build_arguments
from drivers.hypervisor.qemu_limits import MIB, find_limits, find_process_limits, raise_file_limit
from drivers.hypervisor.qemu_plugs import Plugs
from drivers.hypervisor.qemu_probe import find_availability, find_kvm_groups
from drivers.hypervisor.qemu_state import NO_SPACE, Seen, read_state
from drivers.hypervisor.words import LastWords
from drivers.names import HostNames
from drivers.processes import find_processes_of, find_start_time, kill_processes
from model.errors import Permanent, StepFailed
from model.process import ProcessRecord

LEAST_ROOM_BYTES = 4 * MIB
"""With less, a guest that was paused for want of room is not tried again."""

BOOT_SECONDS = 45.0
PLUG_SECONDS = 60.0
QUIT_SECONDS = 3.0
LOOK_SECONDS = 5.0
"""How often a watcher looks although nothing was heard."""
EVENT_PAUSE_SECONDS = 0.05
"""A guest may cause any number of events; they are looked after at this pace."""


class Qemu:
    """The `Hypervisor` of QEMU: one monitor connection per guest, everything else is looked at."""

    name = QEMU

    def __init__(self, names: HostNames, cgroups: Cgroups, boot_id: Callable[[], str]) -> None:
        self._names = names
        self._cgroups = cgroups
        self._boot_id = boot_id
        self._monitors: dict[str, Monitor] = {}
        self._words: dict[str, LastWords] = {}

    async def find_availability(self) -> tuple[Availability, ...]:
        return (await find_availability(),)

    async def boot(
        self, guest: Guest, tap_fd: int, *, record: Callable[[ProcessRecord], Awaitable[None]]
    ) -> ProcessRecord:
        arguments = build_arguments(guest)
        if await self._find_left(guest):
            raise StepFailed("a process of this VM still lives: end it before the guest is booted")
        await self._forget(guest.vm_id)
        joined = await asyncio.to_thread(self._make_cgroup, guest)
        words = self._words[guest.vm_id] = LastWords()
        try:
            with opened_files(guest, tap_fd) as descriptors:
                confinement = Confinement(
                    arguments,
                    uid=guest.uid,
                    gid=guest.gid,
                    groups=self._find_groups(guest),
                    descriptors=descriptors | {2: words.descriptor},
                    limits=find_process_limits(guest),
                    cgroup_files=joined,
                    bind=tuple(path for path in (guest.kernel, guest.initrd) if path is not None),
                    jail=Jail(devices=("kvm",) if guest.accelerator == "kvm" else ()),
                )
                process = await launch_detached(confinement, record=record, boot_id=self._boot_id())
        finally:
            words.hand_over()
        try:
            await self._await_running(guest, process, words)
        except StepFailed:
            await self.end(guest, process, QUIT_SECONDS + 5)
            raise
        return process

    async def _await_running(self, guest: Guest, process: ProcessRecord, words: LastWords) -> None:
        """Wait until QEMU answers and the guest runs, or say what QEMU said."""
        monitor = self._monitor(guest)
        deadline = asyncio.get_running_loop().time() + BOOT_SECONDS
        status = "no answer"
        while asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(StepFailed):
                status = await monitor.find_status()
                if status not in ("prelaunch", "inmigrate"):
                    return
            if await await_end(process, 0.02):
                raise StepFailed(f"QEMU ended while it started: {words.read(guest) or 'it said nothing'}")
        raise StepFailed(f"QEMU did not start the guest within {BOOT_SECONDS:g} s ({status})")

    async def find(self, guest: Guest, process: ProcessRecord | None) -> GuestState:
        return (await self._see(guest, process)).state

    async def _see(self, guest: Guest, process: ProcessRecord | None) -> Seen:
        """Look for the process first, by user and cgroup too, and ask the monitor only about one that lives."""
        left = await self._find_left(guest)
        # Of the guest's own user or cgroup, too: a record may be wrong, and a stranger is never taken for a guest.
        recorded = process in left
        live = process if recorded else (left[0] if left else None)
        if live is None:
            said = await asyncio.to_thread(self._find_last_words, guest)
            return read_state(None, None, recorded=process is not None, detail=said)
        try:
            status = await self._monitor(guest).find_status()
            if status == "io-error" and lacks_space(await self._monitor(guest).execute("query-block")):
                status = NO_SPACE
        except StepFailed as error:
            return read_state(live, None, recorded=recorded, detail=str(error))
        remains = status == NO_SPACE and await asyncio.to_thread(is_full, guest.disk.parent)
        return read_state(live, status, recorded=recorded, cause_remains=remains)

    def _make_cgroup(self, guest: Guest) -> tuple[Path, ...]:
        """Make the guest's cgroup anew, so that what the kernel counts in it is of this boot."""
        self._cgroups.remove(guest.vm_id)
        return self._cgroups.ensure(guest.vm_id, find_limits(guest))

    def _find_last_words(self, guest: Guest) -> str:
        """Say of a guest that is gone what the kernel did to it (H-A5), or else what QEMU said."""
        if self._cgroups.count_memory_kills(guest.vm_id):
            limit = find_limits(guest).memory_bytes // MIB
            return f"out of memory: the kernel killed it at the {limit} MiB that its guest and QEMU may take"
        words = self._words.get(guest.vm_id)
        return words.read(guest) if words is not None else ""

    async def pause(self, guest: Guest, process: ProcessRecord) -> None:
        await self._ask(guest, process, "stop")

    async def resume(self, guest: Guest, process: ProcessRecord) -> None:
        await self._ask(guest, process, "cont")

    async def ask_to_stop(self, guest: Guest, process: ProcessRecord) -> None:
        await self._ask(guest, process, "system_powerdown")

    async def end(self, guest: Guest, process: ProcessRecord | None, timeout_seconds: float) -> None:
        if guest.uid not in self._names.users:
            raise Permanent("the VM's user is none of this installation's: nothing of it is ended")
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        if process is not None and process in await self._find_left(guest):
            with contextlib.suppress(StepFailed):  # quitting writes out what QEMU itself still holds of the disk
                await self._monitor(guest).execute("quit", timeout_seconds=min(QUIT_SECONDS, timeout_seconds))
                await await_end(process, min(QUIT_SECONDS, timeout_seconds))
        await self._forget(guest.vm_id)
        while left := await self._find_left(guest):
            await asyncio.to_thread(kill_processes, left)
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                raise StepFailed(f"{len(left)} of the VM's processes did not end within {timeout_seconds:g} s")
            await await_end(left[0], min(remaining, 0.5))

    async def await_end(self, guest: Guest, process: ProcessRecord, timeout_seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds), contextlib.aclosing(self.watch(guest, process)) as events:
                async for event in events:
                    if event.kind in ("ended", "gone"):
                        return True
        return False

    async def grow_disk(self, guest: Guest, process: ProcessRecord, size_bytes: int) -> None:
        nodes = await self._ask(guest, process, "query-named-block-nodes", {"flat": True})
        now = find_virtual_size(nodes, "root")
        if now > size_bytes:
            raise Permanent(f"the root disk has {now} bytes and cannot shrink to {size_bytes}")
        raise_file_limit(guest, process, size_bytes)
        await self._ask(guest, process, "block_resize", {"node-name": "root", "size": size_bytes})

    async def attach_volume(self, guest: Guest, process: ProcessRecord, volume: GuestVolume) -> None:
        raise_file_limit(guest, process, volume.size_bytes)
        async with self._plugging(guest, process) as plugs:
            await plugs.attach(volume)

    async def detach_volume(self, guest: Guest, process: ProcessRecord, volume_id: str) -> None:
        async with self._plugging(guest, process) as plugs:
            await plugs.detach(volume_id)

    async def find_volumes(self, guest: Guest, process: ProcessRecord) -> frozenset[str]:
        async with self._plugging(guest, process) as plugs:
            return await plugs.find()

    @contextlib.asynccontextmanager
    async def _plugging(self, guest: Guest, process: ProcessRecord) -> AsyncGenerator[Plugs]:
        if not is_alive(process, self._boot_id()):
            raise StepFailed("the guest's process is gone: no volume reaches it")
        try:
            async with asyncio.timeout(PLUG_SECONDS):
                yield Plugs(self._monitor(guest))
        except TimeoutError as error:
            raise StepFailed(f"QEMU did not do with a volume what it was asked to within {PLUG_SECONDS:g} s") from error

    async def release(self, vm_id: str, sockets: Path) -> None:
        await self._forget(vm_id)
        words = self._words.pop(vm_id, None)
        if words is not None:
            words.close()
        await asyncio.to_thread(remove_durably, sockets)
        await asyncio.to_thread(self._cgroups.remove, vm_id)

    def find_console(self, guest: Guest) -> Path | None:
        return guest.sockets

    async def watch(self, guest: Guest, process: ProcessRecord) -> AsyncGenerator[GuestEvent]:
        last: GuestState | None = None
        moved = self._monitor(guest).moved
        while True:
            moved.clear()
            seen = await self._see(guest, process)
            for event in seen.find_events(last):
                yield event
            if seen.state.process is None:
                return
            if seen.state.power is not None:
                last = seen.state
            await self._await_move(guest, process)

    async def _await_move(self, guest: Guest, process: ProcessRecord) -> None:
        """Wait until an event is heard, the process ends, or it is time to look anyway."""
        await asyncio.sleep(EVENT_PAUSE_SECONDS)
        moved = asyncio.create_task(self._monitor(guest).moved.wait())
        ended = asyncio.create_task(await_end(process, LOOK_SECONDS))
        try:
            await asyncio.wait((moved, ended), return_when=asyncio.FIRST_COMPLETED, timeout=LOOK_SECONDS)
        finally:
            moved.cancel()
            ended.cancel()
            await asyncio.gather(moved, ended, return_exceptions=True)

    async def find_processes(self) -> list[ProcessRecord]:
        return await asyncio.to_thread(find_processes_of, self._names.users, self._boot_id())

    async def find_strays(self, vm_id: str, owners: set[int]) -> list[ProcessRecord]:
        pids = await asyncio.to_thread(self._cgroups.find_processes, vm_id)
        mine = [found for found in await self.find_processes() if found.uid in owners]
        boot_id = self._boot_id()
        for pid in set(pids) - {found.pid for found in mine}:
            started = find_start_time(pid)
            if started is not None:
                mine.append(ProcessRecord(pid=pid, start_time=started, boot_id=boot_id, uid=0))
        return mine

    async def kill_strays(self, processes: Sequence[ProcessRecord]) -> None:
        await asyncio.to_thread(kill_processes, list(processes))

    async def _find_left(self, guest: Guest) -> list[ProcessRecord]:
        """List what lives of a VM: processes of its user, and whatever is in its cgroup."""
        inside = await asyncio.to_thread(self._cgroups.find_processes, guest.vm_id)
        one = range(guest.uid, guest.uid + 1)
        return await asyncio.to_thread(find_processes_of, one, self._boot_id(), frozenset(inside))

    async def _ask(
        self, guest: Guest, process: ProcessRecord, command: str, arguments: dict[str, object] | None = None
    ) -> object:
        if not is_alive(process, self._boot_id()):
            raise StepFailed(f"the guest's process is gone: {command} reaches nobody")
        return await self._monitor(guest).execute(command, arguments)

    def _monitor(self, guest: Guest) -> Monitor:
        if guest.vm_id not in self._monitors:
            self._monitors[guest.vm_id] = Monitor(guest.sockets)
        return self._monitors[guest.vm_id]

    async def _forget(self, vm_id: str) -> None:
        monitor = self._monitors.get(vm_id)
        if monitor is not None:
            await monitor.close()

    def _find_groups(self, guest: Guest) -> tuple[int, ...]:
        return find_kvm_groups() if guest.accelerator == "kvm" else ()


def lacks_space(blocks: object) -> bool:
    """Say whether a disk in the answer to query-block was paused for want of room."""
    found = cast("list[object]", blocks) if isinstance(blocks, list) else []
    return any(
        isinstance(disk, dict) and cast("dict[str, object]", disk).get("io-status") == "nospace" for disk in found
    )


def is_full(folder: Path) -> bool:
    """Say whether a guest's disk surely cannot grow; where nobody can tell, it may."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < LEAST_ROOM_BYTES


def find_virtual_size(nodes: object, name: str) -> int:
    """Find a node's size in the answer to query-named-block-nodes; StepFailed when it is not what QEMU answers."""
    for node in cast("list[object]", nodes) if isinstance(nodes, list) else []:
        if isinstance(node, dict) and cast("dict[str, object]", node).get("node-name") == name:
            image = cast("dict[str, object]", node).get("image")
            size = cast("dict[str, object]", image).get("virtual-size") if isinstance(image, dict) else None
            if isinstance(size, int):
                return size
    raise StepFailed("QEMU does not know the guest's root disk")
