"""A VM as its host tells it: the record (what was intended) and the observation (what is)."""

from __future__ import annotations

from datetime import datetime

from model.base import Lenient
from model.fence import Answer, Order
from model.process import ProcessRecord
from model.vm import DiskName, LastExit, PowerState
from model.volume import AttachedVolume, WantedVolume


class CreateProgress(Lenient):
    """How far one pass has come with a create, or with the rebuild of a generation above 0.

    Another pass starts at the beginning again (L-C1). `undo`: the disk in use is one that was brought back, no new one.
    """

    pass_number: int
    rebuild_generation: int = 0
    undo: bool = False
    image: bool = False
    disk: bool = False
    seed: bool = False
    booted: bool = False


class KeptDisk(Lenient):
    """The root disk that the rebuild of generation `by` put aside (L-V10)."""

    name: DiskName
    by: int
    disk_bytes: int | None = None


class Refusal(Lenient):
    """What a host cannot give a VM that lives: the input that asks for it, in which boot of the host, and why."""

    digest: str
    boot_id: str
    reason: str


class Setback(Lenient):
    """What last befell a guest that was to run: it ended by itself, or its hypervisor paused it (L-V4, L-V11).

    `process` is the one that it befell, `number` rises with each that the host's record of the VM has noted.
    """

    number: int
    process: ProcessRecord


class Record(Lenient):
    """What the host's record of a VM says.

    `boot_id` is the sole witness that a create completed (L-C1): the host's boot id when the VM last ran or was last
    recorded as stopped. `stop_intended` is durable before a guest is asked to stop. `restart_of` names the process that
    a restart replaces (L-V7), `restart_of_generation` the restart that was wanted then (None: a record
    from before this was kept). `applied_…` are the last applied generations, `epoch` the fleet's when they were written
    (L-N5). `refused`: the guest keeps what it has (L-V8). `disk` is the one in use, `kept` the one that a rebuild put
    aside. `create` on a record with a boot id is a rebuild that is not whole yet. `volumes`: those of the VM, which its
    next boot attaches in this order; one of 0 bytes is yet to be made sure of (H-V2). `network_digest`: of what the
    VM's network lets through (N-5).
    """

    input_digest: str
    boot_id: str | None = None
    create: CreateProgress | None = None
    stop_intended: bool = False
    quarantined_at: datetime | None = None
    restart_of: ProcessRecord | None = None
    restart_of_generation: int | None = None
    applied_generation: int = 0
    applied_spec_generation: int = 0
    applied_restart_generation: int = 0
    applied_rebuild_generation: int = 0
    epoch: int = 1
    disk: DiskName = "disk"
    kept: KeptDisk | None = None
    disk_bytes: int | None = None
    seed_digest: str | None = None
    refused: Refusal | None = None
    volumes: tuple[AttachedVolume, ...] = ()
    network_digest: str | None = None
    destroyed: tuple[str, ...] = ()


class Observed(Lenient):
    """What the host sees of a VM right now.

    `power_state` is None when nobody can tell. `process` is the guest's live process. `guest_ended` says that the guest
    itself is over although its process may still be readable. `network` and `seed` say that they are as wanted.
    `nothing` means that a search found no record, process, tap, lease or disk of this id (L-R6). `certificate_serial`:
    of the host certificate that the host keeps for the VM (L-C2). `started_at`: since when the last process has run, by
    the host's clock, from its boot or the end of its hypervisor's pause; `started_for`: generation and restart
    generation that were wanted at its boot, added up. `turned_off`: the guest ended by its own power-off, with nobody
    asking, and was neither booted again nor stopped. `cause_remains`: what made the hypervisor pause the guest is
    surely still there. `emulated`: no KVM stands between the guest and its host (S-16); None: nobody told.
    """

    boot_id: str
    power_state: PowerState | None
    process: ProcessRecord | None = None
    guest_ended: str | None = None
    paused_by_hypervisor: str | None = None
    disk_bytes: int | None = None
    network: bool = False
    nothing: bool = False
    address: str | None = None
    ssh_host_key: str | None = None
    certificate_serial: int | None = None
    last_exit: LastExit | None = None
    setback: Setback | None = None
    started_at: datetime | None = None
    started_for: int = 0
    turned_off: bool = False
    cause_remains: bool = False
    restart_count: int = 0
    emulated: bool | None = None
    revision: int = 0
    seen_at: datetime


class View(Answer):
    """The answer of every step of a VM: what is there after it.

    `waiting` is the text of L-G10 when the step could not begin and keeps its place on the host. `unreadable` is the
    reason of L-G8.
    """

    record: Record | None
    observed: Observed
    waiting: str | None = None
    unreadable: str | None = None


class HostOrder(Order):
    """The argument of every step of a VM on its host. The fence says which order wins.

    `kept_by`: what a rebuild puts aside is called by this generation. `undo_of`: bring back what that one put aside.
    `setbacks`: the number of the guest's last setback that the pass knows, so that no boot passes over one that was not
    counted yet; None: it does not count them. `volumes` are those that the VM is to have, `volume_id` is the one that
    the step is about.
    """

    vm_id: str
    input_digest: str
    power_state: PowerState
    generation: int
    spec_generation: int
    restart_generation: int
    rebuild_generation: int
    kept_by: int = 0
    undo_of: int | None = None
    disk_gib: int | None
    stop_timeout_seconds: int
    setbacks: int | None = None
    volumes: tuple[WantedVolume, ...] = ()
    volume_id: str | None = None
    network_digest: str | None = None
    project: str = "default"
