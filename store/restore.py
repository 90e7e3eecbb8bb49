"""A store that is behind its hosts, as after a restore: seen, listed, settled by a person, and ended (H-R1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import asyncpg

from model.errors import Conflict
from model.report import HostReport, VmReport
from model.restore import Choice, Kind, Wanted, compare
from store.audit import Actor, write_audit
from store.change import DISOWN
from store.database import transaction
from store.fleet import NOTE_START, Fleet, get_fleet, mark_behind, read_fleet

if TYPE_CHECKING:
    from store.database import Connection, Pool


@dataclass(frozen=True)
class Item:
    """One VM that a person has to settle. `name` and `project` are those of its row; `choice` is what was chosen."""

    host_id: str
    host_name: str
    vm_id: str
    project: str | None
    name: str | None
    kind: Kind
    differs: tuple[str, ...]
    told: VmReport | None
    choice: Choice | None
    placed_on: str | None


@dataclass(frozen=True)
class Listing:
    """How far a restore is. `unheard`: hosts that have not told all that they hold since it began."""

    fleet: Fleet
    unheard: tuple[tuple[str, datetime | None], ...]
    items: tuple[Item, ...]


async def compare_with_host(connection: Connection, host: asyncpg.Record, report: HostReport) -> Fleet:
    """Mark the store as behind where the host has seen an epoch or a pass that it has not reached; return the fleet.

    No host is ever ahead of the store that its orders come from: a pass is durable there before it orders anything. A
    host that is heard for the first time since the server's start was ordered nothing since.
    """
    await connection.execute(NOTE_START)
    fleet = await read_fleet(connection)
    reached = "pass_at_start" if host["unheard"] else "(select last_value from pass)"
    last_pass: int = await connection.fetchval(f"select {reached} from fleet")
    if fleet.behind or (report.epoch <= fleet.epoch and report.pass_number <= last_pass):
        return fleet
    await mark_behind(
        connection,
        f"the host {host['name']} has seen pass {report.pass_number} of epoch {report.epoch}, the store has only "
        f"reached pass {last_pass} of epoch {fleet.epoch}",
    )
    return await read_fleet(connection)


async def keep_told(connection: Connection, host_id: str, report: HostReport) -> bool:
    """Keep what a host tells that it holds while the store is behind; say whether it is yet to tell all of it."""
    if report.whole:
        await connection.execute("delete from restore_told where host_id = $1", host_id)
    await connection.executemany(
        """insert into restore_told (host_id, vm_id, told) values ($1, $2, $3)
        on conflict (host_id, vm_id) do update set told = excluded.told, at = now()""",
        [(host_id, vm.vm_id, vm.model_dump(mode="json")) for vm in report.vms],
    )
    listed: bool = await connection.fetchval(
        "select coalesce(h.last_whole_at >= f.behind_since, false) from hosts h cross join fleet f where h.id = $1",
        host_id,
    )
    return not listed


_ITEMS = """
select coalesce(v.host_id, t.host_id) as host_id, h.name as host_name, coalesce(v.id, t.vm_id) as vm_id,
    v.project, v.name, v.id is not null as has_row, v.power_state, v.deleted, v.generation, v.spec_generation,
    v.restart_generation, v.rebuild_generation, v.input_digest, t.told, s.choice, e.host_id as placed_on
from vms v full join restore_told t on t.vm_id = v.id and t.host_id = v.host_id
    join hosts h on h.id = coalesce(v.host_id, t.host_id) cross join fleet f
    left join restore_settled s on s.host_id = h.id and s.vm_id = coalesce(v.id, t.vm_id)
    left join vms e on e.id = t.vm_id and e.host_id <> t.host_id
