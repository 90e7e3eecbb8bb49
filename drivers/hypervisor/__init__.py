"""What a hypervisor does for a host worker, whichever one it is (X-1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from model.base import Frozen
from model.process import ProcessRecord

Accelerator = Literal["kvm", "tcg"]
Power = Literal["running", "paused", "stopped"]

QEMU, SIMULATED = "qemu", "simulated"


@dataclass(frozen=True)
class GuestVolume:
    """A volume as a guest's disk: a raw file, of so many bytes for the guest."""

    volume_id: str
    path: Path
    size_bytes: int


@dataclass(frozen=True)
class Guest:
    """Everything needed to start or find one guest again; it comes from the host's record, never from the guest.

    disk_bytes: the root disk's wanted virtual size; the disk's own header decides nothing (S-13). kernel, initrd,
    command_line: direct boot, files that any user may read; without a kernel, `firmware` boots the disk. sockets: a
    folder that only root enters. machine_type, accelerator: as recorded at the first boot, so that a later worker
    starts the same machine (X-3); no machine_type: today's. volumes: in the order in which the guest gets them.
    """

    vm_id: str
    uid: int
    gid: int
    cpu_millicores: int
    memory_mib: int
    mac: str
    disk: Path
    disk_format: str
    disk_bytes: int
    seed: Path
    sockets: Path
    accelerator: Accelerator
    machine_type: str | None = None
    kernel: Path | None = None
    initrd: Path | None = None
    command_line: str | None = None
    firmware: str | None = None
    base: Path | None = None
    base_format: str | None = None
    hypervisor: str = QEMU
    volumes: tuple[GuestVolume, ...] = ()


class Availability(Frozen):
    """Whether this host can run guests so, and why not."""

    name: str
    available: bool
    why: str
    accelerator: Accelerator | None = None
    version: str | None = None
    machine_type: str | None = None
    emulated: bool = False
    """Emulation is no wall between a guest and its host (S-16)."""


class GuestState(Frozen):
    """What a look at one guest found.

    power: None when it cannot be told. ended: why the guest ended (`guest-shutdown`, `process-gone`), else None; with
    `guest-shutdown` its process is still there until `end`. paused_by_hypervisor: the hypervisor's reason (`io-error`,
    `no-space`, `guest-panic`, `internal-error`), which is no user's pause (L-V11). cause_remains: what it was paused
    for is surely still there. process: the live process that was found.
    """

    power: Power | None
    ended: str | None = None
    paused_by_hypervisor: str | None = None
    cause_remains: bool = False
    process: ProcessRecord | None = None
    detail: str = ""


class GuestEvent(Frozen):
    """What moved: `ended` (reason as in GuestState), `paused` (reason: the hypervisor's, None: asked for), `resumed`,
    or `gone`, the last one: no process is left.
    """

    kind: Literal["ended", "paused", "resumed", "gone"]
    reason: str | None = None


class Hypervisor(Protocol):
    """Start, find, change and end guests. Every call may be repeated; foreign errors come as StepFailed."""

    name: str

    async def find_availability(self) -> tuple[Availability, ...]:
        """Find whether guests can run here, by each hypervisor; a probe guest that really ran decides."""
        ...

    async def boot(
        self, guest: Guest, tap_fd: int, *, record: Callable[[ProcessRecord], Awaitable[None]]
    ) -> ProcessRecord:
        """Start a guest on an open tap; return when it runs. The process begins once `record` has returned (L-G3).

        Raises StepFailed when a process of this VM lives, or with what the hypervisor said. Then, but not on a cancel,
        no process of this attempt is left.
        """
        ...

    async def find(self, guest: Guest, process: ProcessRecord | None) -> GuestState:
        """Look at a guest, after a restart of the worker too; process: the recorded one."""
        ...

    async def pause(self, guest: Guest, process: ProcessRecord) -> None: ...

    async def resume(self, guest: Guest, process: ProcessRecord) -> None: ...

    async def ask_to_stop(self, guest: Guest, process: ProcessRecord) -> None:
        """Press the guest's power button."""
        ...

    async def end(self, guest: Guest, process: ProcessRecord | None, timeout_seconds: float) -> None:
        """End the guest's processes and prove them dead; that there is none is as good.

        Raises StepFailed when one is left after the time.
        """
        ...

    async def await_end(self, guest: Guest, process: ProcessRecord, timeout_seconds: float) -> bool:
        """Wait until the guest has ended, its process still there or not; tell whether it has."""
        ...

    async def grow_disk(self, guest: Guest, process: ProcessRecord, size_bytes: int) -> None:
        """Grow the root disk of a running guest to a size, which it then has already or sees at once."""
        ...

    async def attach_volume(self, guest: Guest, process: ProcessRecord, volume: GuestVolume) -> None:
        """Plug a volume into a running guest, and make it as large as it is to be; that both are so is as good."""
        ...

    async def detach_volume(self, guest: Guest, process: ProcessRecord, volume_id: str) -> None:
        """Unplug a volume from a running guest; that it has none such is as good.

        Raises StepFailed when the guest does not let it go: then it has it still.
        """
        ...

    async def find_volumes(self, guest: Guest, process: ProcessRecord) -> frozenset[str]:
        """Find the serial numbers of the volumes that a running guest has."""
        ...

    async def release(self, vm_id: str, sockets: Path) -> None:
        """Remove what a boot made beside the process, also of a VM without a record; that it is absent is as good."""
        ...

    def find_console(self, guest: Guest) -> Path | None:
        """Find the folder of the guest's console socket; None for a guest without a console."""
        ...

    def watch(self, guest: Guest, process: ProcessRecord) -> AsyncIterator[GuestEvent]:
        """Tell what moves, until the process is gone. A hypervisor that does not answer is no death."""
        ...

    async def find_processes(self) -> list[ProcessRecord]:
        """List every live process whose user lies in this installation's range."""
        ...

    async def find_strays(self, vm_id: str, owners: set[int]) -> list[ProcessRecord]:
        """Find live processes of a VM without its record; owners: the users that its files belong to (L-G8)."""
        ...

    async def kill_strays(self, processes: Sequence[ProcessRecord]) -> None:
        """Kill processes that no record names, those of another hypervisor excepted; they may take a moment to end."""
        ...
