"""Hosts as the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from api.documents.base import Condition, Shown
from api.documents.campaign import CampaignDocument
from api.errands import Errand
from model.capacity import Caps, Entitlement
from model.foreign import Choice
from model.report import Capacity, HypervisorReport
from model.vm import PowerState


class HeldDocument(Shown):
    """What VMs hold of a host: those that live, and those being deleted, `leaving_until` at the latest."""

    live: Entitlement
    leaving: Entitlement
    leaving_vms: int
    leaving_until: datetime | None


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
    `disk_room_gib`: what it lets all disks take, where nothing is promised that its filesystem cannot hold.
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
    disk_room_gib: int | None
    held: HeldDocument
    over_by: Entitlement | None
    hypervisors: list[HypervisorReport]
    unmanaged: int | None
    conditions: list[Condition]
    drain: CampaignDocument | None


class BelowFloorDocument(Shown):
    """A host whose worker is older than the fleet allows."""

    name: str
    worker_version: str


class FloorDocument(Shown):
    """The least release of a host worker that may act on VMs, null for none, and the hosts below it (H-S5)."""

    min_worker_version: str | None
    below: list[BelowFloorDocument]


class InvitationDocument(Shown):
    """What a new host joins with, shown this once: `join` is for `hostler worker host --join`."""

    host_id: str
    name: str
    join: str
    join_expires_at: datetime


class ForeignDocument(Shown):
    """What a host holds although no row places it there.

    `placed_on`: its row names that host. `is_gone`: it was destroyed within 30 days. `choice`: `braked` while an
    operator has to choose what becomes of it, `left` once one chose to leave it, `stopped` where its row names another
    host (L-R1, H-R2). `named_since`: the first of the two whole reports that it takes to stop it.
    """

    vm_id: str
    power_state: PowerState | None
    seen_at: datetime
    quarantined_at: datetime | None = None
    unreadable: str | None
    placed_on: str | None = None
    is_gone: bool = False
    named_since: datetime | None = None
    choice: Choice | None = None


class ForgottenVmDocument(Shown):
    """A VM that was given up with its host; `power_state` and `deleted` are what was wanted of it then."""

    id: str
    project: str
    name: str
    power_state: PowerState
    deleted: bool
    at: datetime


class ErrandList(Shown):
    """What a host is asked."""

    items: list[Errand]
