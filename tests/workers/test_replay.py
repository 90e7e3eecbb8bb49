"""`hostler replay`: what a VM's runs did is fetched from a real Temporal and replayed against this code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from temporalio.client import Client

from model.errors import NotFound
from model.ids import new_id
from store.database import Pool
from tests.workflows.conftest import Fleet, running_fleet
from workers.replay import fetch_histories, replay


@pytest.fixture
async def fleet(temporal_client: Client, pool: Pool) -> AsyncIterator[Fleet]:
    async with running_fleet(temporal_client, pool, f"h-{new_id()[-12:]}") as fleet:
        yield fleet


async def test_every_run_of_a_vm_is_replayed_and_one_that_did_otherwise_is_named(fleet: Fleet):
    """Case O3: closed runs and their successors, the oldest first."""
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    await fleet.until_settled(vm_id)
    await fleet.change(vm_id, "power_state = 'stopped', generation = generation + 1")
    await fleet.until(vm_id, lambda row: row["observed_generation"] == 2 and row["due_at"] is None)

    histories = await fetch_histories(fleet.client, vm_id)
    results = await replay(histories, fleet.client.data_converter, namespace=fleet.client.namespace)
    assert [(each.workflow_type, each.failure) for each in results] == [("CreateVm", None), ("ConvergeVm", None)]

    # The converge's history under the create's code: the two do other things.
    start = histories[1].events[0].workflow_execution_started_event_attributes
    start.workflow_type.name = "ReapVm"
    (told,) = await replay([replace(histories[1])], fleet.client.data_converter, namespace=fleet.client.namespace)
    assert told.failure is not None
    assert "does not replay" in told.failure


async def test_a_vm_without_runs_is_refused(temporal_client: Client):
    with pytest.raises(NotFound, match="retention"):
        await fetch_histories(temporal_client, new_id())
