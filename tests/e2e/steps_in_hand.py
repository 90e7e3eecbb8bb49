"""Which step of a VM's pass is in hand on the host at this moment, as Temporal knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionDescription

from model.temporal import vm_workflow_id
from runtime.converter import data_converter
from tests.e2e.installation import Installation


async def connect(fleet: Installation) -> Client:
    return await Client.connect(f"127.0.0.1:{fleet.ports['temporal']}", data_converter=data_converter(None))


def pending(run: WorkflowExecutionDescription) -> Sequence[PendingActivityInfo]:
    return run.raw_description.pending_activities


async def await_another_try(fleet: Installation, vm_id: str, seconds: float) -> None:
    """Wait until Temporal has given up a try of the VM's step in hand, and wants it done by another."""
    handle = (await connect(fleet)).get_workflow_handle(vm_workflow_id(vm_id))
    async with asyncio.timeout(seconds):
        while not any(one.attempt > 1 for one in pending(await handle.describe())):  # noqa: ASYNC110 - a server's state
            await asyncio.sleep(0.2)
