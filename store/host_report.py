"""Take a host's report: store what it saw of its own VMs, and wake what moved, in one transaction (S-6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import asyncpg

from model.errors import Conflict, NotFound
from model.foreign import VANISH_BRAKE
from model.generations import VmChange
from model.report import HostReport, ReportAnswer, VmReport
from model.versions import floor_for
from model.vm import PowerState
from model.waiting import Waiting
from store.audit import Actor
from store.change import DISOWN, WAKE, WokenVm, find_woken
from store.database import transaction
from store.fleet import Fleet, read_fleet
from store.foreign import store_foreign
from store.observed import Seen, store_observed
from store.restore import compare_with_host, keep_told
from store.room import wake_refused
from store.sync import wake_for_sync
from store.vm_change import change_locked
from store.volume_report import release_volumes, store_volumes

if TYPE_CHECKING:
    from store.database import Connection, Pool

# First contact after an outage wakes over this time, not all in one moment (H-S12).
_SPREAD = "interval '30 seconds'"
_MANY = 50
"""As many as the sweep wakes in a second are woken at once."""


@dataclass(frozen=True)
class ReportTaken:
    """The answer for the host, whom to poke, and of whom a row is to be made from the host's record (L-R1).

    `sync`: the host's own sync is to be poked, too.
    """

    answer: ReportAnswer
    pokes: tuple[WokenVm, ...]
    vanished: tuple[str, ...] = ()
    sync: bool = False


async def store_report(
    pool: Pool, host_id: str, report: HostReport, *, vanish_brake: int = VANISH_BRAKE
) -> ReportTaken:
    """Store a report and wake the VMs that it gives a reason to look at.

    A number that was stored already, or a lower one, changes nothing; only a whole report with a lower number is
    taken: the host was rolled back (H-E2). Another machine under the same instance raises Conflict. What one that was
    given up tells is shown, and changes nothing of any VM (L-R10).
    """
    async with transaction(pool) as connection:
        host = await connection.fetchrow(
            """select *, host_is_silent(h) as silent, last_report_at < pg_postmaster_start_time() as unheard
                , status = 'drained' and coalesce(last_whole_at < now() - interval '1 minute', true) as must_tell_all
            from hosts h where id = $1 for no key update""",
            host_id,
        )
        if host is None:
            raise NotFound(f"there is no host {host_id}")
        arrival = _judge(host, report)
        if not arrival.taken:
            return ReportTaken(await _answer(connection, report, host["report_number"], want_whole=arrival.late), ())
        await _store_host(connection, host, report, arrival)
        if host["status"] == "forgotten":
            await store_foreign(connection, host, report, (), None, vanish_brake)
            want_whole = not report.whole and arrival.first
            answer = await _answer(connection, report, report.number, want_whole=want_whole)
            return ReportTaken(answer.model_copy(update={"forgotten_pass": host["forgotten_pass"]}), ())
        fleet = _with_floor_for(report, await compare_with_host(connection, host, report))
        if arrival.new_state:
            await _forget_revisions(connection, host_id)
        before = await _read_vms(connection, host_id, report)
        known = [vm for vm in report.vms if vm.vm_id in before]
        seen = [Seen(vm.vm_id, vm.observed, vm.unreadable, unrecorded=vm.unreadable is not None) for vm in known]
        stored = await store_observed(connection, host_id, report.instance_id, seen)
        taken = await _take_poweroffs(connection, before, known, stored)
        stopped = await _stop_by_guest(connection, before, taken)
        woken = {vm.vm_id for vm in known if _gives_reason(before[vm.vm_id], vm, vm.vm_id in stored)}
        woken = (woken | {vm.vm_id for vm in taken}) - stopped
        woken |= before.keys() - {vm.vm_id for vm in report.vms}
        if host["worker_version"] not in (None, report.worker_version) or set(report.activity_names or ()) - set(
            host["activity_names"]
        ):
            woken |= await _find_outdated(connection, host_id)
        await connection.execute(f"update vms set {WAKE} where id = any($1)", sorted(woken))
        await store_volumes(connection, host_id, report)
        foreign = await store_foreign(connection, host, report, before.keys(), fleet, vanish_brake)
        if host["silent"] or host["unheard"] or arrival.new_state:
            woken |= await _wake_unsettled(connection, host_id, everything=arrival.new_state)
        fits = await wake_refused(connection, host_id)
        unlisted = fleet.behind and await keep_told(connection, host_id, report)
        pokes = await find_woken(connection, sorted(woken | stopped | ({fits} if fits else set())))
        removed = await release_volumes(connection, host_id, report, fleet)
        sync = await wake_for_sync(connection, host, report, fleet)
        answer = await _answer(
            connection,
            report,
            report.number,
            want_whole=not report.whole and (arrival.first or unlisted or host["must_tell_all"] or foreign.ripe),
        )
        told = {"remove_volumes": removed, "stop_pass": foreign.stop_pass, "stop_vms": foreign.stop_vms}
        return ReportTaken(answer.model_copy(update=told), pokes, foreign.vanished, sync=sync)


@dataclass(frozen=True)
class _Arrival:
    """What a report's instance and number say. `late`: it comes after a newer one."""

    taken: bool
    first: bool = False
    late: bool = False
    lost: bool = False
    rolled_back: bool = False

    @property
    def new_state(self) -> bool:
        return self.lost or self.rolled_back


