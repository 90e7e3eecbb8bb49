"""Syncs of a host that is in memory: its sets changed as the API does, and woken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from model.errors import Unavailable
from model.temporal import host_workflow_id
from runtime.temporal import poke_host
from store.sync import StoredSets, SyncStore
from tests.workflows.conftest import BOUND_SECONDS, POKE_TRIES, Fleet
from tests.workflows.drains import ACTOR, swept


async def want(fleet: Fleet, *addresses: str) -> None:
    """Set the host's privileged addresses; nobody is woken."""
    await SyncStore(fleet.pool).replace(fleet.host.host_id, "privileged_addresses", addresses, ACTOR)


async def hurry_sync(fleet: Fleet) -> None:
    """Wake the host's sync; elsewhere the sweep finds what is lost."""
    for _ in range(POKE_TRIES):
        try:
            await poke_host(fleet.client, fleet.host.host_id)
            return
        except Unavailable:
            await asyncio.sleep(0.2)
    raise AssertionError("Temporal took no wake-up")


async def stored(fleet: Fleet) -> StoredSets:
    return await SyncStore(fleet.pool).get(fleet.host.host_id)


async def until_synced(
    fleet: Fleet, condition: Callable[[StoredSets], bool], *, seconds: float = BOUND_SECONDS
) -> StoredSets:
    """Wait for a level of what is known of the host's syncs, with a bound."""
    deadline = time.monotonic() + seconds
    async with swept(fleet):
        while not condition(found := await stored(fleet)):
            assert time.monotonic() < deadline, f"never came: {found}; calls {fleet.host.calls}"
            await asyncio.sleep(0.02)
    return found


async def last_sync(fleet: Fleet) -> tuple[str, str]:
    """Wait for the end of the newest run, and name it."""
    handle = fleet.client.get_workflow_handle(host_workflow_id(fleet.host.host_id))
    described = await handle.describe()
    await handle.result()
    return described.id, described.run_id or ""
