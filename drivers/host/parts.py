"""Everything that a step on a host works with, and what its records say of one VM in the drivers' own words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from drivers.disks import Disks
from drivers.host.seen import SeenStore
from drivers.hypervisor import QEMU, SIMULATED, Availability, Guest, GuestVolume, Hypervisor
from drivers.images import Images
from drivers.jobs import Jobs
from drivers.ledger import Ledger, entitlement_of, wish_of
from drivers.machine import HostIdentity
from drivers.names import HostNames
from drivers.network import Attachment
from drivers.network.choice import GuestNetwork
from drivers.records import Entry, RecordStore
from drivers.reserve import Reserve
from drivers.shared import SharedRead
from drivers.simulated_disks import RootDisks, SimulatedDisks
from drivers.slots import Slots
from drivers.space import Space
from drivers.stored import StoredConfig, StoredStatus
from drivers.volumes import Volumes
from model.capacity import Caps, Entitlement
from model.certificate import HostCertificate
from model.errors import Permanent
from model.ids import check_label
from model.sync import SyncSets
from model.vm import DISK_NAMES, DiskName, VmInput

GIB = 1 << 30
AUTO = "auto"


@dataclass(frozen=True)
class Paths:
    """The folders of a host worker's state directory."""

    home: Path

    @property
    def machines(self) -> Path:
        return self.home / "machines"

    @property
    def images(self) -> Path:
        return self.home / "images"

    @property
    def simulated(self) -> Path:
        return self.home / "simulated"

    @property
    def volumes(self) -> Path:
        return self.home / "volumes"

    def folder(self, vm_id: str) -> Path:
        """Return the folder of a VM's files."""
        return self.machines / check_label(vm_id)

    def disk(self, vm_id: str, name: DiskName) -> Path:
        return self.folder(vm_id) / name

    def seed(self, vm_id: str) -> Path:
        return self.folder(vm_id) / "seed.iso"

    def sockets(self, vm_id: str) -> Path:
        return self.home / "sockets" / check_label(vm_id)