def _judge(host: asyncpg.Record, report: HostReport) -> _Arrival:
    if host["instance_id"] is None:
        return _Arrival(taken=True, first=True)
    if host["instance_id"] != report.instance_id:
        return _Arrival(taken=True, first=True, lost=True)
    if host["machine_id"] not in (None, report.machine_id):
        raise Conflict(
            "another machine reports with a copy of this host's state directory; run the worker on one of them only"
        )
    if report.number > host["report_number"]:
        return _Arrival(taken=True)
    if report.whole and report.number < host["report_number"]:
        return _Arrival(taken=True, first=True, rolled_back=True)
    return _Arrival(taken=False, late=report.number < host["report_number"])


async def _store_host(connection: Connection, host: asyncpg.Record, report: HostReport, arrival: _Arrival) -> None:
    await connection.execute(
        """update hosts set status = case when status = 'joining' then 'ready' else status end, instance_id = $2,
            machine_id = $3, boot_id = $4, worker_version = $5, report = $7, report_number = $8,
            activity_names = coalesce($6, activity_names),
            last_report_at = now(), last_whole_at = case when $9 then now() else last_whole_at end,
            state_lost_at = case when $10 then now() else state_lost_at end,
            rolled_back_at = case when $11 then now() else rolled_back_at end
        where id = $1""",
        host["id"],
        report.instance_id,
        report.machine_id,
        report.boot_id,
        report.worker_version,
        report.activity_names,
        report.model_dump(mode="json", exclude={"vms"}),
        report.number,
        report.whole,
        arrival.lost,
        arrival.rolled_back,
    )


async def _forget_revisions(connection: Connection, host_id: str) -> None:
    """A host that lost its state counts anew; no pass that asked the former one writes its answer any more."""
    await connection.execute(
        f"update vms set observed_instance = null, observed_revision = 0, {DISOWN} where host_id = $1", host_id
    )


async def _read_vms(connection: Connection, host_id: str, report: HostReport) -> dict[str, asyncpg.Record]:
    """Lock the reported VMs that this host has a row for, in one order, and return them by id.

    Also those that a whole report leaves out although they once lived there: their records are lost (L-V9).
    """
    records = await connection.fetch(
        """select *, claim_until > now() as claimed, exists (select 1 from operations o where o.vm_id = vms.id
                and o.ended_at is null and o.kind in ('power', 'restart')) as power_asked
            from vms where host_id = $1 and (id = any($2)
            or ($3 and first_ready_at is not null and not deleted and phase <> 'failed'))
        order by id for no key update""",
        host_id,
        [vm.vm_id for vm in report.vms],
        report.whole,
    )
    return {record["id"]: record for record in records}


