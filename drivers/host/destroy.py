"""Destroying a VM in order: process, network, storage, records; each accepts that its part is gone (L-R5).

It works also for a record that cannot be read (L-G8): what cannot be looked up there is searched for.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from drivers.durable import remove_durably
from drivers.host.ending import Ending
from drivers.host.look import Looker
from drivers.host.parts import Parts
from drivers.jobs import Job
from drivers.records import DESTROYED, Entry
from drivers.stored import StoredStatus
from drivers.threads import in_thread
from model.errors import StepFailed
from model.ids import mac_address
from model.record import HostOrder
from model.vm import DISK_NAMES

PROCESS, NETWORK, STORAGE = DESTROYED


class DestroySteps:
    """Destroy VMs. Volumes and base images are never touched."""

    def __init__(self, parts: Parts, looker: Looker, ending: Ending) -> None:
        self._parts = parts
        self._looker = looker
        self._ending = ending

    async def destroy_process(self, job: Job, order: HostOrder) -> None:
        async with job.locked():
            self._parts.create_slots.release(order.vm_id)
            self._parts.boot_slots.release(order.vm_id)
            await self._ending.kill(job, order.vm_id)
            await self._note(job, order.vm_id, PROCESS)

    async def destroy_network(self, job: Job, order: HostOrder) -> None:
        async with job.locked():
            await self._check_dead(order.vm_id)
            await self._release_network(job, order.vm_id)
            await self._note(job, order.vm_id, NETWORK)

    async def _release_network(self, job: Job, vm_id: str) -> None:
        entry = self._parts.records.find(vm_id)
        given = entry.config.allocation if entry and entry.config else None
        mac, address = (given.mac, given.address) if given else await self._search_network(vm_id)
        tap = given.tap if given else self._parts.names.tap(vm_id)
        job.guard()
        await self._parts.network.release(vm_id, tap=tap, mac=mac, address=address, guard=job.guard)

    async def _search_network(self, vm_id: str) -> tuple[str, IPv4Address | None]:
        """Find what the network keeps of a VM without its record: its reservation says MAC and address."""
        inventory = await self._parts.network.inventory()
        mac, address = mac_address(vm_id), None
        for line in inventory.mentions(vm_id):
            for word in line.split():
                if word.count(":") == 5:
                    mac = word
                elif word.count(".") == 3:
                    address = IPv4Address(word)
        return mac, address

    async def destroy_storage(self, job: Job, order: HostOrder) -> None:
        vm_id, parts = order.vm_id, self._parts
        async with job.locked():
            await self._check_dead(vm_id)
            await self._check_unplugged(vm_id)
            for name in DISK_NAMES:
                job.guard()
                await parts.disks.remove(parts.paths.disk(vm_id, name))
            job.guard()
            await in_thread(remove_durably, parts.paths.seed(vm_id))
            job.guard()
            await parts.hypervisor.release(vm_id, parts.paths.sockets(vm_id))
            await self._note(job, vm_id, STORAGE)

    async def destroy_records(self, job: Job, order: HostOrder) -> None:
        """Remove the VM's folder, last of all; its fence is kept 30 days (L-G5)."""
        vm_id = order.vm_id
        async with job.locked():
            await self._check_dead(vm_id)
            await self._check_unplugged(vm_id)
            entry = self._parts.records.find(vm_id)
            if entry is not None and entry.config is not None and await self._has_disk(vm_id):
                raise StepFailed("the VM's storage is still there: it must be destroyed first")
            self._parts.stopped(vm_id)
            await self._parts.records.remove(vm_id, job.guard)
            await self._parts.jobs.fences.mark_gone(vm_id)

    async def _has_disk(self, vm_id: str) -> bool:
        disks = [self._parts.paths.disk(vm_id, name) for name in DISK_NAMES]
        return await in_thread(lambda: any(disk.is_symlink() or disk.exists() for disk in disks))

    async def _check_dead(self, vm_id: str) -> None:
        """Refuse while a process of the VM lives: it is proven dead before anything is forgotten."""
        entry = self._parts.records.find(vm_id)
        if entry is None or entry.config is None:
            lives = bool(await self._looker.find_strays(vm_id))
        else:
            status = entry.status
            guest = self._parts.guest(entry.config, status)
            lives = (await self._parts.hypervisor.find(guest, status.process if status else None)).process is not None
        if lives:
            raise StepFailed("a process of the VM still lives: it must be destroyed first")

    async def _check_unplugged(self, vm_id: str) -> None:
        entry = self._parts.records.find(vm_id)
        given = entry.config.allocation if entry and entry.config else None
        inventory = await self._parts.network.inventory()
        if inventory.mentions(vm_id, given.tap if given else self._parts.names.tap(vm_id)):
            raise StepFailed("the VM's network is still there: it must be destroyed first")

    async def _note(self, job: Job, vm_id: str, part: str) -> None:
        """Make the end of one part durable, where there is a record to keep it."""
        entry: Entry | None = self._parts.records.find(vm_id)
        if entry is None or entry.status is None:
            return

        def change(status: StoredStatus) -> StoredStatus:
            done = set(status.record.destroyed) | {part}
            ordered = tuple(known for known in DESTROYED if known in done)
            return status.model_copy(update={"record": status.record.model_copy(update={"destroyed": ordered})})

        await self._parts.records.update(vm_id, change, job.guard)
