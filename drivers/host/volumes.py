"""Volumes of a VM on this host: each made sure of, attached and let go by a step of its own (H-V2, L-C11).

The VM's record names a volume before anything is done with it, with a size of 0 until it is whole, so that whatever is
cut off is finished or let go by the VM's next pass.
"""

from __future__ import annotations

import logging

from drivers.host.ending import Ending
from drivers.host.parts import Parts
from drivers.host.prepare import attempt_of, is_making
from drivers.hypervisor import Guest, GuestVolume, Power
from drivers.jobs import Job
from drivers.stored import StoredStatus
from drivers.volumes import ledger_key
from model.capacity import Entitlement
from model.errors import HostlerError, StepFailed, Superseded, Unavailable
from model.process import ProcessRecord
from model.record import HostOrder
from model.volume import AttachedVolume, WantedVolume, in_order, volume_serial

_log = logging.getLogger("hostler.volumes")


class VolumeSteps:
    """Make sure of a VM's volumes, and let them go."""

    def __init__(self, parts: Parts, ending: Ending) -> None:
        self._parts = parts
        self._ending = ending
        self.gone: set[str] = set()
        """Volumes that this host was told to remove, and of which it found nothing then (H-V3)."""

    async def ensure_volume(self, job: Job, order: HostOrder) -> None:
        """Have the order's volume whole, and in the guest where one runs.

        Raises Busy while another VM has it, NoRoom over a cap, Permanent where it was made once and is missing.
        """
        wanted = _wanted(order)
        with self._parts.ledger.admitted(ledger_key(wanted.volume_id), Entitlement(disk_gib=wanted.size_gib)):
            async with job.locked():
                status = self._parts.records.status(order.vm_id)
                if is_making(status.record):
                    attempt_of(status.record, order)
                await self._ensure(job, order, wanted)

    async def _ensure(self, job: Job, order: HostOrder, wanted: WantedVolume) -> None:
        vm_id, volume_id, volumes = order.vm_id, wanted.volume_id, self._parts.volumes
        guest, process, _ = await self._find_live(vm_id)
        async with volumes.claimed(volume_id, vm_id):
            await volumes.note_holder(volume_id, vm_id, wanted.size_gib << 30, job.guard)
            await self._note(job, order, AttachedVolume(volume_id=volume_id, size_bytes=0), unless_there=True)
            size = await volumes.ensure(wanted, vm_id, job.guard, live=process is not None)
            if process is not None:
                job.guard()
                volume = GuestVolume(volume_id, volumes.path(volume_id), size)
                await self._parts.hypervisor.attach_volume(guest, process, volume)
            await self._note(job, order, AttachedVolume(volume_id=volume_id, size_bytes=size))

    async def detach_volume(self, job: Job, order: HostOrder) -> None:
        """Take the order's volume out of the guest, then out of the VM's record, which frees it for others."""
        vm_id, volume_id = order.vm_id, order.volume_id
        async with job.locked():
            guest, process, power = await self._find_live(vm_id)
            job.guard()
            if process is not None and volume_id is not None:
                serial = volume_serial(volume_id)
                if power == "paused" and serial in await self._parts.hypervisor.find_volumes(guest, process):
                    raise StepFailed("the guest is paused: it lets the volume go once it runs, or is stopped")
                await self._parts.hypervisor.detach_volume(guest, process, volume_id)
            else:
                await self._ending.kill(job, vm_id)  # of a guest that has ended the process may have it open still

            def change(status: StoredStatus) -> StoredStatus:
                left = tuple(each for each in status.record.volumes if each.volume_id != volume_id)
                return status.model_copy(update={"record": status.record.model_copy(update={"volumes": left})})

            await self._parts.records.update(vm_id, change, job.guard)

    async def remove(self, volume_ids: tuple[str, ...]) -> None:
        """Remove deleted volumes whose grace is over, and remember of which of them nothing is left (H-V3)."""
        self.gone.intersection_update(volume_ids)
        for volume_id in volume_ids:
            try:
                await self._parts.volumes.remove(volume_id)
            except HostlerError as error:
                _log.warning("the volume %s is not removed: %s", volume_id, error.detail)
            else:
                self.gone.add(volume_id)

    async def _find_live(self, vm_id: str) -> tuple[Guest, ProcessRecord | None, Power | None]:
        """Find the guest and its process, None where none runs; raises Unavailable where nobody can tell."""
        status = self._parts.records.status(vm_id)
        guest = self._parts.guest(self._parts.records.config(vm_id), status)
        state = await self._parts.hypervisor.find(guest, status.process)
        if state.process is None or state.ended is not None:
            return guest, None, None
        if state.power is None or state.process != status.process:
            raise Unavailable("the guest's process does not answer: its volumes are seen to when it does")
        return guest, state.process, state.power

    async def _note(self, job: Job, order: HostOrder, volume: AttachedVolume, *, unless_there: bool = False) -> None:
        def change(status: StoredStatus) -> StoredStatus:
            there = {each.volume_id: each for each in status.record.volumes}
            if not (unless_there and volume.volume_id in there):
                there[volume.volume_id] = volume
            volumes = in_order(there.values(), order.volumes)
            return status.model_copy(update={"record": status.record.model_copy(update={"volumes": volumes})})

        await self._parts.records.update(order.vm_id, change, job.guard)


def _wanted(order: HostOrder) -> WantedVolume:
    for each in order.volumes:
        if each.volume_id == order.volume_id:
            return each
    raise Superseded("the order names a volume that the VM is not to have")
