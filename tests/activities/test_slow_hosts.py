"""A host that is slow or stuck: one actor at a time, limits that end, and a stop that reaches what runs."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from drivers import disks
from drivers.confine import Confinement, run_confined
from drivers.threads import in_thread
from model.errors import Fenced, StepFailed
from model.vm import Image, ImageFile, PowerState
from tests.activities.test_vm import NONE, ONE, inventory
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.image_server import ImageServer

CONTENT = b"\0" * 3_000_000


async def test_case_j5_a_slow_disk_has_one_actor_whatever_comes_meanwhile(world: HostWorld, monkeypatch) -> None:
    """Case J5, L-G2: no lock lapses while the step that it guards still works, not even when that was cancelled."""
    real, inside, most, reached = disks.Disks.make_overlay, 0, 0, asyncio.Event()

    async def slowly(*arguments: Any, **named: Any) -> disks.DiskState:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        reached.set()
        try:
            await in_thread(lambda: time.sleep(1.5))  # a thread cannot be cancelled
            return await real(*arguments, **named)
        finally:
            inside -= 1

    monkeypatch.setattr(disks.Disks, "make_overlay", slowly)
    first = asyncio.create_task(world.run_pass(make_row("vm1")))
    await reached.wait()
    await world.run_pass(make_row("vm1"))
    with pytest.raises(Fenced):
        await first
    assert most == 1
    assert await inventory(world) == ONE


async def test_case_m1_a_tool_that_never_returns_ends_at_its_limit(world: HostWorld, monkeypatch) -> None:
    """Case M1: the step fails in its own time, its create slot is free, and no other VM has waited for it."""
    monkeypatch.setattr(disks, "QEMU_IMG_SECONDS", 1.0)
    stuck = asyncio.Event()

    async def never(confinement: Confinement, *, timeout_seconds: float) -> Any:
        stuck.set()
        return await run_confined(
            dataclasses.replace(confinement, argv=("sleep", "1000")), timeout_seconds=timeout_seconds
        )

    monkeypatch.setattr(disks, "run_confined", never)
    hanging = asyncio.create_task(world.run_pass(make_row("vm1")))
    await stuck.wait()
    monkeypatch.setattr(disks, "run_confined", run_confined)
    world.add("vm2")
    view = await world.run_pass(make_row("vm2"))
    assert view.observed.power_state is PowerState.RUNNING
    with pytest.raises(StepFailed):
        await hanging
    assert world.host.parts.create_slots.busy == 0
    view = await world.run_pass(make_row("vm1"))
    assert view.observed.power_state is PowerState.RUNNING


@pytest.fixture
async def fetching(world: HostWorld, image_server: ImageServer) -> Callable[[str], Image]:
    """Let VMs be made of an image of which only the first part comes."""
    await world.stop()
    world.allowed = ("127.0.0.0/8",)
    await world.restart()
    image_server.serve("/image", CONTENT, hold_after=1_000_000)

    def image(vm_id: str) -> Image:
        file = ImageFile(url=f"{image_server.base}/image", sha256=hashlib.sha256(CONTENT).hexdigest())
        found = Image(owner="default", rootfs=file, format="raw")
        world.add(vm_id, image=found)
        return found

    return image


async def until_fetching(world: HostWorld) -> None:
    async with asyncio.timeout(20):
        while not any(stored.size_bytes > 500_000 for stored in world.host.parts.images.list_files()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_case_o7_a_delete_ends_the_download_and_removes_its_part(world: HostWorld, fetching) -> None:
    """Case O7, L-R8: nobody waits for bytes that nobody wants, and none of them stays."""
    fetching("vm1")
    creating = asyncio.create_task(world.run_pass(make_row("vm1")))
    await until_fetching(world)
    world.pass_number += 1
    async with asyncio.timeout(10):
        await world.vm.ensure_quarantined(world.order("vm1", make_row("vm1", deleted=True), 1))
        with pytest.raises(Fenced):
            await creating
    assert world.host.parts.images.list_files() == ()
    assert world.host.parts.create_slots.busy == 0
    await world.run_pass(make_row("vm1", deleted=True, destroying=True))
    assert await inventory(world) == NONE


async def test_case_o7_a_quarantine_leaves_a_download_that_another_vm_waits_for(
    world: HostWorld, fetching, image_server: ImageServer
) -> None:
    """Case O7, J2: the fetch is shared; it ends with the last VM that wants it."""
    fetching("vm1")
    fetching("vm2")
    tasks = [asyncio.create_task(world.run_pass(make_row(vm_id))) for vm_id in ("vm1", "vm2")]
    await until_fetching(world)
    world.pass_number += 1
    await world.vm.ensure_quarantined(world.order("vm1", make_row("vm1", deleted=True), 1))
    assert image_server.open_downloads == 1
    await world.vm.ensure_quarantined(world.order("vm2", make_row("vm2", deleted=True), 1))
    assert world.host.parts.images.list_files() == ()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, Fenced) for result in results)
    image_server.files["/image"].release.set()
    view = await world.run_pass(make_row("vm1", created=False))
    assert view.observed.power_state is PowerState.RUNNING
