"""Each activity of a host's sync, struck by each fault: it ends as if nothing had happened (H-S1 to H-S4, L-G1).

The host is in memory; the points come from the plain run of the code as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from activities.sync import SyncStoreActivities
from model.ids import new_id
from model.sync import SET_NAMES
from model.temporal import host_queue, host_workflow_id
from store.database import Pool
from tests.faults.faults import FAULTS, Faults, Point, stand_before
from tests.faults.fleet import BOUND_SECONDS
from tests.workflows.conftest import Fleet, running_fleet
from tests.workflows.syncs import hurry_sync, stored, until_synced, want
from workers import control


@pytest.fixture
async def struck(
    temporal_client: Client, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Fleet, Faults]]:
    """A fleet with faults before every activity of its control worker, and of its host."""

    async def wake(workflow_id: str) -> None:
        await hurry_sync(fleet)

    faults = Faults(temporal_client, wake)
    monkeypatch.setattr(control, "control_worker_options", stand_before(control.control_worker_options, faults))
    async with running_fleet(temporal_client, pool, f"h-{new_id()[-12:]}", polls=False) as fleet:
        queue = host_queue(fleet.host.host_id, fleet.host.instance_id)
        async with Worker(temporal_client, task_queue=queue, activities=fleet.host.activities(), interceptors=[faults]):
            yield fleet, faults


async def synced(fleet: Fleet, faults: Faults, address: str, point: Point | None, fault: str | None) -> set[Point]:
    """Have new sets taken over with a fault at one point, and return the points that the run met."""
    before = await stored(fleet)
    plan = faults.plan(host_workflow_id(fleet.host.host_id), point, fault)
    await want(fleet, address)
    await hurry_sync(fleet)
    found = await until_synced(
        fleet,
        lambda s: not s.due and (s.synced.revision, s.synced.number) == (before.revision + 1, fleet.host.synced[1]),
        seconds=BOUND_SECONDS,
    )
    assert fleet.host.revision == found.revision
    assert (found.synced.error, found.synced.states) == (None, dict.fromkeys(SET_NAMES, "off"))
    assert fault is None or plan.landed, (point, fault)
    return set(plan.met.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_activity_of_a_sync_under_faults(struck: tuple[Fleet, Faults]) -> None:
    """H-S1, H-S4, L-G1: each by every fault; numbers only rise, and the last sets are what the host has."""
    fleet, faults = struck
    met = sorted({point.name for point in await synced(fleet, faults, "10.84.0.1", None, None)})
    numbers = [fleet.host.synced]
    for turn, (name, fault) in enumerate((name, fault) for name in met for fault in FAULTS):
        await synced(fleet, faults, f"10.84.1.{turn}", Point(name, 1), fault)
        numbers.append(fleet.host.synced)
    assert numbers == sorted(set(numbers))
    assert set(met) == {name for name in vars(SyncStoreActivities) if not name.startswith("_")} | {"ensure_sets"}
