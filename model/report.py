"""What a host tells the API, every ten seconds and at once on change (H-S6, H-S11)."""

from __future__ import annotations

from datetime import datetime

from model.base import Lenient
from model.capacity import Caps, Entitlement
from model.record import Observed
from model.volume import VolumeReport


class HypervisorReport(Lenient):
    """Whether one hypervisor can run on the host, and why not."""

    name: str
    available: bool
    why: str
    accelerator: str | None = None
    version: str | None = None


class Capacity(Lenient):
    """The machine's room. None means that the probe failed: unknown, never 0 or full (H-S7)."""

    cpu_millicores_total: int | None = None
    cpu_millicores_committed: int | None = None
    memory_mib_total: int | None = None
    memory_mib_available: int | None = None
    storage_bytes_total: int | None = None
    storage_bytes_free: int | None = None
    storage_bytes_promised: int | None = None


class Recorded(Lenient):
    """What a host's record says that was applied last: generations, the epoch and the input that they belong to."""

    epoch: int
    generation: int
    spec_generation: int
    restart_generation: int
    rebuild_generation: int
    input_digest: str


class VmReport(Lenient):
    """One VM as its host last saw it. `look` asks for a pass: what was seen differs from the record, or a turn came.

    `guest_stopped_itself` is set when the guest ended by its own power-off while nobody had asked for a stop.
    `recorded`: of a readable record; it is no news by itself, so it is told with what is (H-R1).
    """

    vm_id: str
    observed: Observed
    completed: bool = False
    quarantined_at: datetime | None = None
    unreadable: str | None = None
    look: bool = False
    guest_stopped_itself: bool = False
    recorded: Recorded | None = None


class HostReport(Lenient):
    """One report. `vms` holds what changed since the last acknowledged report, or everything when `whole`.

    `activity_names` are what the worker can do; None: as in the last report.

    `caps` are what the host's operator declared, `held` is what its ledger has committed; None: the worker says nothing
    of it (H-S8). `disk_room_gib`: what its ledger lets all disks take, where its operator lets nothing be promised that
    the filesystem cannot hold; it moves by itself, so no create is refused by it here (H-A4, H-P2). `volumes` are all
    that the host keeps; None: as in the last report. `volumes_gone`: those that it was told to remove and of which a
    search found nothing; that a report does not name a volume confirms nothing (H-V3).
    `epoch` and `pass_number`: the highest that the host has seen; a store that has not reached them is behind (H-R1).
    """

    number: int
    instance_id: str
    machine_id: str
    boot_id: str
    worker_version: str
    clock: datetime
    whole: bool
    activity_names: tuple[str, ...] | None = None
    capacity: Capacity = Capacity()
    caps: Caps | None = None
    disk_room_gib: int | None = None
    held: Entitlement | None = None
    architecture: str | None = None
    hypervisors: tuple[HypervisorReport, ...] = ()
    vms: tuple[VmReport, ...] = ()
    volumes: tuple[VolumeReport, ...] | None = None
    volumes_gone: tuple[str, ...] = ()
    unmanaged: int = 0
    emulated: bool = False
    epoch: int = 0
    pass_number: int = 0


class ControlRelease(Lenient):
    """Of which release the control plane is: a host worker that is newer refuses to start (H-D4)."""

    version: str


class ReportAnswer(Lenient):
    """What the API answers: the number it stored, whether it wants a whole report next, the fleet's epoch and floor.

    `host_name` is what people call the host: its refusals name it. `forgotten_pass`: the fleet has given the host up;
    whatever it still runs is to be stopped and quarantined, under this pass (L-R10). `renew_credential`: it ends within
    30 days (S-40). `remove_volumes`: deleted ones whose grace is over, told again until the host has confirmed that
    they are gone (H-V3). `stop_vms`: misplaced VMs that are to be stopped and quarantined, under `stop_pass` (L-R1).
    """

    acknowledged: int
    want_whole: bool
    epoch: int
    min_worker_version: str | None = None
    host_name: str | None = None
    forgotten_pass: int | None = None
    renew_credential: bool = False
    remove_volumes: tuple[str, ...] = ()
    stop_pass: int | None = None
    stop_vms: tuple[str, ...] = ()
