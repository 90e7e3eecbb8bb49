"""The beginning and the end of a create: what is given to a VM, and the witness that it is whole (L-C1)."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address

from drivers.disks import DiskState
from drivers.durable import remove_durably
from drivers.host.ending import Ending
from drivers.host.parts import Parts
from drivers.hypervisor import SIMULATED
from drivers.jobs import Job
from drivers.ledger import wish_of
from drivers.machine import ARCHITECTURE, total_memory_mib
from drivers.network import draw_address
from drivers.records import Entry, find_owners
from drivers.seed import make_host_key
from drivers.stored import HostAllocation, StoredConfig, StoredHostKey, StoredStatus
from drivers.threads import in_thread
from model.capacity import Entitlement
from model.errors import OutOfSpace, Permanent, StepFailed, Superseded, Unreadable
from model.firewall import network_digest
from model.record import CreateProgress, HostOrder, Record
from model.vm import DISK_NAMES, DiskName, PowerState, VmInput
from model.volume import AttachedVolume

ROOM_BYTES = 64 << 20
OPERATORS_PROJECT = "default"
"""The operator's own, where no token was given a project: emulation's missing wall is theirs to judge (S-16)."""


class PrepareSteps:
    """Begin and complete creates."""

    def __init__(self, parts: Parts, ending: Ending) -> None:
        self._parts = parts
        self._ending = ending
        self._drawn: IPv4Address | None = None

    async def prepare(self, job: Job, order: HostOrder) -> None:
        """Begin an attempt: its input is fetched, and nothing that an earlier one made or booted is left.

        Raises Superseded when the input is another, NoRoom when the host's caps do not allow it (L-C3), Permanent when
        this host cannot run it, OutOfSpace.
        """
        wanted = await self._parts.fetch_input(order.vm_id, order.input_digest)
        known = {entry.volume_id for entry in self._parts.volumes}
        volumes = Entitlement(disk_gib=sum(each.size_gib for each in order.volumes if each.volume_id not in known))
        with self._parts.ledger.admitted(order.vm_id, wish_of(wanted) + volumes):
            await self._begin(job, order, wanted)

    async def _begin(self, job: Job, order: HostOrder, wanted: VmInput) -> None:
        await self.check_support(wanted)
        async with job.locked():
            entry = self._parts.records.find(order.vm_id)
            if entry is not None and entry.unreadable:
                raise Unreadable(entry.unreadable)
            if entry is not None and entry.status is not None and entry.status.record.boot_id is not None:
                raise Superseded("the VM's create has completed on this host: nothing of it is made anew")
            if await self._adopt(job, order, entry):
                return
            await asyncio.to_thread(self._parts.space.check, ROOM_BYTES, "a VM's files")
            await self._record_beginning(job, order, wanted, entry)
            await self._clear(job, order.vm_id)

    async def _adopt(self, job: Job, order: HostOrder, entry: Entry | None) -> bool:
        """Take a root disk in whose record was lost, so that the rebuild puts it aside (L-V9); False without one.

        Raises StepFailed where nobody can tell which disk is which.
        """
        if order.rebuild_generation == 0 or (entry is not None and entry.status is not None):
            return False  # what is there is an attempt's of this create
        if order.undo_of is not None:
            raise StepFailed(
                "the host has no record of which root disk was put aside: none can be brought back; a rebuild with "
                "`discard` makes a new one"
            )
        if entry is None or entry.config is None:
            return False
        paths, disks = self._parts.paths, self._parts.disks_of(entry.config)
        found: dict[DiskName, DiskState] = {}
        for name in DISK_NAMES:
            if (state := await disks.find(paths.disk(order.vm_id, name))) is not None:
                found[name] = state
        if len(found) > 1:
            raise StepFailed(
                "two root disks of the VM are on the host, and the record of which one was in use is lost: move one "
                "of them out of the VM's folder there"
            )
        for name, state in found.items():
            record = Record(
                input_digest=entry.config.input.digest,
                boot_id=self._parts.boot_id(),
                stop_intended=True,
                disk=name,
                disk_bytes=state.virtual_size_bytes,
            )
            revision = self._parts.seen.last(order.vm_id).revision
            status = StoredStatus(vm_id=order.vm_id, record=record, revision=revision)
            await self._parts.records.begin(status, job.guard)
        return bool(found)

    async def check_support(self, wanted: VmInput) -> None:
        """Refuse what cannot work here (H-A4)."""
        found = await self._parts.find_availability(wanted.hypervisor)
        if wanted.image.architecture != ARCHITECTURE:
            raise Permanent(f"the image is for {wanted.image.architecture!r}, this host runs {ARCHITECTURE}")
        check_memory(wanted.memory_mib)
        if not found.available:
            if found.name == SIMULATED:  # by its settings: no later try finds it otherwise
                raise Permanent(f"this host does not run simulated guests: {found.why}")
            raise StepFailed(f"this host cannot run guests now: {found.why}")
        if found.emulated and wanted.project != OPERATORS_PROJECT and not self._parts.allow_emulated_guests:
            raise Permanent("this host only emulates, and its operator does not allow projects' guests there")

    async def _record_beginning(self, job: Job, order: HostOrder, wanted: VmInput, entry: Entry | None) -> None:
        """Make durable what the VM is given and that this pass creates it, before anything is touched (L-G3)."""
        await self.record_config(job, wanted, entry)
        old = entry.status if entry else None
        record = Record(
            input_digest=wanted.digest,
            network_digest=network_digest(wanted.firewall),
            create=CreateProgress(pass_number=order.fence.pass_number),
            quarantined_at=old.record.quarantined_at if old else None,
            volumes=_to_be_made_sure_of(old.record.volumes if old else ()),
        )
        fresh = StoredStatus(vm_id=order.vm_id, record=record, revision=self._parts.seen.last(order.vm_id).revision)
        if old is not None:
            # What an earlier attempt booted is ended now: that befalls no guest.
            over = {"turned_off": False, "started_at": None, "stalled": False}
            fresh = old.model_copy(update={"record": record, "images": None, **over})
        await self._parts.records.begin(fresh, job.guard)

    async def record_config(self, job: Job, wanted: VmInput, entry: Entry | None) -> StoredConfig:
        """Make durable what the VM is given; host key and certificate that it has stay (L-C2)."""
        async with self._parts.allocating:
            old = entry.config if entry else None
            given = old.allocation if old else None
            if given is None or given.mac != wanted.mac:
                given = await self._allocate(wanted)
            config = StoredConfig(
                vm_id=wanted.vm_id,
                input=wanted,
                allocation=given,
                host_key=old.host_key if old else await in_thread(_make_host_key),
                host_certificate=old.host_certificate if old else None,
            )
            await self._parts.records.write_config(config, job.guard)
            return config

    async def _clear(self, job: Job, vm_id: str) -> None:
        """End what an earlier attempt booted, prove it dead, then remove its disk and seed."""
        self._parts.boot_slots.release(vm_id)
        await self._ending.kill(job, vm_id)
        disks = (self._parts.paths.disk(vm_id, name) for name in DISK_NAMES)
        for path in (*disks, self._parts.paths.seed(vm_id)):
            job.guard()
            await in_thread(remove_durably, path)

    async def _allocate(self, wanted: VmInput) -> HostAllocation:
        """Draw user and address under the host's one lock; the caller records them before it lets go (D2, D3)."""
        parts = self._parts
        found = await parts.find_availability(wanted.hypervisor)
        configs = [entry.config for entry in parts.records if entry.config is not None]
        addresses = {config.allocation.address for config in configs} | await self._held_addresses()
        uids = {config.allocation.uid for config in configs}
        uids |= {process.uid for process in await parts.hypervisor.find_processes()}
        uids |= await in_thread(self._owners)
        uid = next((uid for uid in parts.names.users if uid not in uids), None)
        if uid is None:
            raise OutOfSpace("every user of this host's range is taken: enlarge the range")
        self._drawn = draw_address(parts.names.subnet, addresses, self._drawn)
        return HostAllocation(
            uid=uid,
            tap=parts.names.tap(wanted.vm_id),
            mac=wanted.mac,
            address=self._drawn,
            accelerator=found.accelerator or "tcg",
            machine_type=found.machine_type,
        )

    async def _held_addresses(self) -> set[IPv4Address]:
        """Find the addresses that are still in use although no readable record names them (case D4)."""
        held: set[IPv4Address] = set()
        inventory = await self._parts.network.inventory()
        for line in inventory.reservations | inventory.elements:
            for word in line.replace("{", " ").replace("}", " ").replace(",", " ").split():
                try:
                    held.add(IPv4Address(word))
                except ValueError:
                    continue
        return held

    def _owners(self) -> set[int]:
        """Find the users that own files of VMs, whose records cannot be read perhaps (S-10)."""
        return set[int]().union(*(find_owners(folder) for folder in self._parts.paths.machines.iterdir()))

    async def complete(self, job: Job, order: HostOrder) -> None:
        """Record that every part is there: only now is the VM more than an attempt, or rebuilt (L-C1, L-N3)."""
        boot_id = self._parts.boot_id()
        is_stopped = order.power_state is PowerState.STOPPED

        def change(status: StoredStatus) -> StoredStatus:
            record = status.record
            if record.boot_id is not None and record.create is None:
                return status
            create = attempt_of(record, order)
            may_boot = is_stopped or record.boot_id is not None
            if not (create.image and create.disk and create.seed and (create.booted or may_boot)):
                raise Superseded("a part of the VM is missing: its create goes on where it stands")
            if record.boot_id is not None:
                # The boot that follows is also that of every restart that was asked for before.
                rebuilt = {
                    "create": None,
                    "applied_rebuild_generation": create.rebuild_generation,
                    "applied_restart_generation": order.restart_generation,
                }
                return status.model_copy(update={"record": record.model_copy(update=rebuilt)})
            completed = record.model_copy(
                update={"boot_id": boot_id, "create": None, "stop_intended": is_stopped, **generations(order)}
            ).model_copy(update={"applied_rebuild_generation": order.rebuild_generation})
            return status.model_copy(update={"record": completed})

        async with job.locked():
            await self._parts.records.update(order.vm_id, change, job.guard)

    async def apply(self, job: Job, order: HostOrder) -> None:
        """Record the generations that were applied; a restart that was noted is done then (L-N3, L-V7)."""

        def change(status: StoredStatus) -> StoredStatus:
            record = status.record.model_copy(update={"restart_of": None, **generations(order)})
            return status.model_copy(update={"record": record})

        async with job.locked():
            await self._parts.records.update(order.vm_id, change, job.guard)


