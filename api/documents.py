"""What callers get to see, as the OpenAPI document says it. No secret has a field here (S-33)."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from api.errands import Errand
from model.capacity import Caps, Entitlement
from model.report import Capacity, HypervisorReport
from model.restore import Choice, Kind
from model.vm import DiskFormat, Firmware, GuestPoweroff, LastExit, Phase, PowerState
from store.operation import OperationKind, OperationResult

Item = TypeVar("Item")


class Shown(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True)


class FieldProblem(Shown):
    """One bad field: of the body by its JSON pointer, or a parameter by its place and name."""

    pointer: str | None = None
    parameter: str | None = None
    detail: str


class Problem(Shown):
    """An error (RFC 9457). `detail` is the sentence that a person acts on."""

    type: str
    title: str
    status: int
    detail: str
    retryable: bool
    errors: list[FieldProblem] | None = None


class Page(Shown, Generic[Item]):
    """A page of a list; `next_cursor` is null on the last one."""

    items: list[Item]
    next_cursor: str | None


class Health(Shown):
    """How the API is."""

    status: str


class OperationDocument(Shown):
    """What was asked of a VM. `attempts` counts the passes that worked on it; `result` is null while it is open."""

    id: str
    vm_id: str
    project: str
    kind: OperationKind
    generation: int
    workflow_id: str
    run_id: str | None
    attempts: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    result: OperationResult | None
    error: str | None
    link: str | None


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


class HostName(Shown):
    """Where a VM lives."""

    id: str
    name: str


class VmName(Shown):
    """Which VM has a volume."""

    id: str
    name: str


class CertificateDocument(Shown):
    """A VM's newest host certificate; null while it waits for its first one."""

    serial: int | None
    valid_until: datetime | None


class RevokedDocument(Shown):
    """A host certificate that counts no more; its key belongs to a VM that was destroyed."""

    serial: int
    public_key: str
    valid_until: datetime


class SshCaDocument(Shown):
    """What VMs' host certificates are checked by. `domain` ends their names: `<name>.<project>.<domain>`."""

    host_ca: str | None
    domain: str
    revoked: list[RevokedDocument]


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


class VolumeDocument(Shown):
    """A volume. `made_bytes` is how large its host says that it is: null while it was not made, and less than
    `size_gib` until a VM that has it has been given the rest. A deleted one can be undeleted until `destroy_at`.
    """

    id: str
    project: str
    name: str
    size_gib: int
    made_bytes: int | None
    serial: str
    host: HostName | None
    vm: VmName | None
    deleted: bool
    destroy_at: datetime | None
    destroying: bool
    created_at: datetime
    updated_at: datetime


class ForeignVolume(Shown):
    """A volume that a host holds although no row places it there; `vm_id`: the VM that had it last."""

    volume_id: str
    size_bytes: int
    vm_id: str | None


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


class HeldDocument(Shown):
    """What VMs hold of a host: those that live, and those being deleted, `leaving_until` at the latest."""

    live: Entitlement
    leaving: Entitlement
    leaving_vms: int
    leaving_until: datetime | None


class Condition(Shown):
    """What is wrong with an object, and what a person can do. `condition` is a fixed word, such as `disk_short`."""

    condition: str
    what: str
    advice: str


class FailedVm(Shown):
    """A VM of a campaign for which it could not be done, and why."""

    vm_id: str
    name: str
    why: str


class CampaignDocument(Shown):
    """An operation over many VMs, and how far it is: `done` of `total`.

    `creating`: their create is in flight and finishes first. `todo`: not begun. `working`: begun. `left`: nothing is to
    be done for them. `failed` is their number, `failures` the first of them. A drain whose state is `done` is in force
    until it is undone. `link` shows its runs in the Temporal UI.
    """

    id: str
    kind: str
    state: str
    policy: str | None
    host_id: str | None
    selector: dict[str, str] | None
    batch_size: int
    most_failures: int | None
    total: int
    creating: int
    todo: int
    working: int
    done: int
    left: int
    failed: int
    failures: list[FailedVm]
    made_by: str
    paused_by: str | None
    created_at: datetime
    ended_at: datetime | None
    workflow_id: str
    link: str | None


class FreezeDocument(Shown):
    """What operators hold: everything destructive, or only creates. `host_id` null: in the whole fleet."""

    id: str
    holds: Literal["everything destructive", "creates"]
    host_id: str | None
    host_name: str | None
    made_by: str
    since: datetime


class HostDocument(Shown):
    """A host with what it last reported, and what is held of it.

    `caps` is what its operator lets VMs take, null while it has not said; `capacity` is the machine's size.
    """

    id: str
    name: str
    labels: dict[str, str]
    status: str
    silent: bool
    instance_id: str | None
    boot_id: str | None
    worker_version: str | None
    activity_names: list[str]
    last_report_at: datetime | None
    state_lost_at: datetime | None
    rolled_back_at: datetime | None
    joined_at: datetime
    maintenance_until: datetime | None
    credential_revoked_at: datetime | None
    forgotten_at: datetime | None
    vms: int
    vms_deleted: int
    volumes: int
    capacity: Capacity | None
    caps: Caps | None
    held: HeldDocument
    over_by: Entitlement | None
    hypervisors: list[HypervisorReport]
    unmanaged: int | None
    conditions: list[Condition]
    drain: CampaignDocument | None


class InvitationDocument(Shown):
    """What a new host joins with, shown this once: `join` is for `hostler worker host --join`."""

    host_id: str
    name: str
    join: str
    join_expires_at: datetime


class ForeignVm(Shown):
    """What a host holds although no row places it there."""

    vm_id: str
    power_state: PowerState | None
    seen_at: datetime
    quarantined_at: datetime | None = None
    unreadable: str | None
    placed_on: str | None = None


class ForgottenVmDocument(Shown):
    """A VM that was given up with its host; `power_state` and `deleted` are what was wanted of it then."""

    id: str
    project: str
    name: str
    power_state: PowerState
    deleted: bool
    at: datetime


class FileDocument(Shown):
    """One file of an image. Its URL has no user part and no query; null: a path of the fleet."""

    url: str | None
    sha256: str


class ImageDocument(Shown):
    """A named image."""

    id: str
    project: str
    name: str
    architecture: str
    format: DiskFormat | None
    firmware: Firmware
    command_line: str | None
    rootfs: FileDocument
    kernel: FileDocument | None
    initrd: FileDocument | None
    created_at: datetime


class ConsoleDocument(Shown):
    """The end of a console's log, as base64 of what the guest printed."""

    data: str


class ErrandList(Shown):
    """What a host is asked."""

    items: list[Errand]


class Taken(Shown):
    """Whether anybody still waited for an answer."""

    taken: bool


class UnheardHost(Shown):
    """A host that has not told all that it holds since the database was found to be older."""

    name: str
    last_report_at: datetime | None


class RestoreItem(Shown):
    """A VM that a person settles. `kind`: `unknown` to every row, `missing` on its host, or `changed` since.

    `choices` are those that it has, `choice` the one that was made. `power_state` is what its host sees.
    """

    vm_id: str
    host_id: str
    host_name: str
    project: str | None
    name: str | None
    kind: Kind
    differs: list[str]
    power_state: PowerState | None
    placed_on: str | None
    choices: list[Choice]
    choice: Choice | None


class RestoreDocument(Shown):
    """How far the restore of the fleet's database is. `behind`: it stands still until everything is settled."""

    behind: bool
    since: datetime | None
    why: str | None
    epoch: int
    unheard: list[UnheardHost]
    items: list[RestoreItem]
