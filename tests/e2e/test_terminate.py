"""A run that is terminated by hand, and five hundred pokes: nothing is doubled, and nothing is lost."""

from __future__ import annotations

import asyncio
import time

from temporalio.client import Client, WorkflowExecutionStatus

from model.errors import Unavailable
from model.temporal import vm_workflow_id
from runtime.converter import data_converter
from runtime.temporal import poke
from tests.e2e.installation import Installation
from tests.e2e.slow_image import slow_image

POKES = 500
SETTLED_SECONDS = 60


def test_case_o14_a_terminated_create_is_taken_up_again(fleet: Installation):
    """Issue item 8; case O14: nobody pokes; the sweep finds the row, and the fetch that went on is joined."""
    with slow_image(fleet) as image:
        vm_id = image.create("ended-1")["id"]
        asyncio.run(_terminate(fleet, vm_id))
        image.go_on()
        row = fleet.ready(vm_id, SETTLED_SECONDS)
        assert list(fleet.guests()).count(vm_id) == 1
        assert (row["restart_count"], row["last_error"]) == (0, None)
        assert fleet.ssh("ended-1", "hostname").strip() == "ended-1"


def test_a_storm_of_pokes_doubles_nothing(fleet: Installation):
    """Issue item 8: in the middle of a create whose run is terminated in the middle of the storm."""
    with slow_image(fleet) as image:
        vm_id = image.create("storm-1")["id"]
        asyncio.run(_storm(fleet, vm_id))
        image.go_on()
        row = fleet.ready(vm_id, SETTLED_SECONDS)
        asyncio.run(_await_idle(fleet, vm_id))
        guest = fleet.guests()[vm_id]
        assert (row["restart_count"], row["last_error"]) == (0, None)

        # A settled VM that is poked as often is looked at, and left alone.
        asyncio.run(_storm(fleet, vm_id, terminate=False))
        asyncio.run(_await_idle(fleet, vm_id))
        assert fleet.guests()[vm_id] == guest
        after = fleet.ready(vm_id)
        assert {key: after[key] for key in ("generation", "restart_count", "create_attempts", "addresses")} == {
            key: row[key] for key in ("generation", "restart_count", "create_attempts", "addresses")
        }
        assert len(fleet.taps()) == len(fleet.guests())


async def _connect(fleet: Installation) -> Client:
    address = f"127.0.0.1:{fleet.ports['temporal']}"
    return await Client.connect(address, data_converter=data_converter(None))


async def _terminate(fleet: Installation, vm_id: str) -> None:
    """As the button of the Temporal UI does."""
    handle = (await _connect(fleet)).get_workflow_handle(vm_workflow_id(vm_id))
    await handle.terminate("by hand")


async def _storm(fleet: Installation, vm_id: str, *, terminate: bool = True) -> None:
    """Poke as often as that, ten at a time; in its middle end the run as the Temporal UI does."""
    client = await _connect(fleet)
    pass_type = "ConvergeVm" if fleet.row(vm_id)["first_ready_at"] else "CreateVm"
    taken, deadline = 0, time.monotonic() + SETTLED_SECONDS
    while taken < POKES:
        assert time.monotonic() < deadline, f"Temporal took {taken} of {POKES} pokes"
        pokes = (poke(client, pass_type, vm_id) for _ in range(10))
        told = await asyncio.gather(*pokes, return_exceptions=True)
        assert all(answer is None or isinstance(answer, Unavailable) for answer in told), told
        taken += told.count(None)
        if terminate and taken >= POKES // 2:
            terminate = False
            await client.get_workflow_handle(vm_workflow_id(vm_id)).terminate("by hand")


async def _await_idle(fleet: Installation, vm_id: str) -> None:
    """Wait until no run of the VM is open, and check that none ended badly but the one ended by hand."""
    client = await _connect(fleet)
    deadline = time.monotonic() + SETTLED_SECONDS
    handle = client.get_workflow_handle(vm_workflow_id(vm_id))
    while (await handle.describe()).status == WorkflowExecutionStatus.RUNNING:
        assert time.monotonic() < deadline, "a pass goes on although there is nothing to do"
        await asyncio.sleep(0.1)
