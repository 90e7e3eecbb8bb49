"""Guests that are only told of: every promise of the interface, and every way in which one may be broken (X-4)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

from drivers.hypervisor import SIMULATED, Availability, Guest, GuestEvent, GuestState, GuestVolume
from drivers.hypervisor.qemu_state import NO_SPACE, Seen, read_state
from drivers.names import HostNames
from drivers.simulated import Controls, Simulation, What, read_disk, write_disk
from model.errors import Permanent, StepFailed
from model.process import ProcessRecord
from model.volume import volume_serial

LOOK_SECONDS = 0.2
END_LOOK_SECONDS = 0.02
PAUSES: dict[str, What] = {
    "io-error": "io-error",
    NO_SPACE: "no-space",
    "guest-panic": "panic",
    "internal-error": "internal-error",
}
"""What pauses a guest, by the hypervisor's reason."""


class Simulated:
    """The `Hypervisor` of a simulated machine. Its guests answer in the words of QEMU's run states.

    allowed: whether new guests may be made; those that are there are managed in any case.
    """

    name = SIMULATED

    def __init__(self, simulation: Simulation, names: HostNames, *, allowed: bool) -> None:
        self._simulation = simulation
        self._names = names
        self._allowed = allowed

    async def find_availability(self) -> tuple[Availability, ...]:
        why = "its guests are only told of, for demonstration and tests; chosen by name only"
        if not self._allowed:
            why = "the host's settings do not allow simulated guests: set HOSTLER_HOST_SIMULATED_GUESTS=beside"
        return (Availability(name=SIMULATED, available=self._allowed, why=why),)

    async def boot(
        self, guest: Guest, tap_fd: int, *, record: Callable[[ProcessRecord], Awaitable[None]]
    ) -> ProcessRecord:
        del tap_fd
        controls = self._simulation.controls(guest.vm_id)
        await asyncio.sleep(controls.answer_seconds)
        if self._simulation.processes(guest.vm_id):
            raise StepFailed("a process of this VM still lives: end it before the guest is booted")
        for path in (guest.disk, guest.seed, *(volume.path for volume in guest.volumes)):
            if not await asyncio.to_thread(path.is_file):
                raise StepFailed(f"{path.name} of the guest is missing on the host")
        if self._simulation.refused(guest.vm_id) < controls.refuse_boots:
            self._simulation.append("refuse", guest.vm_id)
            raise StepFailed(f"the simulated hypervisor refused the boot: {controls.said or 'it was told to'}")
        process = self._simulation.new_process(guest.uid)
        await record(process)
        volumes = tuple(volume_serial(each.volume_id) for each in guest.volumes)
        self._simulation.append(
            "boot", guest.vm_id, process=process, volumes=volumes, **self._plan_exit(guest, controls)
        )
        if await self.await_end(guest, process, controls.boot_seconds):
            await self.end(guest, process, 1)
            raise StepFailed(f"the simulated guest ended while it started: {controls.said or 'it said nothing'}")
        await self._answer("boot", controls)
        return process

    def _plan_exit(self, guest: Guest, controls: Controls) -> dict[str, object]:
        seconds = controls.exit_after_seconds
        if seconds is None or self._simulation.boots(guest.vm_id) >= (controls.exit_boots or 1 << 62):
            return {}
        due = time.time() + seconds
        return {"due": due, "what": controls.exit_as, "said": controls.said}

    async def find(self, guest: Guest, process: ProcessRecord | None) -> GuestState:
        await asyncio.sleep(self._simulation.controls(guest.vm_id).answer_seconds)
        return self._see(guest, process).state

    def _see(self, guest: Guest, process: ProcessRecord | None) -> Seen:
        left = self._simulation.processes(guest.vm_id)
        mine = [found for found in left if found.record == process]
        if not left:
            said = self._simulation.last_words(guest.vm_id) if process is not None else ""
            return read_state(None, None, recorded=process is not None, detail=said)
        live = (mine or left)[0]
        if not self._simulation.controls(guest.vm_id).answers:
            return read_state(live.record, None, recorded=bool(mine), detail="the simulated guest does not answer")
        remains = live.status == NO_SPACE and self._simulation.controls(guest.vm_id).pause_stays
        return read_state(live.record, live.status, recorded=bool(mine), cause_remains=remains)

    async def pause(self, guest: Guest, process: ProcessRecord) -> None:
        await self._ask("pause", guest, process)

    async def resume(self, guest: Guest, process: ProcessRecord) -> None:
        paused_by = self._see(guest, process).state.paused_by_hypervisor
        await self._ask("resume", guest, process)
        if paused_by is not None and self._simulation.controls(guest.vm_id).pause_stays:
            self._simulation.cause(guest.vm_id, PAUSES[paused_by])

    async def ask_to_stop(self, guest: Guest, process: ProcessRecord) -> None:
        deaf = self._simulation.controls(guest.vm_id).ignores_power_button
        deaf = deaf or self._see(guest, process).state.power != "running"
        await self._ask("press", guest, process, what=None if deaf else "poweroff")

    async def end(self, guest: Guest, process: ProcessRecord | None, timeout_seconds: float) -> None:
        del process
        if guest.uid not in self._names.users:
            raise Permanent("the VM's user is none of this installation's: nothing of it is ended")
        controls = self._simulation.controls(guest.vm_id)
        left = self._simulation.processes(guest.vm_id)
        if left and controls.survives_kill:
            await asyncio.sleep(timeout_seconds)
            raise StepFailed(f"{len(left)} of the VM's processes did not end within {timeout_seconds:g} s")
        await self.kill_strays([found.record for found in left])
        if left:
            await self._answer("end", controls)

    async def await_end(self, guest: Guest, process: ProcessRecord, timeout_seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while True:
            state = self._see(guest, process).state
            if state.ended is not None or state.process != process:
                return True
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            await asyncio.sleep(min(left, END_LOOK_SECONDS))

    async def grow_disk(self, guest: Guest, process: ProcessRecord, size_bytes: int) -> None:
        now = await asyncio.to_thread(read_disk, guest.disk)
        if now is not None and now > size_bytes:
            raise Permanent(f"the root disk has {now} bytes and cannot shrink to {size_bytes}")
        await self._hear(guest, "grow", process)
        await asyncio.to_thread(write_disk, guest.disk, size_bytes)
        await self._act("grow", guest, process, size_bytes=size_bytes)

    async def attach_volume(self, guest: Guest, process: ProcessRecord, volume: GuestVolume) -> None:
        await self._hear(guest, "attach", process)
        if not await asyncio.to_thread(volume.path.is_file):
            raise StepFailed(f"{volume.path.name} of a volume is missing on the host")
        if (await asyncio.to_thread(volume.path.stat)).st_size < volume.size_bytes:
            await asyncio.to_thread(os.truncate, volume.path, volume.size_bytes)
        serial = volume_serial(volume.volume_id)
        if serial not in await self.find_volumes(guest, process):
            await self._act("attach", guest, process, volumes=(serial,))

    async def detach_volume(self, guest: Guest, process: ProcessRecord, volume_id: str) -> None:
        await self._hear(guest, "detach", process)
        serial = volume_serial(volume_id)
        if serial not in await self.find_volumes(guest, process):
            return
        if self._simulation.controls(guest.vm_id).keeps_volumes:
            raise StepFailed("the simulated guest has not let the volume go: stop the guest; it is asked again")
        await self._act("detach", guest, process, volumes=(serial,))

    async def find_volumes(self, guest: Guest, process: ProcessRecord) -> frozenset[str]:
        found = [each for each in self._simulation.processes(guest.vm_id) if each.record == process]
        return frozenset(serial for each in found for serial in each.volumes)

    async def release(self, vm_id: str, sockets: Path) -> None:
        """Do nothing: a boot makes nothing beside the process."""

    def find_console(self, guest: Guest) -> Path | None:
        return None

    async def watch(self, guest: Guest, process: ProcessRecord) -> AsyncGenerator[GuestEvent]:
        last: GuestState | None = None
        while True:
            seen = self._see(guest, process)
            for event in seen.find_events(last):
                yield event
            if seen.state.process is None:
                return
            if seen.state.power is not None:
                last = seen.state
            await asyncio.sleep(LOOK_SECONDS)

    async def find_processes(self) -> list[ProcessRecord]:
        return [found.record for found in self._simulation.processes()]

    async def find_strays(self, vm_id: str, owners: set[int]) -> list[ProcessRecord]:
        del owners
        return [found.record for found in self._simulation.processes(vm_id)]

    async def kill_strays(self, processes: Sequence[ProcessRecord]) -> None:
        for found in self._simulation.processes():
            if found.record in processes:
                self._simulation.append("kill", found.vm_id, process=found.record)

    async def _ask(self, call: str, guest: Guest, process: ProcessRecord, **more: object) -> None:
        """Cause what a call asks of a live process; then answer, late or never if so told."""
        await self._hear(guest, call, process)
        await self._act(call, guest, process, **more)

    async def _hear(self, guest: Guest, call: str, process: ProcessRecord) -> None:
        controls = self._simulation.controls(guest.vm_id)
        await asyncio.sleep(controls.answer_seconds)
        if not any(found.record == process for found in self._simulation.processes(guest.vm_id)):
            raise StepFailed(f"the guest's process is gone: {call} reaches nobody")
        if not controls.answers:
            raise StepFailed(f"the simulated guest did not answer {call}")

    async def _act(self, call: str, guest: Guest, process: ProcessRecord, **more: object) -> None:
        self._simulation.append(call, guest.vm_id, process=process, **more)
        await self._answer(call, self._simulation.controls(guest.vm_id))

    async def _answer(self, call: str, controls: Controls) -> None:
        how = controls.lost.get(call)
        if how == "hang":
            await asyncio.Event().wait()
        elif how == "raise":
            raise StepFailed(f"the simulated hypervisor's answer to {call} was lost")
