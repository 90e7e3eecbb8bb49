"""What is wrong in a fleet, as far as rows tell: credentials that end soon, and work that nobody takes up (A-10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from store.database import reading

if TYPE_CHECKING:
    from store.database import Pool


@dataclass(frozen=True)
class Ending:
    """A credential that ends soon, and is not replaced by itself."""

    kind: Literal["token", "host"]
    id: str
    name: str
    at: datetime


@dataclass(frozen=True)
class Late:
    """How many VMs are due for two minutes, and no run has taken them up; since when the longest of them."""

    count: int
    since: datetime | None


async def find_endings(pool: Pool) -> tuple[Ending, ...]:
    """List tokens that are in use and end within a week, and hosts' credentials that were to be renewed long ago."""
    async with reading(pool) as connection:
        records = await connection.fetch(
            """select 'token' as kind, id, name, expires_at as at from tokens where revoked_at is null
                and expires_at between now() and now() + interval '7 days' and last_used_at > now() - interval '7 days'
            union all select 'host', id, name, credential_until from hosts where status <> 'forgotten'
                and credential_revoked_at is null and credential_until < now() + interval '21 days' order by at"""
        )
    return tuple(Ending(**dict(record)) for record in records)


async def find_late(pool: Pool) -> Late:
    """Say what is due and not taken up: the control worker, the sweep or Temporal does not work."""
    async with reading(pool) as connection:
        record = await connection.fetchrow(
            """select count(*) as count, min(v.due_at) as since from vms v join hosts h on h.id = v.host_id
            where v.due_at < now() - interval '2 minutes' and v.claim_until is null and not host_is_silent(h)"""
        )
    assert record is not None, "an aggregate has one row"  # noqa: S101
    return Late(**dict(record))
