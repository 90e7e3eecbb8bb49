"""Ending a guest: asked first where its user may lose data, then by force, and proven (L-V3, S-11)."""

from __future__ import annotations

import contextlib
import time

from drivers.host.exits import STOPPED, note_exit
from drivers.host.look import Looker
from drivers.host.parts import Parts
from drivers.hypervisor import Guest
from drivers.jobs import Job
from drivers.processes import await_end
from model.errors import StepFailed
from model.process import ProcessRecord

KILL_SECONDS = 15.0
ASK_AGAIN_SECONDS = 2.0


class Ending:
    """End the guest of a VM whose lock the job holds."""

    def __init__(self, parts: Parts, looker: Looker) -> None:
        self._parts = parts
        self._looker = looker
        self._asked: dict[str, float] = {}

    def may_still_end(self, vm_id: str, seconds: float) -> bool:
        """Say whether the guest was asked to stop within so many seconds, and that stop was not carried through."""
        asked = self._asked.get(vm_id)
        return asked is not None and time.monotonic() - asked < seconds

    async def stop(self, job: Job, vm_id: str, timeout_seconds: float) -> None:
        """Press the power button until the guest has ended or the time is over, then kill; return when it is gone."""
        entry = self._parts.records.find(vm_id)
        if entry is None or entry.config is None or entry.status is None:
            await self.kill(job, vm_id)
            return
        guest, process = self._parts.guest(entry.config, entry.status), entry.status.process
        state = await self._parts.hypervisor.find(guest, process)
        heeded = True
        if process is not None and state.process == process and state.ended is None:
            heeded = await self._ask(job, guest, process, paused=state.power == "paused", seconds=timeout_seconds)
        await self.kill(job, vm_id, stopped=STOPPED if heeded else _by_force(timeout_seconds))
        self._asked.pop(vm_id, None)

    async def _ask(self, job: Job, guest: Guest, process: ProcessRecord, *, paused: bool, seconds: float) -> bool:
        """Ask again and again: a guest that is still booting does not hear the first time (case A8).

        Say whether it ended.
        """
        hypervisor, deadline = self._parts.hypervisor, time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            job.guard()
            # One that cannot be asked now is asked again, and killed in the end: its user wants it stopped.
            with contextlib.suppress(StepFailed):
                if paused:
                    await hypervisor.resume(guest, process)
                self._asked[guest.vm_id] = time.monotonic()
                await hypervisor.ask_to_stop(guest, process)
            if await hypervisor.await_end(guest, process, min(left, ASK_AGAIN_SECONDS)):
                return True
        return False

    async def kill(self, job: Job, vm_id: str, *, stopped: str = STOPPED) -> None:
        """End every process of a VM and prove that none is left; why its guest ended is recorded before (L-V4).

        stopped: how a stop that was asked for came about.
        """
        entry = self._parts.records.find(vm_id)
        if entry is None or entry.config is None:
            await self._kill_strays(job, vm_id)
            return
        guest, status = self._parts.guest(entry.config, entry.status), entry.status
        process = status.process if status else None
        state = await self._parts.hypervisor.find(guest, process)
        if status is not None and state.ended is not None:
            status = await note_exit(self._parts, status, state, job.guard)
        if state.process is not None:
            job.guard()
            await self._parts.hypervisor.end(guest, process, KILL_SECONDS)
            state = await self._parts.hypervisor.find(guest, process)
        if state.process is not None:
            raise StepFailed("a process of the VM is still there: it will be ended again")
        if status is not None:
            await note_exit(self._parts, status, state, job.guard, stopped=stopped)

    async def _kill_strays(self, job: Job, vm_id: str) -> None:
        """End what is found of a VM whose record cannot be read, or is gone (L-G8)."""
        deadline = time.monotonic() + KILL_SECONDS
        while strays := await self._looker.find_strays(vm_id):
            if time.monotonic() > deadline:
                raise StepFailed("a process of the VM is still there: it will be ended again")
            job.guard()
            await self._parts.hypervisor.kill_strays(strays)
            await await_end(strays[0], 0.5)


def _by_force(seconds: float) -> str:
    return (
        f"it was stopped by force: it did not end within {seconds:g} s of being asked" if seconds else "it was killed"
    )
