"""What a host holds and no row places there: when it has vanished, or is misplaced, and when a brake keeps all as is.

A VM whose row is lost is stopped and kept, and destroyed days later: so only a report that is whole, under the fleet's
present epoch, and by a worker that may act says anything here (L-R1), and many at once are a mistake of the control
plane rather than that many VMs which nobody wants (H-R2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from model.base import Lenient
from model.report import HostReport, VmReport
from model.versions import is_below
from model.vm import PowerState

APART = timedelta(minutes=1)
"""How far apart the two reports must be at least that name a VM without a row."""
VANISH_GRACE = timedelta(days=7)
"""How long a vanished VM is kept (L-R3)."""
BRAKE_WINDOW = timedelta(hours=1)
VANISH_BRAKE = 3
VANISH_BRAKE_PERCENT = 5

Choice = Literal["braked", "left", "stopped"]


class ForeignVm(Lenient):
    """A VM that its host named. `placed_on`: its row names that host; `is_gone`: it was destroyed lately.

    `named_since`: the first report that counts, of `instance_id` under `epoch`, which named it. `choice`: the brake
    holds it until an operator chooses, one chose to leave it, or it is misplaced and stopped, under `stop_pass`.
    """

    vm_id: str
    power_state: PowerState | None = None
    seen_at: datetime
    quarantined_at: datetime | None = None
    unreadable: str | None = None
    placed_on: str | None = None
    is_gone: bool = False
    named_since: datetime | None = None
    instance_id: str | None = None
    epoch: int | None = None
    choice: Choice | None = None
    stop_pass: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it is stopped and kept there already."""
        return self.quarantined_at is not None and self.power_state in (None, PowerState.STOPPED)

    @property
    def is_misplaced(self) -> bool:
        """Whether its row names another host."""
        return self.placed_on is not None

    @property
    def counts(self) -> bool:
        """Whether it would vanish, or be stopped as misplaced: nothing else explains it, and nobody chose."""
        if self.is_gone or self.choice in ("left", "stopped"):
            return False
        return not (self.is_misplaced and self.is_kept)


@dataclass(frozen=True)
class FleetFacts:
    """What the store knows of the fleet at the moment of a report. `held`: frozen, or behind its hosts (H-R1, H-R3)."""

    epoch: int
    floor: str | None
    held: bool


@dataclass(frozen=True)
class Judged:
    """What is to be kept of a host's foreign VMs, which of them vanished now, and which misplaced ones are to stop."""

    kept: tuple[ForeignVm, ...]
    vanished: tuple[str, ...] = ()
    misplaced: tuple[str, ...] = ()


def says_what_vanished(report: HostReport, fleet: FleetFacts) -> bool:
    """Say whether a report may prove that a VM has no row: whole, under this epoch, and not floored (H-S5)."""
    return (
        report.whole
        and report.epoch == fleet.epoch
        and not fleet.held
        and not is_below(report.worker_version, fleet.floor)
    )


def named(vm: VmReport, before: ForeignVm | None) -> ForeignVm:
    """Note a VM that a report names, with what was known of it."""
    news = {
        "power_state": vm.observed.power_state,
        "seen_at": vm.observed.seen_at,
        "quarantined_at": vm.quarantined_at,
        "unreadable": vm.unreadable,
    }
    if before is not None:
        return before.model_copy(update=news)
    return ForeignVm.model_validate({"vm_id": vm.vm_id, **news})


def placed(vm: ForeignVm, placed_on: str | None, *, is_gone: bool) -> ForeignVm:
    """Note whether a row places the VM elsewhere, or it was destroyed; two reports must find it the same."""
    news: dict[str, object] = {"placed_on": placed_on, "is_gone": is_gone}
    if placed_on != vm.placed_on or is_gone != vm.is_gone:
        news["named_since"] = None
    return vm.model_copy(update=news)


def judge(
    found: Mapping[str, ForeignVm],
    report: HostReport,
    fleet: FleetFacts,
    *,
    now: datetime,
    lately: int,
    brake: int = VANISH_BRAKE,
) -> Judged:
    """Judge what a host holds by its newest report.

    found: everything that the host named and no row places there, this report's included. lately: how many of this host
    vanished, or were stopped as misplaced, within `BRAKE_WINDOW`.
    """
    if not says_what_vanished(report, fleet):
        return Judged(tuple(found[vm_id] for vm_id in sorted(found)))
    kept = {vm_id: _since(found[vm_id], report, fleet, now) for vm_id in sorted(found)}
    counted = [vm for vm in kept.values() if vm.counts]
    if counted and reaches_brake(lately + len(counted), len(report.vms), brake):
        for vm in counted:
            kept[vm.vm_id] = vm.model_copy(update={"choice": "braked"})
        return Judged(tuple(kept.values()))
    due = [vm for vm in counted if is_due(vm, now) and vm.unreadable is None]
    return Judged(
        tuple(kept.values()),
        tuple(vm.vm_id for vm in due if not vm.is_misplaced),
        tuple(vm.vm_id for vm in due if vm.is_misplaced),
    )


def is_due(vm: ForeignVm, now: datetime) -> bool:
    """Say whether a whole report of now would be the second that names the VM."""
    return vm.counts and vm.choice is None and vm.named_since is not None and now - vm.named_since >= APART


def reaches_brake(vanishing: int, vms: int, brake: int) -> bool:
    """Say whether so many of a host's `vms` within an hour are too many to be stopped; 5 % of a large host are not."""
    return vanishing > max(brake, vms * VANISH_BRAKE_PERCENT // 100)


def _since(vm: ForeignVm, report: HostReport, fleet: FleetFacts, now: datetime) -> ForeignVm:
    """Keep since when one instance under one epoch has named it; another one begins anew."""
    if not vm.counts:
        return vm.model_copy(update={"named_since": None})
    if vm.named_since is None or (vm.instance_id, vm.epoch) != (report.instance_id, fleet.epoch):
        return vm.model_copy(update={"named_since": now, "instance_id": report.instance_id, "epoch": fleet.epoch})
    return vm
