"""What the rows of a host's VMs hold of it, and who is woken when there is room again (H-P3, L-C3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from model.capacity import Caps, Entitlement, find_shortages
from model.waiting import Waiting
from store.change import WAKE

if TYPE_CHECKING:
    from store.database import Connection

# Whom a host's ledger counts, as far as rows can tell; in doubt nobody, so that the rows are never stricter (H-P2).
# A VM that was refused, or whose record is lost, is not on the host; one without a host key was deleted before it was.
_COUNTS = f"""v.unreadable is null and v.waiting_for is distinct from '{Waiting.LOST_RECORD}'
    and not (v.first_ready_at is null and v.waiting_for is not distinct from '{Waiting.REFUSED}')
    and not (v.deleted and v.ssh_host_key is null)"""

_MILLICORES, _MEMORY = "(v.spec ->> 'cpu_millicores')::bigint", "(v.spec ->> 'memory_mib')::bigint"

MADE_GIB = "coalesce((o.made_bytes + (1::bigint << 30) - 1) >> 30, 0)"
"""What a host holds of the volume `o` already, in GiB."""

# What a volume takes of its host: with a VM that counts what is wanted, else what was made.
_VOLUME_GIB = f"""case when exists (select 1 from vms v where v.id = o.vm_id and {_COUNTS})
    then greatest(o.size_gib, {MADE_GIB}) else {MADE_GIB} end"""
_VOLUMES = f"select coalesce(sum({_VOLUME_GIB}), 0)::bigint from volumes o where o.host_id = h.id"
# Of a VM that is not on its host yet: what its volumes will take there beside what is made of them.
_VOLUMES_TO_MAKE = f"""(select coalesce(sum(greatest(o.size_gib - {MADE_GIB}, 0)), 0) from volumes o
    where o.vm_id = v.id)"""

# Compute is released when the guest is proven stopped in quarantine, disk when the row goes (L-R2, L-R6).
HELD = f"""
select coalesce(sum({_MILLICORES}) filter (where not v.deleted), 0)::bigint as live_cpu_millicores,
    coalesce(sum({_MEMORY}) filter (where not v.deleted), 0)::bigint as live_memory_mib,
    coalesce(sum(v.disk_gib) filter (where not v.deleted), 0)::bigint + ({_VOLUMES} and not o.deleted) as live_disk_gib,
    coalesce(sum({_MILLICORES}) filter (where v.deleted and v.quarantine_stopped_at is null), 0)::bigint
        as leaving_cpu_millicores,
    coalesce(sum({_MEMORY}) filter (where v.deleted and v.quarantine_stopped_at is null), 0)::bigint
        as leaving_memory_mib,
    coalesce(sum(v.disk_gib) filter (where v.deleted), 0)::bigint + ({_VOLUMES} and o.deleted) as leaving_disk_gib,
    count(*) filter (where v.deleted) as leaving_vms,
    max(v.destroy_at) filter (where v.deleted) as leaving_until
from vms v where v.host_id = h.id and {_COUNTS}"""

# A VM that the host may hold in part already, as its host key tells, says nothing of how much more it takes: such a one
# is tried once a minute.
_EXACT = "v.first_ready_at is null and v.ssh_host_key is null and v.disk_gib is not null"
_WAITING = f"""
select v.id, {_MILLICORES} as cpu_millicores, {_MEMORY} as memory_mib,
    coalesce(v.disk_gib, 0) + {_VOLUMES_TO_MAKE} as disk_gib, v.due_at,
    v.first_ready_at is null as absent, {_EXACT} as exact
from vms v where v.host_id = $1 and v.waiting_for = '{Waiting.REFUSED}' and not v.deleted
    and (v.due_at is not null or ({_EXACT}) or v.waiting_since < now() - interval '1 minute')
order by v.created_at, v.id"""


def entitlement(record: asyncpg.Record, prefix: str = "") -> Entitlement:
    """Make an Entitlement of a record's columns."""
    return Entitlement(**{name: record[prefix + name] for name in Entitlement.model_fields})


def held_of(record: asyncpg.Record) -> dict[str, Any]:
    """Make of the columns of HELD what a host's views call them."""
    return {
        "live": entitlement(record, "live_"),
        "leaving": entitlement(record, "leaving_"),
        "leaving_vms": record["leaving_vms"],
        "leaving_until": record["leaving_until"],
    }


async def wake_refused(connection: Connection, host_id: str) -> str | None:
    """Wake the oldest of a host's refused VMs that fits now, one at a time; return its id (L-C3).

    It must fit beside what the rows hold, which knows of whoever was woken before, and beside what the host last said
    that it has committed, which knows what rows cannot. So a wake-up that changes nothing is not repeated.
    """
    waiting = await connection.fetch(_WAITING, host_id)
    if not waiting or any(record["due_at"] is not None for record in waiting):
        return None
    host = await connection.fetchrow(
        f"select h.report, held.* from hosts h cross join lateral ({HELD}) held where h.id = $1", host_id
    )
    if host is None or host["report"] is None:
        return None
    caps = Caps.model_validate(host["report"].get("caps") or {}).with_disk(host["report"].get("disk_room_gib"))
    told = Entitlement.model_validate(host["report"].get("held") or {})
    rows = entitlement(host, "live_") + entitlement(host, "leaving_")
    for record in waiting:
        wish = entitlement(record)
        if record["exact"]:
            short = find_shortages(caps, rows, wish) or find_shortages(caps, told, wish)
        else:  # what does not rise beyond what the host holds already is not judged there either (H-A2)
            short = find_shortages(caps, Entitlement(), rows + wish if record["absent"] else rows, told)
        if not short:
            return await _wake(connection, record["id"])
    return None


async def _wake(connection: Connection, vm_id: str) -> str | None:
    """Wake one that nobody works on; what is locked this moment is looked at with the next report."""
    woken: str | None = await connection.fetchval(
        f"""update vms set {WAKE} where id = (
            select id from vms where id = $1 and waiting_for = '{Waiting.REFUSED}' for update skip locked)
        returning id""",
        vm_id,
    )
    return woken
