"""Drains and rolling restarts of a fleet whose host is in memory: begun, undone and woken as the API does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from model.campaign import CampaignKind, DrainPolicy, campaign_workflow_id
from model.errors import Unavailable
from runtime.temporal import poke_campaign
from store.audit import Actor
from store.campaign import CampaignStore, StoredCampaign
from store.drain import DrainOrder, DrainStore
from store.roll import RollStore
from tests.workflows.conftest import BOUND_SECONDS, POKE_TRIES, Fleet
from workers.sweep import Sweep

ACTOR = Actor("tester")


async def hurry(fleet: Fleet, campaign_id: str, kind: CampaignKind = "drain") -> None:
    """Wake a campaign's run; elsewhere the sweep finds what is lost."""
    host_id = fleet.host.host_id if kind == "drain" else None
    for _ in range(POKE_TRIES):
        try:
            await poke_campaign(fleet.client, kind, campaign_id, host_id=host_id)
            return
        except Unavailable:
            await asyncio.sleep(0.2)
    raise AssertionError("Temporal took no wake-up")


async def begin_drain(fleet: Fleet, policy: DrainPolicy = "stop") -> str:
    """Begin a drain and return its id; nobody is woken."""
    order: DrainOrder = await DrainStore(fleet.pool).begin(fleet.host.host_id, policy, ACTOR)
    return order.campaign_id


async def drain(fleet: Fleet, policy: DrainPolicy = "stop") -> str:
    """Begin a drain and its run."""
    drain_id = await begin_drain(fleet, policy)
    await hurry(fleet, drain_id)
    return drain_id


async def undrain(fleet: Fleet) -> None:
    """Undo the drain, and wake whom it let go of."""
    order = await DrainStore(fleet.pool).undo(fleet.host.host_id, ACTOR)
    await hurry(fleet, order.campaign_id)
    for vm in order.released:
        await fleet.poke(vm.vm_id)


async def begin_roll(fleet: Fleet, *, batch_size: int, most_failures: int = 0) -> str:
    """Begin a rolling restart of all VMs and return its id; nobody is woken."""
    return await RollStore(fleet.pool).begin(
        labels={}, host=None, batch_size=batch_size, most_failures=most_failures, actor=ACTOR
    )


@asynccontextmanager
async def swept(fleet: Fleet) -> AsyncGenerator[None]:
    """Sweep for as long as the block lasts: a loaded Temporal takes not every wake-up in time."""
    sweep = Sweep(fleet.pool, fleet.client, search_attributes=False)

    async def sweep_on() -> None:
        while True:
            await asyncio.sleep(1)
            with suppress(Unavailable):
                await sweep.sweep_once()

    sweeping = asyncio.create_task(sweep_on())
    try:
        yield
    finally:
        sweeping.cancel()


async def until_campaign(fleet: Fleet, campaign_id: str, condition: Callable[[StoredCampaign], bool]) -> StoredCampaign:
    """Wait for a level of a campaign, with a bound."""
    store, deadline = CampaignStore(fleet.pool), time.monotonic() + BOUND_SECONDS
    async with swept(fleet):
        while not condition(found := await store.get(campaign_id)):
            assert time.monotonic() < deadline, f"never came: {found}; calls {fleet.host.calls}"
            await asyncio.sleep(0.02)
    return found


def drain_workflow_id(fleet: Fleet, drain_id: str) -> str:
    return campaign_workflow_id("drain", drain_id, fleet.host.host_id)
