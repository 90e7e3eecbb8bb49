"""Running, paused, stopped: the steps that change what a guest does now (L-V2, L-V3, L-V7)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from drivers.host.ending import Ending
from drivers.host.exits import note_exit
from drivers.host.parts import Parts
from drivers.host.prepare import attempt_of, is_making
from drivers.host.storage import abandon_image
from drivers.hypervisor import GuestState
from drivers.jobs import Job
from drivers.stored import StoredConfig, StoredStatus
from model.errors import StepFailed, Superseded
from model.process import ProcessRecord
from model.record import HostOrder

Change = Callable[[StoredStatus], StoredStatus]
Say = Callable[[str], None]
Record = Callable[[ProcessRecord], Awaitable[None]]


class PowerSteps:
    """Start, pause, resume and stop guests."""

    def __init__(self, parts: Parts, ending: Ending) -> None:
        self._parts = parts
        self._ending = ending

    async def boot(self, job: Job, order: HostOrder, say: Say) -> str | None:
        """Let exactly one process run for the VM; the text of L-G10 when no boot slot came free within a minute.

        One that lives and was asked to stop just now may still end, which then is that stop's doing: it is waited for.
        """
        vm_id = order.vm_id
        self._check_wanted(order)
        if (await self._find(vm_id)).power not in ("running", "paused"):
            config = self._parts.records.config(vm_id)
            waiting = await self._parts.boot_slots.take(
                vm_id, say, boot_priority=config.input.boot_priority, created_at=config.input.created_at
            )
            if waiting is not None:
                return waiting
            say("starting the guest")
        elif self._is_ending(order):
            return "waiting whether the guest ends: it was asked to stop"
        async with job.locked():
            try:
                await self._boot(job, order)
            except BaseException:
                self._parts.boot_slots.release(vm_id)
                raise
        return None

    def _is_ending(self, order: HostOrder) -> bool:
        intended = self._parts.records.status(order.vm_id).record.stop_intended
        return intended and self._ending.may_still_end(order.vm_id, order.stop_timeout_seconds)

    async def _boot(self, job: Job, order: HostOrder) -> None:
        vm_id = order.vm_id
        status = self._check_wanted(order)
        for each in status.record.volumes:
            if each.size_bytes:
                await self._parts.volumes.check(each.volume_id)
        state = await self._find(vm_id)
        if state.process is not None and state.process == status.process and state.ended is None:
            if state.power is None:
                raise StepFailed(f"the guest's process lives but does not answer: {state.detail}")
            self._parts.boot_slots.release(vm_id)
        else:
            await note_exit(self._parts, status, state, job.guard)
            self._check_wanted(order)
            await self._ending.kill(job, vm_id)
            await self._start(job, order)
        await self._change(job, vm_id, lambda s: self._booted(s, order))
        self._parts.started(vm_id)

    def _check_wanted(self, order: HostOrder) -> StoredStatus:
        status = self._parts.records.status(order.vm_id)
        record = status.record
        if order.setbacks is not None and order.setbacks < (status.setback.number if status.setback else 0):
            raise Superseded("the guest has ended by itself since the pass looked: that is counted first")
        if record.quarantined_at is not None:
            raise Superseded("the VM is in quarantine on its host: it must be taken out before it is booted")
        if {each.volume_id for each in order.volumes} - {each.volume_id for each in record.volumes if each.size_bytes}:
            raise Superseded("a volume of the VM is not made sure of: that comes before its boot")
        if is_making(record):
            create = attempt_of(record, order)
            if not (create.image and create.disk and create.seed):
                raise Superseded("a part of the VM is missing: its create goes on where it stands")
        return status

    async def _start(self, job: Job, order: HostOrder) -> None:
        """Start a process: the record names it before it begins (L-G3), and says since when it runs once it does.

        So the end of one that never ran is no end of a guest (L-V5): its boot is paced and told as the failed step.
        """
        parts, vm_id = self._parts, order.vm_id
        status = await self._change(job, vm_id, lambda s: _recorded(s, stop_intended=False))
        config = parts.records.config(vm_id)
        attachment = parts.attachment(config)
        await parts.network.ensure(attachment, guard=job.guard)

        async def record(process: ProcessRecord) -> None:
            named = process.model_copy(update={"boot_id": parts.boot_id()})
            again = int(status.record.boot_id is not None and status.started_at is not None)

            def change(now: StoredStatus) -> StoredStatus:
                begun = {"process": named, "turned_off": False, "stalled": False, "started_at": None}
                return now.model_copy(update={**begun, "restart_count": now.restart_count + again})

            await parts.records.update(vm_id, change, job.guard)

        tap = parts.network.open_tap(attachment)
        try:
            job.guard()
            await self._launch(config, status, tap, record)
        finally:
            os.close(tap)

    async def _launch(self, config: StoredConfig, status: StoredStatus, tap: int, record: Record) -> None:
        guest = self._parts.guest(config, status)
        await self._parts.hypervisor.boot(guest, tap, record=record)

    def _booted(self, status: StoredStatus, order: HostOrder) -> StoredStatus:
        record = status.record
        if status.started_at is None:
            status = status.model_copy(update=_started(order))
        if record.boot_id is None:
            create = attempt_of(record, order).model_copy(update={"booted": True})
            return _recorded(status, create=create, stop_intended=False)
        return _recorded(status, boot_id=self._parts.boot_id(), stop_intended=False)

    async def pause(self, job: Job, order: HostOrder) -> None:
        await self._turn(job, order, "paused")

    async def resume(self, job: Job, order: HostOrder) -> None:
        await self._turn(job, order, "running")

    async def _turn(self, job: Job, order: HostOrder, wanted: str) -> None:
        """Pause or resume a guest; that it is so already is as good."""
        async with job.locked():
            status = self._parts.records.status(order.vm_id)
            guest = self._parts.guest(self._parts.records.config(order.vm_id), status)
            state = await self._find(order.vm_id)
            if state.process is None or state.process != status.process or state.ended is not None:
                raise StepFailed(f"the guest is not running: it cannot be made {wanted}")
            if state.power == wanted:
                return
            job.guard()
            if wanted == "paused":
                await self._parts.hypervisor.pause(guest, state.process)
            else:
                if state.paused_by_hypervisor is not None:
                    # If it is paused again, that is another time (L-V11).
                    again = {"stalled": False, "started_at": datetime.now(UTC)}
                    await self._change(job, order.vm_id, lambda s: s.model_copy(update=again))
                await self._parts.hypervisor.resume(guest, state.process)

    async def stop(self, job: Job, order: HostOrder) -> None:
        """Stop the guest; the intent is durable before it is asked (L-V3)."""
        async with job.locked():
            await self._stop(job, order)

    async def _stop(self, job: Job, order: HostOrder, **intent: object) -> None:
        vm_id = order.vm_id
        if self._parts.records.find(vm_id) is None:
            return
        await self._change(job, vm_id, lambda s: _recorded(s, stop_intended=True, **intent))
        self._parts.boot_slots.release(vm_id)
        await self._ending.stop(job, vm_id, order.stop_timeout_seconds)
        await self._change(job, vm_id, self._at_rest)

    def _at_rest(self, status: StoredStatus) -> StoredStatus:
        """Take this boot of the host over: the guest is gone and was meant to be (L-V1)."""
        status = status.model_copy(update={"turned_off": False})
        if status.record.boot_id is None:
            return status
        return _recorded(status, boot_id=self._parts.boot_id(), stop_intended=True)

    async def record_stop(self, job: Job, order: HostOrder) -> None:
        """Record the stop of a guest that is gone already; nothing boots (L-V2)."""
        async with job.locked():
            status = self._parts.records.status(order.vm_id)
            state = await self._find(order.vm_id)
            if state.process is not None:
                raise StepFailed("the guest still runs: it must be stopped, not only recorded so")
            self._parts.boot_slots.release(order.vm_id)
            await note_exit(self._parts, status, state, job.guard)
            await self._change(job, order.vm_id, self._at_rest)

    async def note_restart(self, job: Job, order: HostOrder) -> None:
        """Name the process that a restart replaces, before it is stopped, once per restart (L-V7)."""
        async with job.locked():
            status = self._parts.records.status(order.vm_id)
            record, wanted = status.record, order.restart_generation
            if record.applied_restart_generation >= wanted:
                return
            noted = wanted if record.restart_of_generation is None else record.restart_of_generation
            if record.restart_of is not None and noted >= wanted:
                return
            state = await self._find(order.vm_id)
            if state.process is None or state.process != status.process:
                raise StepFailed("there is no running guest that a restart could replace")
            process = state.process
            await self._change(
                job, order.vm_id, lambda s: _recorded(s, restart_of=process, restart_of_generation=wanted)
            )

    async def quarantine(self, job: Job, order: HostOrder) -> None:
        """Stop the guest for its quarantine: intent and moment are durable first (L-R2)."""
        async with job.locked():
            entry = self._parts.records.find(order.vm_id)
            if entry is None or (entry.status is None and not entry.unreadable):
                return
            since = self._parts.records.status(order.vm_id).record.quarantined_at or datetime.now(UTC)
            self._parts.create_slots.release(order.vm_id)
            await self._stop(job, order, quarantined_at=since)
            await abandon_image(self._parts, order.vm_id)

    async def release(self, job: Job, order: HostOrder) -> None:
        """Take the VM out of quarantine; the stop intent stays until it is booted (L-R4)."""
        async with job.locked():
            await self._change(job, order.vm_id, lambda s: _recorded(s, quarantined_at=None))

    async def _find(self, vm_id: str) -> GuestState:
        status = self._parts.records.status(vm_id)
        guest = self._parts.guest(self._parts.records.config(vm_id), status)
        return await self._parts.hypervisor.find(guest, status.process)

    async def _change(self, job: Job, vm_id: str, change: Change) -> StoredStatus:
        return await self._parts.records.update(vm_id, change, job.guard)


def _started(order: HostOrder) -> dict[str, object]:
    return {"started_at": datetime.now(UTC), "started_for": order.generation + order.restart_generation}


def _recorded(status: StoredStatus, **changed: object) -> StoredStatus:
    return status.model_copy(update={"record": status.record.model_copy(update=changed)})
