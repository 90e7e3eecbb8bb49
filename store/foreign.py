"""What hosts hold and rows do not: kept with the host from its reports, for everybody who asks (L-R1, H-R2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import asyncpg

from model.errors import NotFound
from model.foreign import BRAKE_WINDOW, FleetFacts, ForeignVm, Judged, is_due, judge, named, placed
from model.report import HostReport
from store.database import reading
from store.fleet import Fleet

if TYPE_CHECKING:
    from store.database import Connection, Pool


@dataclass(frozen=True)
class Found:
    """What a report led to. `vanished`: of whom a row is to be made from the host's record. `ripe`: the next report is
    to be whole. `stop_pass`, `stop_vms`: the misplaced ones that the host is to stop and keep, and under which pass.
    """

    vanished: tuple[str, ...] = ()
    ripe: bool = False
    stop_pass: int | None = None
    stop_vms: tuple[str, ...] = ()


async def list_foreign(pool: Pool, host_id: str) -> tuple[ForeignVm, ...]:
    """Return what a host holds although no row places it there; raise NotFound for an unknown host."""
    async with reading(pool) as connection:
        return await read_foreign(connection, host_id)


async def read_foreign(connection: Connection, host_id: str) -> tuple[ForeignVm, ...]:
    """Read them in the caller's transaction."""
    found = await connection.fetchval("select foreign_vms from hosts where id = $1", host_id)
    if found is None:
        raise NotFound(f"there is no host {host_id}")
    return tuple(map(ForeignVm.model_validate, found))


async def write_foreign(connection: Connection, host_id: str, foreign: Collection[ForeignVm]) -> None:
    """Replace what is kept of a host's foreign VMs; its row must be locked."""
    entries = [vm.model_dump(mode="json") for vm in sorted(foreign, key=lambda vm: vm.vm_id)]
    await connection.execute("update hosts set foreign_vms = $2 where id = $1", host_id, entries)


async def note_vanished(connection: Connection, host_id: str, count: int = 1) -> None:
    """Count VMs of a host that vanish, or are stopped as misplaced, now; its row must be locked (H-R2)."""
    await connection.execute(
        """update hosts set vanished_at = array(select at from unnest(vanished_at) at where at > now() - $2::interval)
            || array_fill(now(), array[$3::integer]) where id = $1""",
        host_id,
        BRAKE_WINDOW,
        count,
    )


async def store_foreign(
    connection: Connection,
    host: asyncpg.Record,
    report: HostReport,
    known: Collection[str],
    fleet: Fleet | None,
    brake: int,
) -> Found:
    """Keep what the host named and no row places there, and say what comes of it (L-R1); the host's row is locked.

    A whole report replaces the list. `fleet` None: the host was given up, so nothing comes of it.
    """
    before = {vm.vm_id: vm for vm in map(ForeignVm.model_validate, host["foreign_vms"])}
    kept = {} if report.whole else dict(before)
    for vm in report.vms:
        if vm.vm_id not in known and not vm.observed.nothing:
            kept[vm.vm_id] = named(vm, before.get(vm.vm_id))
    kept = await _place(connection, host["id"], kept)
    judged, found = Judged(tuple(kept[vm_id] for vm_id in sorted(kept))), Found()
    if fleet is not None:
        judged, found = await _judge(connection, host, report, kept, fleet, brake)
    if list(judged.kept) != list(before.values()):
        await write_foreign(connection, host["id"], judged.kept)
    return found


async def _place(connection: Connection, host_id: str, found: Mapping[str, ForeignVm]) -> dict[str, ForeignVm]:
    """Say of each whether a row names another host, or it was made gone; one that has its row here is none."""
    ids = sorted(found)
    if not ids:
        return {}
    # What was made gone this moment may still be in a report that was on its way.
    gone = {
        record["vm_id"]: record["just"]
        for record in await connection.fetch(
            """select vm_id, at > now() - interval '1 minute' and forgotten is null as just from gone
            where vm_id = any($1)""",
            ids,
        )
    }
    rows = {
        record["id"]: record["host_id"]
        for record in await connection.fetch("select id, host_id from vms where id = any($1)", ids)
    }
    return {
        vm_id: placed(found[vm_id], rows.get(vm_id), is_gone=vm_id in gone)
        for vm_id in ids
        if not gone.get(vm_id) and rows.get(vm_id) != host_id
    }


async def _judge(
    connection: Connection,
    host: asyncpg.Record,
    report: HostReport,
    found: Mapping[str, ForeignVm],
    fleet: Fleet,
    brake: int,
) -> tuple[Judged, Found]:
    facts = facts_of(fleet, host)
    now: datetime = await connection.fetchval("select now()")
    judged = judge(found, report, facts, now=now, lately=len(lately(host, now)), brake=brake)
    kept = {vm.vm_id: vm for vm in judged.kept}
    if judged.misplaced:
        stop_pass = await connection.fetchval("select nextval('pass')")
        for vm_id in judged.misplaced:
            kept[vm_id] = kept[vm_id].model_copy(update={"choice": "stopped", "stop_pass": stop_pass})
        await note_vanished(connection, host["id"], len(judged.misplaced))
    whole_at: datetime | None = host["last_whole_at"]
    stopping = [] if facts.held else [vm for vm in kept.values() if vm.choice == "stopped" and not vm.is_kept]
    return Judged(tuple(kept.values())), Found(
        vanished=judged.vanished,
        ripe=not report.whole
        and not facts.held
        and any(is_due(vm, now) and not _was_whole_since(vm, whole_at) for vm in kept.values()),
        stop_pass=max((vm.stop_pass or 0 for vm in stopping), default=None),
        stop_vms=tuple(vm.vm_id for vm in stopping),
    )


def facts_of(fleet: Fleet, host: asyncpg.Record) -> FleetFacts:
    """Say what of the fleet and of the host's own row decides whether anything may vanish there."""
    held = fleet.frozen or host["frozen"] or fleet.behind
    return FleetFacts(epoch=fleet.epoch, floor=fleet.min_worker_version, held=held)


def lately(host: asyncpg.Record, now: datetime) -> list[datetime]:
    """Return when VMs of the host vanished within the brake's window, by Postgres' clock (H-R2)."""
    return [at for at in host["vanished_at"] if now - at < BRAKE_WINDOW]


def _was_whole_since(vm: ForeignVm, whole_at: datetime | None) -> bool:
    """Whether a whole report has come that could have been the second one: it is not asked for again and again."""
    return whole_at is not None and is_due(vm, whole_at)
