"""Whether the API lives, and whether it can work. Without a token it says no more than that (S-34)."""

from __future__ import annotations

from datetime import timedelta

from fastapi import APIRouter
from temporalio.service import RPCError

from api.documents.base import Health
from api.gate import PartsOf
from store.fleet import get_fleet

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> Health:
    """Say that the process answers."""
    return Health(status="ok")


@router.get("/readyz")
async def ready(parts: PartsOf) -> Health:
    """200 while Postgres answers; `degraded` when Temporal does not, or hosts are silent.

    `behind`: the database is older than what hosts were ordered last, and nothing is done until that is settled.
    """
    fleet = await get_fleet(parts.pool)
    if fleet.behind:
        return Health(status="behind")
    _, silent = await parts.hosts.count()
    well = not silent and await temporal_answers(parts)
    return Health(status="ok" if well else "degraded")


async def temporal_answers(parts: PartsOf) -> bool:
    """Ask Temporal whether it works, for at most 0.3 s."""
    if parts.client is None:
        return False
    try:
        return await parts.client.service_client.check_health(timeout=timedelta(milliseconds=300))
    except (RPCError, RuntimeError):
        return False
