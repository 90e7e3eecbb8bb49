"""A pass and the renewal of its claim, which goes on beside it, end together."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from activities.passes import PassActivities
from model.ids import new_id
from model.passes import PassRef
from model.temporal import LOOK_AGAIN, vm_workflow_id
from store.database import Pool
from store.passes import PassStore
from tests.workflows.conftest import running_fleet
from workers.control import control_worker


class SlowToRenew(PassStore):
    """A store that renews a claim only when the pass has had time to end."""

    async def renew(self, ref: PassRef) -> bool:
        await asyncio.sleep(1)
        return await super().renew(ref)


async def events_of(run: WorkflowHandle) -> list[str]:
    return [EventType.Name(event.event_type) async for event in run.fetch_history_events()]


@pytest.mark.slow
async def test_a_pass_ends_while_its_claim_is_renewed(temporal_client: Client, pool: Pool):
    """L-G2, case O4: both begin in one workflow task, as after an outage; nothing is asked for after the end."""
    async with running_fleet(temporal_client, pool, f"h-{new_id()[-12:]}", controls=False) as fleet:
        vm_id = await fleet.add_vm()
        run = temporal_client.get_workflow_handle(vm_workflow_id(vm_id))
        async with control_worker(temporal_client, pool, build_id=None):
            await fleet.poke(vm_id)
            await fleet.until_settled(vm_id)
            await fleet.change(vm_id, "retry_at = now() + interval '50 seconds', last_error = 'a pause'")
            await fleet.until(vm_id, lambda row: row["waiting_for"] == "step_pause")
        async with asyncio.timeout(40):
            while "EVENT_TYPE_TIMER_FIRED" not in await events_of(run):  # noqa: ASYNC110 - a server's clock
                await asyncio.sleep(0.2)
        async with pool.acquire() as connection:
            await connection.execute("delete from vms where id = $1", vm_id)
        await run.signal(LOOK_AGAIN)
        async with control_worker(temporal_client, pool, build_id=None, passes=PassActivities(SlowToRenew(pool))):
            async with asyncio.timeout(40):
                assert (await run.result())["result"] == "gone"
        events = await events_of(run)
        assert events[-1] == "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"
        assert not {"EVENT_TYPE_WORKFLOW_TASK_FAILED", "EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT"} & set(events), events