@dataclass
class Parts:
    """The parts of one host worker. `fetch_input` asks the API; it raises Unavailable, or Superseded (S-5).

    `fetch_certificate` asks it for that of a VM's public host key; Unavailable means that there is none yet (L-C2).
    `fetch_sets` asks it for the host's sets of a revision; it raises Superseded when they have another by now (H-S1).
    """

    names: HostNames
    paths: Paths
    identity: HostIdentity
    records: RecordStore
    jobs: Jobs
    seen: SeenStore
    create_slots: Slots
    boot_slots: Slots
    network: GuestNetwork
    hypervisor: Hypervisor
    images: Images
    disks: Disks
    simulated_disks: SimulatedDisks
    space: Space
    reserve: Reserve
    boot_id: Callable[[], str]
    fetch_input: Callable[[str, str], Awaitable[VmInput]]
    fetch_certificate: Callable[[str, str], Awaitable[HostCertificate]]
    fetch_sets: Callable[[int], Awaitable[SyncSets]]
    allow_emulated_guests: bool = True
    caps: Caps = field(default_factory=Caps)
    disk_overcommit: bool = True
    find_use: Callable[[str], Entitlement] = lambda _: Entitlement()
    """Says what a VM's processes have taken of the machine: for one whose record is not whole (H-S9)."""
    alone_after_seconds: float | None = None
    """When a host that hears nothing of its control plane boots again what ran (H-E6); None: never."""
    availability: tuple[Availability, ...] = ()
    allocating: asyncio.Lock = field(default_factory=asyncio.Lock)
    started: Callable[[str], None] = lambda _: None
    """Told of each VM whose process runs: it is watched from then on."""
    stopped: Callable[[str], None] = lambda _: None
    """Told of each VM whose folder is about to go: nobody watches it any more."""

    def attachment(self, config: StoredConfig) -> Attachment:
        """Say what a VM has on the network."""
        given = config.allocation
        return Attachment(
            vm_id=config.vm_id,
            project=config.input.project,
            mac=given.mac,
            tap=given.tap,
            address=given.address,
            simulated=is_simulated(config),
            firewall=config.input.firewall,
        )

    def guest(self, config: StoredConfig, status: StoredStatus | None) -> Guest:
        """Say what the hypervisor needs to start a VM, or to find it again."""
        given, wanted = config.allocation, config.input
        files = status.images if status else None
        disk_bytes = status.record.disk_bytes if status else None
        folder = self.paths.images
        return Guest(
            vm_id=config.vm_id,
            uid=given.uid,
            gid=given.uid,
            cpu_millicores=wanted.cpu_millicores,
            memory_mib=wanted.memory_mib,
            mac=given.mac,
            disk=self.paths.disk(config.vm_id, status.record.disk if status else "disk"),
            disk_format="qcow2",
            disk_bytes=disk_bytes or (wanted.disk_gib or 0) * GIB,
            seed=self.paths.seed(config.vm_id),
            sockets=self.paths.sockets(config.vm_id),
            accelerator=given.accelerator,
            machine_type=given.machine_type,
            kernel=folder / files.kernel if files and files.kernel else None,
            initrd=folder / files.initrd if files and files.initrd else None,
            command_line=wanted.image.command_line,
            firmware=wanted.image.firmware,
            base=folder / files.rootfs if files else None,
            base_format=files.rootfs_format if files else None,
            hypervisor=SIMULATED if is_simulated(config) else QEMU,
            volumes=self._volumes_of(status),
        )

    def disks_of(self, config: StoredConfig) -> RootDisks:
        """Return who makes and grows a VM's root disk."""
        return self.simulated_disks if is_simulated(config) else self.disks

    def owner(self, config: StoredConfig) -> int | None:
        """Return the user that a VM's files belong to; None: the worker's own, where no other process opens them."""
        return None if is_simulated(config) else config.allocation.uid

    def _volumes_of(self, status: StoredStatus | None) -> tuple[GuestVolume, ...]:
        """Say which volumes a guest is booted with: those that were made sure of, in the record's order (L-C11)."""
        found = status.record.volumes if status else ()
        return tuple(
            GuestVolume(each.volume_id, self.volumes.path(each.volume_id), each.size_bytes)
            for each in found
            if each.size_bytes
        )

    def _holds(self, vm_id: str, volume_id: str) -> bool:
        """Say whether a VM has a volume by its record; where that cannot be read it may."""
        entry = self.records.find(vm_id)
        if entry is None or entry.unreadable is not None:
            return entry is not None
        return entry.status is not None and any(each.volume_id == volume_id for each in entry.status.record.volumes)

    def __post_init__(self) -> None:
        self.volumes = Volumes(self.paths.volumes, self.space, self._holds, self.seen.changed.set, self.reserve.write)
        self._probing = SharedRead(lambda: self.hypervisor.find_availability())
        self.ledger = Ledger(self.caps, self._committed, self.identity.host_id, find_disk_room=self._find_disk_room)

    def _committed(self) -> Iterator[tuple[str, Entitlement]]:
        """Give what the records hold; of one that is not whole, what can be known."""
        for entry in self.records:
            if entry.config is not None and entry.status is not None:
                yield entry.vm_id, entitlement_of(entry.config, entry.status)
            elif entry.config is not None or entry.unreadable is not None:
                yield entry.vm_id, self._estimate(entry)
        yield from self.volumes.committed()

    def _estimate(self, entry: Entry) -> Entitlement:
        """Count what a VM was admitted for, or what it has taken of its host where that is more (H-S9)."""
        known = wish_of(entry.config.input) if entry.config is not None else Entitlement()
        taken = Entitlement(disk_gib=-(-self._taken_by(entry.vm_id) // GIB))
        return known | self.find_use(entry.vm_id) | taken

    def _taken_by(self, vm_id: str) -> int:
        return sum(_taken(self.paths.disk(vm_id, name)) for name in DISK_NAMES)

    def _find_disk_room(self) -> int | None:
        """Say how many GiB the filesystem can hold of all disks: what is free, and what they have taken (H-A4)."""
        if self.disk_overcommit:
            return None
        return (self.space.available_bytes() + sum(taken for _, taken in self.find_sparse())) // GIB

    def find_sparse(self) -> Iterator[tuple[int, int]]:
        """Give the size of each root disk and volume, and what it has taken of the filesystem, in bytes. Blocks."""
        for entry in self.records:
            record = entry.status.record if entry.config is not None and entry.status is not None else None
            if record is not None and record.disk_bytes is not None:
                yield record.disk_bytes, _taken(self.paths.disk(entry.vm_id, record.disk))
            elif entry.status is None:
                yield (taken := self._taken_by(entry.vm_id)), taken
        for each in self.volumes.report():
            yield each.size_bytes, _taken(self.volumes.path(each.volume_id))

    async def probe(self) -> None:
        """Find what this host can run. What it can, it can for good; what it cannot is looked at again (case B7)."""
        if not self.availability or not all(found.available or found.name == SIMULATED for found in self.availability):
            self.availability = await self._probing.read()

    async def find_availability(self, wanted: str) -> Availability:
        """Find what the host can run of the hypervisor that a VM names, or `auto`, which is never a simulated one.

        Raises Permanent when the host has none such.
        """
        await self.probe()
        for found in self.availability:
            if found.name == wanted or (wanted == AUTO and found.name != SIMULATED):
                return found
        has = " and ".join(found.name for found in self.availability)
        raise Permanent(f"this host does not run {wanted!r} guests: it runs {has}")


def _taken(disk: Path) -> int:
    try:
        return disk.lstat().st_blocks * 512
    except OSError:
        return 0


def is_simulated(config: StoredConfig) -> bool:
    """Say whether a VM is only told of; it is one for ever, since its hypervisor is named by name only."""
    return config.input.hypervisor == SIMULATED