def _to_be_made_sure_of(volumes: tuple[AttachedVolume, ...]) -> tuple[AttachedVolume, ...]:
    """A VM keeps its volumes when it is made anew; each is looked after again before the boot (H-V2)."""
    return tuple(each.model_copy(update={"size_bytes": 0}) for each in volumes)


def check_memory(wanted_mib: int) -> None:
    """Raise Permanent for more memory than this host has at all."""
    memory_mib = total_memory_mib()
    if memory_mib is not None and wanted_mib > memory_mib:
        raise Permanent(f"this host has {memory_mib} MiB of memory, the VM needs {wanted_mib} MiB: ask for less")


def _make_host_key() -> StoredHostKey:
    private, public = make_host_key()
    return StoredHostKey(private=private, public=public)


def generations(order: HostOrder) -> dict[str, int]:
    """Name the generations of an order, and their epoch, as the record calls them."""
    return {
        "epoch": order.fence.epoch,
        "applied_generation": order.generation,
        "applied_spec_generation": order.spec_generation,
        "applied_restart_generation": order.restart_generation,
    }


def is_making(record: Record) -> bool:
    """Say whether a part of the VM may be missing: its create, or a rebuild, is not whole yet."""
    return record.boot_id is None or record.create is not None


def attempt_of(record: Record, order: HostOrder) -> CreateProgress:
    """Return the create's progress; raises Superseded unless this very pass began it (L-C1)."""
    if record.create is None or record.create.pass_number != order.fence.pass_number:
        raise Superseded("another attempt of the create has begun since: this pass must begin its own")
    return record.create


def progressed(status: StoredStatus, order: HostOrder, **done: object) -> StoredStatus:
    """Note how far this pass's create has come."""
    create = attempt_of(status.record, order).model_copy(update=done)
    return status.model_copy(update={"record": status.record.model_copy(update={"create": create})})
