"""What is wrong in the fleet now, worst first, each with what is done about it and what a person can do (A-10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter

from api.documents.base import ConditionName, Page
from api.documents.condition import FleetCondition, Severity
from api.gate import PartsOf, Viewer
from api.health import temporal_answers
from api.host_conditions import host_conditions
from api.parts import Parts
from api.route import GatedRoute
from api.why import error_for, why
from model.decide.setback import FAILING
from model.report import HostReport
from model.text import clean_text
from model.vm import Phase
from store.fleet import Fleet, get_fleet
from store.host import StoredHost
from store.troubles import Ending, Late, find_endings, find_late
from store.vm import StoredVm

router = APIRouter(prefix="/v1/conditions", tags=["fleet"], route_class=GatedRoute)

SEVERITIES: dict[ConditionName, Severity] = {
    "behind": "critical",
    "temporal_away": "critical",
    "work_late": "critical",
    "host_silent": "critical",
    "vm_failed": "critical",
    "vm_unreadable": "critical",
    "state_lost": "critical",
    "rolled_back": "critical",
    "rows_missing": "critical",
    "sync_fenced": "critical",
    "misplaced": "warning",
    "sync_failed": "warning",
    "host_floored": "warning",
    "clock_off": "warning",
    "memory_short": "warning",
    "disk_short": "warning",
    "revoked": "warning",
    "unmanaged": "warning",
    "credential_ends": "warning",
    "token_ends": "warning",
    "vm_ends_again": "warning",
    "vm_overdue": "warning",
    "vm_soon_destroyed": "notice",
    "frozen": "notice",
}
_ORDER: tuple[Severity, ...] = ("critical", "warning", "notice")
_CLOCK_OFF = timedelta(seconds=10)
_MEMORY_SHORT_PERCENT = 5


@router.get("")
async def conditions(caller: Viewer, parts: PartsOf) -> Page[FleetCondition]:
    """List what is wrong, the worst first; a project's token sees what is wrong with its VMs."""
    return Page(items=await find_conditions(parts, caller.project), next_cursor=None)


async def find_conditions(parts: Parts, project: str | None = None) -> list[FleetCondition]:
    """Find everything that is wrong now, as a project sees it, or all of the fleet."""
    found = [_of_vm(vm, project) for vm in await parts.vms.list_troubled(project)]
    if project is None:
        fleet = await get_fleet(parts.pool)
        for host in await parts.hosts.list(limit=500):
            found += _of_host(host)
        found += _of_fleet(fleet, await find_late(parts.pool), reached=await temporal_answers(parts))
        found += [_of_ending(ending) for ending in await find_endings(parts.pool)]
        freezes = await parts.freezes.list()
        found += [_FLEET.told("frozen", each.sentence, *_FROZEN, since=each.since) for each in freezes]
    return sorted(found, key=lambda each: (_ORDER.index(each.severity), each.condition, each.object))


_FROZEN = ("guests run on, and no grace runs off", "`hostler unfreeze` lets it go on")


@dataclass(frozen=True)
class _Object:
    """What something is wrong with."""

    where: str
    name: str | None = None

    def told(
        self, condition: ConditionName, what: str, meanwhile: str, advice: str, since: datetime | None = None
    ) -> FleetCondition:
        return FleetCondition(
            severity=SEVERITIES[condition],
            condition=condition,
            object=self.where,
            name=self.name,
            since=since,
            what=clean_text(what),
            meanwhile=meanwhile,
            advice=advice,
        )


_FLEET = _Object("fleet")


def _of_vm(vm: StoredVm, project: str | None) -> FleetCondition:
    told = why(vm, project=project)
    waits = told.what if told else "is as it was left"
    condition, what = "vm_failed", error_for(vm.last_error or vm.unreadable, project) or f"it {waits}"
    if vm.deleted:
        condition, what = "vm_soon_destroyed", f"it is destroyed at {vm.quarantine and vm.quarantine.destroy_at}"
    elif vm.unreadable:
        condition = "vm_unreadable"
    elif (vm.setbacks or 0) >= FAILING:
        condition = "vm_ends_again"
    elif vm.phase is not Phase.FAILED:
        condition, what = "vm_overdue", f"it takes longer than expected: it {waits}"
    advice = told.advice if told else f"`hostler vm show {vm.name}` tells more"
    return _Object(f"vm/{vm.id}", vm.name).told(condition, what, f"it {waits}", advice, vm.waiting_since)


def _of_host(host: StoredHost) -> list[FleetCondition]:
    about, found = _Object(f"host/{host.id}", host.name), list[FleetCondition]()
    if host.silent and host.status not in ("maintenance", "forgotten"):
        what = f"it is silent: nobody can tell what its {host.vms} VMs do"
        meanwhile = "nothing is done to its VMs, and work for it waits"
        advice = f"look at the machine and its worker; is it dead, `hostler host forget {host.name}` gives it up"
        found.append(about.told("host_silent", what, meanwhile, advice, host.last_report_at))
    if host.report is not None:
        found += _measured(about, host.last_report_at, host.report)
    told = host_conditions(host)
    return found + [about.told(each.condition, each.what, "its other guests run on", each.advice) for each in told]


def _measured(about: _Object, heard: datetime | None, report: HostReport) -> list[FleetCondition]:
    found = list[FleetCondition]()
    off = abs(report.clock - heard) if heard is not None else timedelta(0)
    if off > _CLOCK_OFF:
        what, meanwhile = f"its clock is off by {off.total_seconds():.0f} s", "deadlines are kept by Postgres' clock"
        advice = "let a time service set it: guests take their time from it, and certificates fail by it"
        found.append(about.told("clock_off", what, meanwhile, advice))
    free, total = report.capacity.memory_mib_available, report.capacity.memory_mib_total
    if free is not None and total and free * 100 < total * _MEMORY_SHORT_PERCENT:
        what = f"{free} of its {total} MiB of memory are available"
        meanwhile, advice = "guests that need more are killed first", "stop VMs there, or lower its cap on memory"
        found.append(about.told("memory_short", what, meanwhile, advice))
    return found


def _of_fleet(fleet: Fleet, late: Late, *, reached: bool) -> list[FleetCondition]:
    found = list[FleetCondition]()
    if fleet.behind:
        what = fleet.behind_why or "the database is older than what hosts were ordered last"
        meanwhile = "nothing is booted, stopped or destroyed, and deadlines stand still"
        found.append(_FLEET.told("behind", what, meanwhile, "`hostler restore` settles it", fleet.behind_since))
    if not reached:
        meanwhile = "what is asked for is written down, and done once it answers"
        advice = "`hostler status` tells whether it runs, and its log why not"
        found.append(_FLEET.told("temporal_away", "Temporal does not answer", meanwhile, advice))
    if late.count:
        what, meanwhile = f"{late.count} VMs are due and nobody takes them up", "they are offered again every second"
        advice = "`hostler status` tells whether control worker and Temporal run"
        found.append(_FLEET.told("work_late", what, meanwhile, advice, late.since))
    return found


def _of_ending(ending: Ending) -> FleetCondition:
    about = _Object(f"{ending.kind}/{ending.id}", ending.name or None)
    what = f"its credential ends at {ending.at:%Y-%m-%dT%H:%M:%SZ}"
    if ending.kind == "token":
        advice = "make another one (`hostler token create`) and give it to whoever uses this one"
        return about.told("token_ends", what, "it is good until then", advice)
    meanwhile = "its worker renews it with every report until then, and has not managed for weeks"
    advice = f"look at its worker's log; past that `hostler host replace {ending.name}` lets it join again"
    return about.told("credential_ends", what, meanwhile, advice)