async def _take_poweroffs(
    connection: Connection, before: dict[str, asyncpg.Record], known: list[VmReport], stored: frozenset[str]
) -> list[VmReport]:
    """Note the guests' own power-offs, each once, which lets passes go on; return the new ones (L-V4).

    A worker of an earlier release does not say which power-off it tells of: it counts when it is news.
    """
    taken: list[VmReport] = []
    for vm in known:
        setback = vm.observed.setback.model_dump(mode="json") if vm.observed.setback else None
        if not vm.guest_stopped_itself or before[vm.vm_id]["held"]:
            continue
        if setback is None and vm.vm_id in stored:
            taken.append(vm)
        elif setback is not None and setback != before[vm.vm_id]["poweroff_taken"]:
            await connection.execute("update vms set poweroff_taken = $2 where id = $1", vm.vm_id, setback)
            taken.append(vm)
    return taken


async def _stop_by_guest(connection: Connection, before: dict[str, asyncpg.Record], taken: list[VmReport]) -> set[str]:
    """L-V4 with `stop`: a guest that powered itself off makes `stopped` the desired state. Return whom it stopped.

    Not where its user asked for a start since it was booted, which no pass has done yet: the later wish counts
    (case A6).
    """
    stopped: set[str] = set()
    for vm in taken:
        row = before[vm.vm_id]
        asked = row["power_state"] == PowerState.RUNNING and row["on_guest_poweroff"] == "stop"
        is_later = row["generation"] + row["restart_generation"] > vm.observed.started_for
        if asked and not row["deleted"] and not (row["power_asked"] and is_later):
            await change_locked(connection, row, VmChange(power_state=PowerState.STOPPED), Actor("guest"))
            stopped.add(vm.vm_id)
    return stopped


def _gives_reason(row: asyncpg.Record, vm: VmReport, stored: bool) -> bool:
    """Say whether a report is a reason to look: the host asks for it, or what it saw moved and is not as wanted.

    A pass that is at work sees what it brings about by itself.
    """
    if vm.look:
        return True
    power = vm.observed.power_state
    moved = power != row["observed_power_state"] or vm.unreadable != row["unreadable"]
    as_wanted = power == row["power_state"] and vm.unreadable is None
    expected = as_wanted and (row["phase"] == "ready" or bool(row["claimed"]))
    return stored and moved and not expected


async def _find_outdated(connection: Connection, host_id: str) -> set[str]:
    """Find whom a host's worker of another release than the one before may serve now (H-D4, H-S5)."""
    found = await connection.fetch(
        "select id from vms where host_id = $1 and waiting_for = any($2)",
        host_id,
        [Waiting.HOST_OUTDATED, Waiting.HOST_BELOW_FLOOR],
    )
    return {record["id"] for record in found}


async def _wake_unsettled(connection: Connection, host_id: str, *, everything: bool) -> set[str]:
    """A host is back: look at all that waited for it; whom it refused, when it has room.

    Return whom to poke at once: all, where they are few. Many are spread over half a minute, and left to the sweep.
    """
    woken = await connection.fetch(
        f"""with waiting as (select id, count(*) over () > {_MANY} as many from vms
            where host_id = $1 and ($2 or due_at is not null or waiting_for = '{Waiting.BEHIND}'
                or (waiting_for is distinct from '{Waiting.REFUSED}'
                    and (observed_generation <> generation or phase not in ('ready', 'sleeping')))))
        update vms set wake = wake + 1, due_at = case when many then least(due_at, now() + random() * {_SPREAD})
            else now() end
        from waiting where vms.id = waiting.id returning vms.id, many""",
        host_id,
        everything,
    )
    return {record["id"] for record in woken if not record["many"]}


def _with_floor_for(report: HostReport, fleet: Fleet) -> Fleet:
    return replace(fleet, min_worker_version=floor_for(report.worker_version, fleet.min_worker_version))


async def _answer(connection: Connection, report: HostReport, acknowledged: int, *, want_whole: bool) -> ReportAnswer:
    fleet = _with_floor_for(report, await read_fleet(connection))
    return ReportAnswer(
        acknowledged=acknowledged,
        want_whole=want_whole,
        epoch=fleet.epoch,
        min_worker_version=fleet.min_worker_version,
    )
