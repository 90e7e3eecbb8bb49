"""Rolling restarts as they run for real; only the host is in memory (H-D3)."""

from __future__ import annotations

import asyncio

from temporalio.exceptions import ApplicationError

from model.record import HostOrder
from store.campaign import CampaignStore
from store.roll import RollStore
from tests.histories.scenarios import restartable
from tests.workflows.conftest import Fleet
from tests.workflows.drains import ACTOR, begin_roll, hurry, until_campaign


async def processes(fleet: Fleet) -> dict[str, object]:
    return {vm_id: machine.process for vm_id, machine in fleet.host.machines.items()}


async def test_some_at_a_time_and_each_once(fleet: Fleet) -> None:
    """H-D3: never more than the batch is away; a VM that is wanted stopped is not meant."""
    vms = await asyncio.gather(*(restartable(fleet) for _ in range(5)))
    down = await restartable(fleet, power_state="stopped")
    before, stopping, most = await processes(fleet), set[str](), 0

    async def note(name: str, order: HostOrder) -> None:
        nonlocal most
        if name == "ensure_stopped":
            stopping.add(order.vm_id)
            most = max(most, len(stopping))

    async def over(name: str, order: HostOrder) -> None:
        if name == "ensure_booted":
            stopping.discard(order.vm_id)

    fleet.host.before, fleet.host.after = note, over
    roll_id = await begin_roll(fleet, batch_size=2)
    await hurry(fleet, roll_id, "roll")
    found = await until_campaign(fleet, roll_id, lambda c: c.state == "done")
    assert (found.done, found.total, found.failed, most <= 2) == (5, 5, 0, True)
    after = await processes(fleet)
    assert {vm_id for vm_id in after if after[vm_id] != before[vm_id]} == set(vms)
    assert fleet.host.machine(down).process is None
    assert [each["restart_generation"] for each in await fleet.pool.fetch("select * from vms order by id")].count(
        1
    ) == 5


async def test_it_pauses_on_a_failure_and_goes_on_when_resumed(fleet: Fleet) -> None:
    """H-D3: what failed is named, and put up with by whoever resumes it."""
    for _ in range(3):
        await restartable(fleet)
    first: str = await fleet.pool.fetchval("select min(id) from vms")

    async def fail(name: str, order: HostOrder) -> None:
        if name == "ensure_booted" and order.vm_id == first:
            raise ApplicationError("no memory", type="StepFailed")

    fleet.host.before = fail
    roll_id = await begin_roll(fleet, batch_size=1)
    await hurry(fleet, roll_id, "roll")
    paused = await until_campaign(fleet, roll_id, lambda c: c.state == "paused")
    assert (paused.failed, paused.todo, paused.paused_by) == (1, 2, "itself, for what failed")
    assert [(each.vm_id, "no memory" in str(each.why)) for each in paused.failures] == [(first, True)]
    await CampaignStore(fleet.pool).resume(roll_id, "roll", ACTOR)
    await hurry(fleet, roll_id, "roll")
    found = await until_campaign(fleet, roll_id, lambda c: c.state == "done")
    assert (found.done, found.failed) == (2, 1)
    fleet.host.before = None
    await fleet.wake(first)
    await until_campaign(fleet, roll_id, lambda c: c.done == 3)


async def test_a_cancelled_one_restarts_no_more(fleet: Fleet) -> None:
    """H-D3: also a write that was under way; and one that had failed before is passed over."""
    vms = [await restartable(fleet) for _ in range(2)]
    roll_id = await begin_roll(fleet, batch_size=1)
    rolls = RollStore(fleet.pool)
    await fleet.pool.execute("update vms set phase = 'failed' where id = $1", vms[0])
    assert await rolls.restart(roll_id, (vms[0],)) == ()
    assert (await CampaignStore(fleet.pool).get(roll_id)).left == 1
    await rolls.cancel(roll_id, ACTOR)
    assert await rolls.restart(roll_id, tuple(vms)) == ()
    await hurry(fleet, roll_id, "roll")
    await fleet.client.get_workflow_handle(f"roll/{roll_id}").result()
    assert await fleet.pool.fetchval("select max(restart_generation) from vms") == 0
