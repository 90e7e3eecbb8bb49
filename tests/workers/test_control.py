"""The control worker when Temporal has lost everything: it goes on without being begun again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from model.errors import Unavailable
from model.temporal import vm_workflow_id
from runtime.converter import data_converter
from runtime.deployment import current_build, make_current
from runtime.temporal import control_worker_options, poke, register_search_attributes
from tests.fixtures.temporal import end_server, serve_in_memory
from tests.runtime.flows import CreateVm
from workers.control import keep_known

BUILD = "1.0.0"
BOUND_SECONDS = 60
LOOK_SECONDS = 1.0
"""Temporal answers few questions about builds a second."""


async def test_passes_begin_again_at_a_temporal_that_was_emptied(tmp_path: Path) -> None:
    """L-G1: what Temporal is told once it is told again, else no pass would begin until a worker is begun anew."""
    first = await asyncio.to_thread(serve_in_memory, tmp_path)
    client = await Client.connect(first.address, data_converter=data_converter(None))
    assert await register_search_attributes(client)
    worker = Worker(client, workflows=[CreateVm], **control_worker_options(build_id=BUILD))
    async with worker:
        assert await make_current(client, BUILD)
        keeping = asyncio.create_task(keep_known(client, BUILD, search_attributes=True, every_seconds=LOOK_SECONDS))
        await asyncio.to_thread(end_server, first)
        second = await asyncio.to_thread(serve_in_memory, tmp_path, first.ports)
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                while not await _begins(client):  # noqa: ASYNC110 - another process tells
                    await asyncio.sleep(LOOK_SECONDS)
            assert await current_build(client) == BUILD
        finally:
            keeping.cancel()
            await worker.shutdown()
            await asyncio.to_thread(end_server, second)


async def test_an_older_build_does_not_stay_current(temporal_client: Client) -> None:
    """Whichever worker is the first to tell a Temporal that was emptied: passes begin on the newest release."""

    def worker(build: str) -> Worker:
        return Worker(temporal_client, workflows=[CreateVm], **control_worker_options(build_id=build))

    async with worker("1.9.0"), worker("1.10.0"):
        assert await make_current(temporal_client, "1.9.0")
        keeping = asyncio.create_task(
            keep_known(temporal_client, "1.10.0", search_attributes=True, every_seconds=LOOK_SECONDS)
        )
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                while await current_build(temporal_client) != "1.10.0":  # noqa: ASYNC110 - another process tells
                    await asyncio.sleep(LOOK_SECONDS)
            assert not await make_current(temporal_client, "1.9.0")
        finally:
            keeping.cancel()


async def _begins(client: Client) -> bool:
    """Poke a VM as the sweep does, and say whether its pass has run."""
    try:
        await poke(client, "CreateVm", "vm-1", search_attributes=True)
        async with asyncio.timeout(2):
            return await client.get_workflow_handle(vm_workflow_id("vm-1")).query("count") >= 1
    except (Unavailable, RPCError, TimeoutError):
        return False
