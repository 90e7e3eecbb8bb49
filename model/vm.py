"""What a user may want of a VM, in the words of lifecycle.md."""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Literal

from model.base import Frozen, Lenient
from model.firewall import OPEN, Firewall
from model.ids import Digest


class PowerState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class Phase(StrEnum):
    CREATING = "creating"
    READY = "ready"
    SLEEPING = "sleeping"
    FAILED = "failed"
    QUARANTINED = "quarantined"
    DESTROYING = "destroying"
    MIGRATING = "migrating"
    UNKNOWN = "unknown"


LONGEST_STOP_SECONDS = 1200
"""The longest a guest may be asked to stop: so long that a pass still has time to kill it (L-G6, L-V3)."""

GuestPoweroff = Literal["start", "stop"]
DiskFormat = Literal["qcow2", "raw"]
Firmware = Literal["bios", "uefi"]
DiskName = Literal["disk", "disk-2"]
DISK_NAMES: tuple[DiskName, DiskName] = ("disk", "disk-2")
"""The two places of a VM's root disk: one is in use, the other may hold the one that a rebuild put aside (L-V10)."""


class ImageFile(Lenient):
    """One file of an image. `url` may hold a user part and a query: whoever stores or shows it redacts them (S-33)."""

    url: str
    sha256: Digest


class Image(Lenient):
    """What a root disk is made from, and how it boots (D-1)."""

    reference: str | None = None
    owner: str
    architecture: str = "x86_64"
    rootfs: ImageFile
    format: DiskFormat | None = None
    kernel: ImageFile | None = None
    initrd: ImageFile | None = None
    command_line: str | None = None
    firmware: Firmware = "bios"


class VmInput(Lenient):
    """Everything that a host needs to make one VM. It comes from the API to the row's host alone (S-5).

    `user_data` is base64; `digest` is what the row and the sealed steps call this input by. Signed queries of URLs are
    left out of the digest, so that a refreshed one does not make another VM; so is the firewall, with its own digest.
    `signature` is the control plane's, over all the rest: it stays in the host's record, and says later that this is
    what was handed out.
    """

    vm_id: str
    project: str
    digest: str
    name: str
    mac: str
    image: Image
    cpu_millicores: int
    memory_mib: int
    disk_gib: int | None
    ssh_authorized_keys: tuple[str, ...] = ()
    user_data: str | None = None
    metadata: dict[str, str] = {}
    hypervisor: str = "auto"
    on_guest_poweroff: GuestPoweroff = "start"
    stop_timeout_seconds: int = 90
    boot_priority: int = 0
    ssh_user_cas: tuple[str, ...] = ()
    firewall: Firewall = OPEN
    created_at: datetime
    signature: str | None = None

    def signed_bytes(self) -> bytes:
        """Return what is signed. Without defaults: a field that a later release adds leaves a signature as it was."""
        told = self.model_dump(mode="json", exclude={"signature"}, exclude_defaults=True)
        return json.dumps(told, sort_keys=True, separators=(",", ":")).encode()


class Quarantine(Frozen):
    """Why a VM waits before it is destroyed, since when and until when (L-R2, L-R3)."""

    kind: Literal["tombstone", "vanished"]
    since: datetime
    destroy_at: datetime
    stopped_at: datetime | None = None


class LastExit(Lenient):
    """How a guest's last process ended."""

    at: datetime
    by: Literal["user", "guest", "host", "hypervisor"]
    reason: str
