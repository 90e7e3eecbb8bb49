"""The fleet's floor: the least release of a host worker that may act on VMs (H-S5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from model.errors import Unavailable
from model.waiting import Waiting
from store.audit import Actor, write_audit
from store.database import reading, transaction
from store.fleet import BELOW_FLOOR

if TYPE_CHECKING:
    from store.database import Pool


@dataclass(frozen=True)
class Floor:
    """The floor, None where there is none, and the hosts below it with what they run."""

    min_worker_version: str | None
    below: tuple[tuple[str, str], ...]


async def get_floor(pool: Pool) -> Floor:
    """Return the floor and the hosts that are below it."""
    async with reading(pool) as connection:
        record = await connection.fetchrow(
            f"""select f.min_worker_version, coalesce((
                select jsonb_agg(jsonb_build_array(h.name, h.worker_version) order by h.name)
                from hosts h where h.status <> 'forgotten' and {BELOW_FLOOR}), '[]') as below from fleet f"""
        )
    if record is None:
        raise Unavailable("the fleet has no row yet: the API makes it when it starts")
    return Floor(record["min_worker_version"], tuple(map(tuple, record["below"])))


async def set_floor(pool: Pool, min_worker_version: str | None, actor: Actor) -> None:
    """Set the floor. What waits for an upgrade looks again, over half a minute (H-S12)."""
    async with transaction(pool) as connection:
        before: str | None = await connection.fetchval("select min_worker_version from fleet for update")
        if before == min_worker_version:
            return
        await connection.execute("update fleet set min_worker_version = $1", min_worker_version)
        await connection.execute(
            """update vms set wake = wake + 1, due_at = least(due_at, now() + random() * interval '30 seconds')
            where waiting_for = $1""",
            Waiting.HOST_BELOW_FLOOR,
        )
        told = {"before": {"min_worker_version": before}, "after": {"min_worker_version": min_worker_version}}
        await write_audit(connection, actor, project="public", action="fleet.floor", subject="fleet", **told)
