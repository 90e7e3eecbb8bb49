"""A VM's row as a pass sees it: ids, numbers and fixed words, no text of anybody (S-8)."""

from __future__ import annotations

from datetime import datetime

from model.base import Lenient
from model.record import Setback
from model.vm import LONGEST_STOP_SECONDS, GuestPoweroff, Phase, PowerState, Quarantine
from model.volume import WantedVolume


class Desired(Lenient):
    """What the user asked for.

    `certificate_serial` is that of the newest host certificate, once one was signed (L-C2).
    `kept_by` is the rebuild that put the kept root disk aside, `undo_of` the one whose kept disk is wanted back;
    `old_disk_until` is when the kept one is removed (L-V10). `poweroff_taken`: the guest's last own power-off that the
    API has taken, whatever it made of it (L-V4). `network_digest`: of what its network is to let through (N-5).
    """

    power_state: PowerState
    deleted: bool
    generation: int
    spec_generation: int
    restart_generation: int
    rebuild_generation: int
    kept_by: int = 0
    undo_of: int | None = None
    old_disk_until: datetime | None = None
    input_digest: str
    disk_gib: int | None
    stop_timeout_seconds: int
    on_guest_poweroff: GuestPoweroff = "start"
    poweroff_taken: Setback | None = None
    host_certificate: bool = False
    certificate_serial: int | None = None
    volumes: tuple[WantedVolume, ...] = ()
    network_digest: str | None = None


class Status(Lenient):
    """What passes have written.

    `failures` counts failed steps in a row, for the pauses between them; `retry_at` is the end of the present pause.
    `resting` means that creating is over until something it is given changes or a user asks for retry (L-C4, L-C6).
    `refunds` counts the attempts that were given back without progress, `step_refunds` those of them that ended in one
    step since its host went silent or its worker died (L-C5). `setbacks` counts the guest's since it ran for long, or
    since its user's start: None until a pass has seen which is the last from before that. `setback` is the last one
    that was counted; before `up_again_at` the guest is not brought up (L-V4, L-V11). `hold_stops`: its
    holder wants the guest stopped meanwhile (L-G12).
    """

    phase: Phase
    pass_number: int
    attempt_pass: int | None = None
    create_attempts: int = 0
    refunds: int = 0
    step_refunds: dict[str, int] = {}
    failures: int = 0
    retry_at: datetime | None = None
    resting: bool = False
    unreachable_since: datetime | None = None
    observed_generation: int = 0
    applied_rebuild_generation: int = 0
    first_ready_at: datetime | None = None
    destroying: bool = False
    held: bool = False
    hold_stops: bool = False
    setbacks: int | None = 0
    setback: Setback | None = None
    up_again_at: datetime | None = None
    quarantine: Quarantine | None = None


class HostState(Lenient):
    """What a pass must know of the VM's host to send it work; its room as it last reported it, None: unknown."""

    host_id: str
    instance_id: str | None
    status: str
    silent: bool
    activity_names: tuple[str, ...] = ()
    storage_bytes_free: int | None = None
    storage_bytes_total: int | None = None


class Row(Lenient):
    """One consistent read of a VM's row. `now` is Postgres' clock; `owner`: the asking pass still owns it.
    `claimed`: some pass has taken it since its user last changed his mind.

    `behind`: the row may be older than what the host was ordered last, so nothing is done with it (H-R1).
    """

    vm_id: str
    project: str
    fleet_id: str
    epoch: int
    min_worker_version: str | None = None
    max_create_attempts: int = 5
    frozen: bool = False
    behind: bool = False
    host: HostState
    desired: Desired
    status: Status
    wake: int
    now: datetime
    owner: bool = True
    claimed: bool = True

    @property
    def rebuilding(self) -> bool:
        """Whether a rebuild was asked for of which nobody has told that it is done."""
        return self.status.applied_rebuild_generation < self.desired.rebuild_generation

    @property
    def stop_timeout_seconds(self) -> int:
        """How long a guest is asked before it is killed: not at all if its disk is to be destroyed at once."""
        quarantine = self.status.quarantine
        if self.desired.deleted and quarantine is not None and quarantine.destroy_at <= quarantine.since:
            return 0
        return min(self.desired.stop_timeout_seconds, LONGEST_STOP_SECONDS)
