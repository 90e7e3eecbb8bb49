"""Drain a host, and end that: each in one transaction with the host's status and the audit entry (H-D1, H-D2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from model.campaign import DrainPolicy
from model.errors import Conflict, NotFound
from model.ids import new_id
from store.audit import Actor, write_audit
from store.campaign import WAKE
from store.change import WokenVm, find_woken
from store.database import reading, transaction
from store.hold import release_vms
from store.host import HOST_ID

if TYPE_CHECKING:
    from store.database import Connection, Pool

AT_ONCE = 10
"""How many VMs of a host are being stopped at a time."""
_DRAINABLE = ("joining", "ready", "cordoned")


@dataclass(frozen=True)
class DrainOrder:
    """A drain that was begun, changed or ended: its campaign, its host, and the VMs that were let go of."""

    campaign_id: str
    host_id: str
    released: tuple[WokenVm, ...] = ()


class DrainStore:
    """Begin and end drains; what goes on in between is a campaign."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def begin(self, host: str, policy: DrainPolicy, actor: Actor) -> DrainOrder:
        """Close a host to new VMs and have it drained; a repeat changes nothing.

        Raise Conflict for a host that is drained with another policy, or is in maintenance.
        """
        async with transaction(self._pool) as connection:
            record = await _lock_host(connection, host)
            there = await _find_drain(connection, record["id"])
            if there is not None:
                if there["policy"] != policy:
                    raise Conflict(
                        f"the host {record['name']} is {record['status']} by the policy {there['policy']}; undrain it "
                        f"first (`hostler host undrain {record['name']}`)"
                    )
                return DrainOrder(there["id"], record["id"])
            if record["status"] not in _DRAINABLE:
                raise Conflict(f"the host {record['name']} is {record['status']}: end that first")
            campaign_id = new_id()
            await connection.execute("update hosts set status = 'draining' where id = $1", record["id"])
            await connection.execute(
                """insert into campaigns (id, kind, host_id, policy, status_before, batch_size, made_by)
                values ($1, 'drain', $2, $3, $4, $5, $6)""",
                campaign_id,
                record["id"],
                policy,
                record["status"],
                AT_ONCE,
                actor.name,
            )
            told = {"before": {"status": record["status"]}, "after": {"status": "draining", "policy": policy}}
            await _audit(connection, actor, record["id"], "host.drain", told)
        return DrainOrder(campaign_id, record["id"])

    async def undo(self, host: str, actor: Actor) -> DrainOrder:
        """End a drain, whether it is done or not, and let go of all its VMs at once, so that none stays held (H-D2).

        The host is again what it was before. Raise Conflict for one that is not drained.
        """
        async with transaction(self._pool) as connection:
            record = await _lock_host(connection, host)
            drain = await _find_drain(connection, record["id"])
            if drain is None:
                raise Conflict(f"the host {record['name']} is {record['status']}: there is no drain to be undone")
            await connection.execute(
                f"update campaigns set state = 'cancelled', ended_at = now(), {WAKE} where id = $1", drain["id"]
            )
            released = await find_woken(connection, await release_vms(connection, drain["id"]))
            after = await connection.fetchval(
                """update hosts set status = case
                    when $2 in ('joining', 'ready') then case when instance_id is null then 'joining' else 'ready' end
                    else $2 end
                where id = $1 returning status""",
                record["id"],
                drain["status_before"],
            )
            told = {"before": {"status": record["status"]}, "after": {"status": after}}
            await _audit(connection, actor, record["id"], "host.undrain", told)
        return DrainOrder(drain["id"], record["id"], released)

    async def find(self, host_id: str) -> str | None:
        """Return the id of the drain that a host is under, or None."""
        async with reading(self._pool) as connection:
            drain = await _find_drain(connection, host_id)
        return None if drain is None else drain["id"]


async def _lock_host(connection: Connection, host: str) -> asyncpg.Record:
    record = await connection.fetchrow(
        f"select id, name, status from hosts where id = {HOST_ID} for no key update", host
    )
    if record is None:
        raise NotFound(f"there is no host {host}")
    return record


async def _find_drain(connection: Connection, host_id: str) -> asyncpg.Record | None:
    return await connection.fetchrow(
        "select * from campaigns where host_id = $1 and kind = 'drain' and state <> 'cancelled'", host_id
    )


async def _audit(
    connection: Connection, actor: Actor, host_id: str, action: str, told: dict[str, dict[str, str]]
) -> None:
    await write_audit(connection, actor, project="public", action=action, subject=f"host/{host_id}", **told)
