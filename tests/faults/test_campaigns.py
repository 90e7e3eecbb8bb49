"""Each activity of a drain and of a rolling restart, struck by each fault: it ends as if nothing had happened.

H-D1, H-D2, H-D3, L-G1. The host is in memory; the points come from the plain run of the code as it is.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio.client import Client

from activities.campaign import CampaignActivities
from model.campaign import CampaignKind, campaign_workflow_id
from model.ids import new_id
from runtime import temporal
from store.campaign import CampaignStore
from store.database import Pool
from store.drain import DrainStore
from tests.faults.apart import TASK_TIMEOUT
from tests.faults.conftest import Given
from tests.faults.faults import FAULTS, Faults, Point, stand_before
from tests.faults.fleet import running_fleet as apart_fleet
from tests.faults.fleet import settled
from tests.histories.scenarios import restartable
from tests.workflows.conftest import Fleet, running_fleet
from tests.workflows.drains import ACTOR, begin_drain, begin_roll, hurry, undrain, until_campaign
from workers import control

VMS = 3


@dataclass
class Struck:
    """A fleet whose control worker's activities are befallen by faults, and the campaigns that run there."""

    fleet: Fleet
    faults: Faults
    running: dict[str, tuple[str, CampaignKind]] = field(default_factory=dict[str, "tuple[str, CampaignKind]"])

    async def wake(self, workflow_id: str) -> None:
        """Wake a campaign that was struck, as the sweep does."""
        if workflow_id in self.running:
            await hurry(self.fleet, *self.running[workflow_id])

    async def run(self, campaign_id: str, kind: CampaignKind, point: Point | None, fault: str | None) -> set[Point]:
        """Run a campaign to its end with a fault at one point, and return the points that it met."""
        host_id = self.fleet.host.host_id if kind == "drain" else None
        workflow_id = campaign_workflow_id(kind, campaign_id, host_id)
        self.running[workflow_id] = (campaign_id, kind)
        plan = self.faults.plan(workflow_id, point, fault)
        sweeping = asyncio.create_task(self._sweep(campaign_id, kind))
        try:
            await until_campaign(self.fleet, campaign_id, lambda c: c.state == "done")
            await self._await_end(workflow_id)
        finally:
            sweeping.cancel()
        assert fault is None or plan.landed, (point, fault)
        return set(plan.met.values())

    async def _sweep(self, campaign_id: str, kind: CampaignKind) -> None:
        while True:
            await hurry(self.fleet, campaign_id, kind)
            await asyncio.sleep(2)

    async def _await_end(self, workflow_id: str) -> None:
        """Its last write comes after the campaign is done."""
        async with asyncio.timeout(60):
            met = self.faults.plans[workflow_id].met
            while not any(point.name == "finish_campaign" for point in met.values()):  # noqa: ASYNC110 - a run's end
                await asyncio.sleep(0.05)


@pytest.fixture
async def struck(temporal_client: Client, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Struck]:
    """A fleet with faults before every activity of its control worker."""
    faults = Faults(temporal_client, lambda workflow_id: made.wake(workflow_id))
    monkeypatch.setattr(control, "control_worker_options", stand_before(control.control_worker_options, faults))
    async with running_fleet(temporal_client, pool, f"h-{new_id()[-12:]}") as fleet:
        made = Struck(fleet, faults)
        yield made


async def drained(struck: Struck, point: Point | None, fault: str | None) -> set[Point]:
    """Drain, see that nothing runs, undrain, see that all do."""
    fleet = struck.fleet
    drain_id = await begin_drain(fleet)
    met = await struck.run(drain_id, "drain", point, fault)
    assert all(machine.process is None for machine in fleet.host.machines.values())
    assert await fleet.pool.fetchval("select count(*) from vms where held and hold_token = $1", drain_id) == VMS
    await undrain(fleet)
    for vm_id in list(fleet.host.machines):
        await fleet.until_settled(vm_id)
    assert all(machine.process is not None for machine in fleet.host.machines.values())
    assert await fleet.pool.fetchval("select count(*) from vms where held") == 0
    return met


async def rolled(struck: Struck, point: Point | None, fault: str | None) -> set[Point]:
    """Restart all, two at a time, and see that each was restarted once."""
    fleet = struck.fleet
    before = await fleet.pool.fetchval("select sum(restart_generation) from vms")
    roll_id = await begin_roll(fleet, batch_size=2)
    met = await struck.run(roll_id, "roll", point, fault)
    found = await CampaignStore(fleet.pool).get(roll_id)
    assert (found.done, found.failed) == (VMS, 0)
    assert await fleet.pool.fetchval("select sum(restart_generation) from vms") == before + VMS
    return met


NOT_LIVED = {"ensure_vms_let_go", "ensure_campaign_paused"}
"""tests/workflows has them: they need a VM that is deleted, or fails."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_every_activity_of_a_campaign_under_faults(struck: Struck) -> None:
    """H-D1 to H-D3, L-G1: each point once, by another fault in each run; with FAULTS=all by every fault."""
    for _ in range(VMS):
        await restartable(struck.fleet)
    names: set[str] = set()
    everything, turn = os.environ.get("FAULTS") == "all", random.randrange(len(FAULTS))
    for live in (drained, rolled):
        met = sorted({point.name for point in await live(struck, None, None)})
        names |= set(met)
        for name in met:
            turn += 1
            for fault in FAULTS if everything else [list(FAULTS)[turn % len(FAULTS)]]:
                await live(struck, Point(name, 1), fault)
    wanted = {name for name in vars(CampaignActivities) if name.startswith(("find_", "ensure_", "finish_"))}
    assert names == wanted - NOT_LIVED


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_case_e5_a_control_worker_killed_at_each_point_of_a_drain(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H-D1, H-D2, L-G1, case E5: by SIGKILL, before and after each use of the store; the next one goes on."""
    monkeypatch.setattr(temporal, "TASK_TIMEOUT", TASK_TIMEOUT)
    names = ("find_campaign", "ensure_vms_held", "ensure_campaign_done", "finish_campaign")
    async with apart_fleet(*given, apart="control") as fleet:
        body = {"image": "demo", "disk_gib": 1, "hypervisor": "simulated", "stop_timeout_seconds": 1}
        vms = [(await fleet.call("POST", "/v1/vms", json={**body, "name": f"vm-{n}"}))["id"] for n in range(VMS)]
        for vm_id in vms:
            await fleet.until(vm_id, is_up)
        for name in names:
            for fault in ("killed_before", "killed_after"):
                (host,) = (await fleet.call("GET", "/v1/hosts"))["items"]
                order = await DrainStore(fleet.pool).begin(host["id"], "stop", ACTOR)
                workflow_id = campaign_workflow_id("drain", order.campaign_id, order.host_id)
                plan = fleet.faults.plan(workflow_id, Point(name, 1), fault)
                async with asyncio.timeout(120):
                    while not (plan.landed and await is_drained(fleet.pool)):  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.1)
                await fleet.call("POST", f"/v1/hosts/{host['id']}/undrain")
                for vm_id in vms:
                    await fleet.until(vm_id, is_up)
                assert await fleet.pool.fetchval("select count(*) from vms where held") == 0


async def is_drained(pool: Pool) -> bool:
    return await pool.fetchval("select status from hosts") == "drained"


def is_up(row: dict[str, Any] | None) -> bool:
    return row is not None and settled(row) and row["observed_power_state"] == "running"
