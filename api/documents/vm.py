"""VMs as the API shows them."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from api.documents.base import HostName, OperationDocument, Shown
from model.firewall import Firewall
from model.vm import GuestPoweroff, LastExit, Phase, PowerState


class LastKnown(Shown):
    """What was seen last, and when."""

    phase: Phase
    power_state: PowerState | None
    seen_at: datetime | None


class Addresses(Shown):
    """The guest's addresses."""

    ip: str | None
    ip6: str | None = None
    network_ip: str | None = None


class UserData(Shown):
    """How much user-data there is, and a keyed digest: equal data can be told, nothing be guessed from it."""

    bytes: int
    digest: str | None


class CertificateDocument(Shown):
    """A VM's newest host certificate; null while it waits for its first one."""

    serial: int | None
    valid_until: datetime | None


class QuarantineDocument(Shown):
    """Why a VM waits before it is destroyed, since when and until when (L-R7)."""

    kind: str
    since: datetime
    destroy_at: datetime


class VmVolume(Shown):
    """A volume of a VM. `serial` is what the guest tells its disk by: `/dev/disk/by-id/virtio-<serial>` in Linux."""

    id: str
    name: str
    size_gib: int
    serial: str


class VmDocument(Shown):
    """A VM's row. What nobody can tell is null; `last_known` says what was seen last.

    `old_disk_until`: until then a rebuild can be undone. `at_next_boot` names what of the change that is answered the
    guest takes when it boots next. `setbacks`: how often in a row its guest ended by itself, or was paused by its
    hypervisor. `standstill`: why nothing is done with any VM now, whatever is wanted of it.
    """

    id: str
    project: str
    name: str
    phase: Phase
    power_state: PowerState | None
    desired_power_state: PowerState
    status_detail: str | None
    last_error: str | None
    last_exit: LastExit | None
    last_known: LastKnown
    addresses: Addresses
    mac: str
    ssh_host_key: str | None
    emulated: bool | None = Field(description="No KVM stands between the guest and its host: emulation is no wall")
    host_certificate: CertificateDocument | None
    image: str
    cpu_millicores: int
    memory_mib: int
    disk_gib: int | None
    volumes: list[VmVolume]
    ssh_authorized_keys: list[str]
    ssh_user_cas: list[str]
    user_data: UserData | None
    hypervisor: str
    on_guest_poweroff: GuestPoweroff
    stop_timeout_seconds: int
    boot_priority: int
    firewall: Firewall
    termination_protection: bool
    labels: dict[str, str]
    metadata: dict[str, str]
    host_labels: dict[str, str]
    anti_affinity_group: str | None
    generation: int
    spec_generation: int
    restart_generation: int
    rebuild_generation: int
    old_disk_until: datetime | None
    observed_generation: int
    create_attempts: int
    restart_count: int
    setbacks: int
    first_ready_at: datetime | None
    settled: bool
    host: HostName | None
    last_seen_at: datetime | None
    quarantine: QuarantineDocument | None
    due_at: datetime | None
    expected_by: datetime | None
    overdue: bool
    held_by: str | None
    standstill: str | None
    created_at: datetime
    updated_at: datetime
    at_next_boot: list[str]
    operation: OperationDocument | None


class WhyDocument(Shown):
    """Why nothing more is done for a VM now. `sentence` says all of it.

    `waits_for` is a fixed word: `work` while it is being worked on, `control_plane` when nobody took it up.
    """

    waits_for: str
    since: datetime | None
    until: datetime | None
    overdue_since: datetime | None
    tried: str | None
    advice: str
    sentence: str


class OneVmDocument(VmDocument):
    """A VM with its recent operations, the newest first, and what it waits for; `why` is null when it is settled."""

    why: WhyDocument | None
    operations: list[OperationDocument]


class ConsoleDocument(Shown):
    """The end of a console's log, as base64 of what the guest printed."""

    data: str
