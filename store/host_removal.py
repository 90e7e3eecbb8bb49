"""Remove a host that is drained and, by its own report, empty (H-D5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from model.errors import Conflict, NotFound
from store.audit import Actor, write_audit
from store.database import transaction
from store.host import HOST_ID

if TYPE_CHECKING:
    from store.database import Pool

# `emptied_at`: when the last of it went that rows told of; a whole report that is later proves that nothing is left.
_LOOK = f"""
select h.id, h.name, h.status, h.report, h.last_whole_at, h.last_report_at, host_is_silent(h) as silent,
    (select count(*) from vms v where v.host_id = h.id and not v.deleted) as vms,
    (select count(*) from vms v where v.host_id = h.id and v.deleted) as leaving,
    (select max(v.destroy_at) from vms v where v.host_id = h.id and v.deleted) as leaving_until,
    (select count(*) from volumes o where o.host_id = h.id) as volumes,
    jsonb_array_length(h.foreign_vms) as foreign_vms, jsonb_array_length(h.foreign_volumes) as foreign_volumes,
    coalesce((h.report ->> 'unmanaged')::integer, 0) as unmanaged,
    greatest((select max(g.at) from gone g where g.host_id = h.id),
        (select c.ended_at from campaigns c where c.host_id = h.id and c.kind = 'drain' and c.state = 'done')
    ) as emptied_at
from hosts h
where h.id = {HOST_ID} for update of h"""


async def remove_host(pool: Pool, host: str, actor: Actor) -> tuple[str, str]:
    """Remove a host: its name is free, its credential ends. Return id and name; raise Conflict with what keeps it."""
    async with transaction(pool) as connection:
        record = await connection.fetchrow(_LOOK, host)
        if record is None:
            raise NotFound(f"there is no host {host}")
        why = _find_reason(record)
        if why is not None:
            raise Conflict(f"the host {record['name']} is not removed: {why}")
        await connection.execute(
            "update campaigns set state = 'cancelled', due_at = null where host_id = $1 and kind = 'drain'",
            record["id"],
        )
        await connection.execute("delete from hosts where id = $1", record["id"])
        await write_audit(
            connection,
            actor,
            project="public",
            action="host.rm",
            subject=f"host/{record['id']}",
            before={"name": record["name"], "status": record["status"]},
        )
        return record["id"], record["name"]


def _find_reason(host: asyncpg.Record) -> str | None:
    """Say what keeps a host, and what to do about it; None: nothing does."""
    name = host["name"]
    if host["status"] != "drained":
        return f"it is {host['status']}; drain it first (`hostler host drain {name}`)"
    if host["vms"]:
        return f"{_count(host['vms'], 'VM is', 'VMs are')} on it; delete them, or undrain it to have them back"
    if host["leaving"]:
        until = f"{host['leaving_until']:%Y-%m-%dT%H:%M:%SZ}"
        return f"{_count(host['leaving'], 'deleted VM is', 'deleted VMs are')} kept on it, the last until {until}; wait"
    if host["volumes"]:
        return f"{_count(host['volumes'], 'volume is', 'volumes are')} on it; delete them, and wait out their grace"
    if host["silent"]:
        told = "it is silent, so nobody knows whether it is empty"
        return f"{told}; a host that is dead is given up (`hostler host forget {name}`)"
    if host["foreign_vms"] or host["unmanaged"]:
        told = _count(host["foreign_vms"] + host["unmanaged"], "VM", "VMs")
        return f"it reports {told} that no row knows (`hostler host show {name}`); settle them first"
    if host["foreign_volumes"]:
        told = _count(host["foreign_volumes"], "volume", "volumes")
        return f"it reports {told} that no row knows (`hostler volume foreign {name}`); adopt and delete them first"
    emptied, whole = host["emptied_at"], host["last_whole_at"]
    if whole is None or (emptied is not None and whole <= emptied):
        return "it has not told all that it holds since it was emptied; it does within ten minutes, try again then"
    return None


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
