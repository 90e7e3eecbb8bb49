"""Store what a host saw of its VMs, guarded by the host's instance and the VM's revision there (L-G9, S-6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from model.record import Observed

if TYPE_CHECKING:
    from store.database import Connection


@dataclass(frozen=True)
class Seen:
    """What one look found. `unreadable` is the reason of L-G8.

    `unrecorded`: the host has no readable record of the VM, which is where revisions are kept. Such a look counts by
    its time, and leaves the stored revision for the record that may be repaired.
    """

    vm_id: str
    observed: Observed
    unreadable: str | None = None
    unrecorded: bool = False


# An equal revision moves only the time of the look. What is empty never erases an address or key (L-C14).
_STORE = """
update vms v set
    observed_instance = $2,
    observed_revision = case when s.unrecorded then v.observed_revision else s.revision end,
    observed_power_state = s.power_state,
    observed_at = s.seen_at, ssh_host_key = coalesce(s.ssh_host_key, v.ssh_host_key),
    emulated = coalesce(s.emulated, v.emulated),
    last_exit = case when s.unrecorded then v.last_exit else s.last_exit end,
    restart_count = s.restart_count, unreadable = s.unreadable
from jsonb_to_recordset($3) as s(vm_id text, revision bigint, power_state text, seen_at timestamptz, emulated boolean,
    ssh_host_key text, last_exit jsonb, restart_count integer, unreadable text, unrecorded boolean)
where v.id = s.vm_id and v.host_id = $1
    and exists (select 1 from hosts h where h.id = $1 and h.instance_id = $2)
    and (v.observed_instance is distinct from $2 or v.observed_revision < s.revision
        or ((v.observed_revision = s.revision or s.unrecorded)
            and (v.observed_at is null or v.observed_at <= s.seen_at)))
returning v.id, host(v.address) as address
"""


async def store_observed(
    connection: Connection, host_id: str, instance_id: str, seen: Sequence[Seen]
) -> frozenset[str]:
    """Store each look that is newer than the stored one; return the ids of the VMs whose row took it.

    Only rows that name this host take anything, and only from its present instance.
    """
    if not seen:
        return frozenset()
    stored = await connection.fetch(_STORE, host_id, instance_id, [_as_json(one) for one in seen])
    addresses = {one.vm_id: one.observed.address for one in seen}
    for record in stored:
        address = addresses[record["id"]]
        if address is not None and address != record["address"]:
            await _store_address(connection, record["id"], address)
    return frozenset(record["id"] for record in stored)


async def _store_address(connection: Connection, vm_id: str, address: str) -> None:
    """Store an address that is unique on its host; a double one is kept apart, for a condition to show."""
    try:
        async with connection.transaction():
            await connection.execute(
                "update vms set address = $2::text::inet, address_refused = null where id = $1", vm_id, address
            )
    except asyncpg.UniqueViolationError:
        await connection.execute("update vms set address_refused = $2::text::inet where id = $1", vm_id, address)
    except asyncpg.InvalidTextRepresentationError:
        return  # A host's word is data: what is no address is dropped.


def _as_json(one: Seen) -> dict[str, object]:
    observed = one.observed
    return {
        "vm_id": one.vm_id,
        "revision": observed.revision,
        "power_state": observed.power_state.value if observed.power_state else None,
        "seen_at": observed.seen_at.isoformat(),
        "ssh_host_key": observed.ssh_host_key or None,
        "last_exit": observed.last_exit.model_dump(mode="json") if observed.last_exit else None,
        "restart_count": observed.restart_count,
        "unreadable": one.unreadable,
        "unrecorded": one.unrecorded,
        "emulated": observed.emulated,
    }
