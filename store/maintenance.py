"""Maintenance of a host: its silence is expected until a time, and nothing new comes to it (H-E2)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from model.errors import Conflict
from store.audit import Actor, write_audit
from store.database import transaction
from store.host import HostStore, StoredHost

if TYPE_CHECKING:
    from store.database import Pool

_FROM = ("joining", "ready", "cordoned", "drained", "maintenance")


async def begin_maintenance(pool: Pool, host: str, lasting: timedelta, actor: Actor) -> StoredHost:
    """Put a host into maintenance until then by Postgres' clock; again, to change the time. `uncordon` ends it.

    Raise Conflict for one that is being drained, or was given up.
    """
    store = HostStore(pool)
    known = await store.get(host)
    async with transaction(pool) as connection:
        before = await connection.fetchval("select status from hosts where id = $1 for update", known.id)
        if before not in _FROM:
            raise Conflict(f"the host {known.name} is {before}: end that first")
        until = await connection.fetchval(
            """update hosts set status = 'maintenance', maintenance_until = now() + $2 where id = $1
            returning maintenance_until""",
            known.id,
            lasting,
        )
        await write_audit(
            connection,
            actor,
            project="public",
            action="host.maintenance",
            subject=f"host/{known.id}",
            before={"status": before},
            after={"status": "maintenance", "until": until.isoformat()},
        )
    return await store.get(known.id)