where h.last_whole_at >= f.behind_since
order by h.name, vm_id"""
_UNHEARD = """
select h.name, h.last_report_at from hosts h cross join fleet f
where h.status <> 'forgotten' and (h.instance_id is not null or exists (select 1 from vms v where v.host_id = h.id))
    and coalesce(h.last_whole_at < f.behind_since, true) order by h.name"""


async def list_restore(pool: Pool) -> Listing:
    """List what is to be settled of the hosts that have told all that they hold, and those that have not."""
    fleet = await get_fleet(pool)
    if not fleet.behind:
        return Listing(fleet, (), ())
    async with transaction(pool) as connection:
        unheard = await connection.fetch(_UNHEARD)
        return Listing(fleet, tuple(map(tuple, unheard)), await read_items(connection))


async def read_items(connection: Connection) -> tuple[Item, ...]:
    """Compare rows and hosts; settled ones stay listed."""
    return tuple(item for record in await connection.fetch(_ITEMS) if (item := _to_item(record)) is not None)


def _to_item(record: asyncpg.Record) -> Item | None:
    told = VmReport.model_validate(record["told"]) if record["told"] else None
    wanted = Wanted(**{name: record[name] for name in Wanted.model_fields}) if record["has_row"] else None
    found = compare(wanted, told)
    if record["choice"] in ("adopt", "quarantine"):
        found = ("unknown", ("its host holds it, and its row was made of that",))
    elif record["choice"] is not None:
        found = found or ("changed", ())
    if found is None:
        return None
    names = ("host_id", "host_name", "vm_id", "project", "name", "choice", "placed_on")
    return Item(**{name: record[name] for name in names}, kind=found[0], differs=found[1], told=told)


async def begin_restore(pool: Pool, actor: Actor) -> None:
    """Declare the control plane restored, moved or new, where nothing else can tell; it stands still from now on."""
    async with transaction(pool) as connection:
        await mark_behind(connection, "an operator has declared that it was restored, moved or made anew")
        await write_audit(connection, actor, project="public", action="restore.begin", subject="fleet")


async def finish_restore(pool: Pool, actor: Actor) -> int:
    """End the standstill and return the new epoch; raise Conflict while anything is not settled.

    Pass sequence and counters go on above all that hosts have seen, every grace and every pass begins anew.
    """
    async with transaction(pool) as connection:
        await connection.execute("select 1 from fleet for update")
        fleet = await read_fleet(connection)
        if not fleet.behind:
            raise Conflict("nothing is being restored: `hostler restore --begin` declares that this database is older")
        unheard = [record["name"] for record in await connection.fetch(_UNHEARD)]
        if unheard:
            raise Conflict(
                f"not all hosts have told what they hold: {', '.join(unheard)}; bring them back, or give up those that "
                "are dead (`hostler host forget`)"
            )
        items = await read_items(connection)
        left = sum(item.choice is None for item in items)
        if left:
            raise Conflict(f"{left} of {len(items)} VMs are not settled: `hostler restore` lists them")
        epoch = await _raise_numbers(connection)
        await _begin_anew(connection)
        await write_audit(
            connection,
            actor,
            project="public",
            action="restore.finish",
            subject="fleet",
            before={"epoch": fleet.epoch, "why": fleet.behind_why},
            after={"epoch": epoch, "settled": {item.vm_id: item.choice for item in items}},
        )
        return epoch


async def _raise_numbers(connection: Connection) -> int:
    """Lift what only ever rises above all that hosts have told, and note which database this is from now on."""
    await connection.execute(
        """select setval('pass', greatest((select last_value from pass),
                (select max((report -> 'pass_number')::bigint) from hosts)) + 1),
            setval('host_certificate_serial', greatest((select last_value from host_certificate_serial),
                (select max((told #> '{observed,certificate_serial}')::bigint)
                    from restore_told where told #> '{observed,certificate_serial}' <> 'null')) + 1)"""
    )
    # A restart or a rebuild is asked for by its counter: those are only caught up with.
    await connection.execute(
        """update vms v set
            generation = greatest(v.generation, case when s.choice is null then 0 else r.generation + 1 end),
            spec_generation = greatest(v.spec_generation, r.spec_generation),
            restart_generation = greatest(v.restart_generation, r.restart_generation),
            rebuild_generation = greatest(v.rebuild_generation, r.rebuild_generation),
            applied_rebuild_generation = greatest(v.applied_rebuild_generation, r.rebuild_generation)
        from restore_told t left join restore_settled s using (host_id, vm_id)
            cross join jsonb_to_record(t.told -> 'recorded') as r(generation bigint,
                spec_generation bigint, restart_generation bigint, rebuild_generation bigint)
        where t.host_id = v.host_id and t.vm_id = v.id and t.told -> 'recorded' <> 'null'"""
    )
    epoch: int = await connection.fetchval(
        """update fleet set epoch = 1 + greatest(epoch, (select max((report -> 'epoch')::bigint) from hosts)),
            behind = false, behind_since = null, behind_why = null,
            system_identifier = s.system_identifier::text, timeline = c.timeline_id
        from pg_control_system() s, pg_control_checkpoint() c returning epoch"""
    )
    return epoch


async def _begin_anew(connection: Connection) -> None:
    """Start every grace anew, take every row from its pass, and look at all of them, spread over half a minute.

    What hosts have seen counts anew, too: of a VM that is made again its host begins at 1.
    """
    await connection.execute(
        f"""update vms set destroy_at = case when destroying then destroy_at else now() + quarantine_grace end,
            observed_revision = 0, old_disk_until = greatest(old_disk_until, now() + interval '24 hours'),
            wake = wake + 1, due_at = now() + random() * interval '30 seconds', expected_by = null, {DISOWN}"""
    )
    await connection.execute(
        "update volumes set destroy_at = now() + (destroy_at - deleted_at) where deleted and not destroying"
    )
    # Whom a person left as it is, no report makes vanish (H-R2).
    await connection.execute(
        """update hosts h set foreign_vms = (select jsonb_agg(case when s.choice = 'leave'
                then f.vm || '{"choice": "left"}' else f.vm end order by f.place)
            from jsonb_array_elements(h.foreign_vms) with ordinality as f (vm, place)
                left join restore_settled s on s.host_id = h.id and s.vm_id = f.vm ->> 'vm_id')
        where exists (select 1 from restore_settled s where s.host_id = h.id and s.choice = 'leave')
            and h.foreign_vms <> '[]'"""
    )
    await connection.execute("delete from restore_told")
    await connection.execute("delete from restore_settled")
