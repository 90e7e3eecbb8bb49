"""A host that cannot reach its control plane boots again what ran, and does nothing else (H-E6).

A whole simulated host: records, fences, locks and steps are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drivers.host import alone
from model.errors import Fenced
from model.report import ReportAnswer
from model.step import StepKind
from model.vm import PowerState
from tests.fixtures.host import METHODS, HostWorld, make_row
from workers.host_report import Reports

KEPT = {"created": True, "deleted": True}


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostWorld]:
    """A host that counts as alone from the first moment, unless it is answered."""
    monkeypatch.setattr(alone, "LOOK_SECONDS", 0.02)
    world = HostWorld(tmp_path)
    world.alone_after_seconds = 0.0
    await world.restart()
    yield world
    await world.close()


@contextlib.asynccontextmanager
async def left_alone(world: HostWorld) -> AsyncIterator[None]:
    """Let the host look after itself for as long as the block lasts."""
    task = asyncio.create_task(world.host.alone.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def make(world: HostWorld, *vm_ids: str, **changed: object) -> None:
    for vm_id in vm_ids:
        world.add(vm_id, **changed)
        await world.run_pass(make_row(vm_id))


async def nothing() -> None:
    """Renew no credential."""


async def quarantine(world: HostWorld, vm_id: str) -> None:
    world.pass_number += 1
    await world.vm.find_vm(world.order(vm_id, row := make_row(vm_id, **KEPT), 1))
    await getattr(world.vm, METHODS[StepKind.QUARANTINE])(world.order(vm_id, row, 2))


async def reboot(world: HostWorld) -> None:
    await world.stop()
    world.boot_id += "+"
    await world.restart()


def boots(world: HostWorld) -> Counter[str]:
    return Counter(effect.vm_id for effect in world.simulation.journal() if effect.effect == "boot")


async def until_boots(world: HostWorld, wanted: dict[str, int]) -> None:
    async with asyncio.timeout(10):
        while boots(world) != wanted:  # noqa: ASYNC110 - a journal
            await asyncio.sleep(0.02)


async def test_what_ran_is_booted_again_and_nothing_else_is_done(world: HostWorld) -> None:
    """H-E6, L-V1: not a VM that was stopped, quarantined, or never whole; no fence is raised, all is told."""
    await make(world, "ran", "stopped", "deleted")
    await world.run_pass(make_row("stopped", created=True, power_state=PowerState.STOPPED, generation=2))
    await quarantine(world, "deleted")
    world.add("half")
    world.pass_number += 1
    await world.vm.find_vm(world.order("half", row := make_row("half"), 1))
    await getattr(world.vm, METHODS[StepKind.PREPARE])(world.order("half", row, 2))
    before = {"ran": 1, "stopped": 1, "deleted": 1}
    assert boots(world) == before
    fence = world.host.parts.jobs.fences.highest("ran")
    await reboot(world)
    async with left_alone(world):
        await until_boots(world, before | {"ran": 2})
        await asyncio.sleep(0.3)
    assert boots(world) == before | {"ran": 2}
    assert world.host.parts.jobs.fences.highest("ran") == fence
    told = {vm.vm_id: vm.observed for vm in world.host.parts.seen.since(0)}
    assert (told["ran"].power_state, told["ran"].restart_count) == (PowerState.RUNNING, 1)
    view = await world.run_pass(make_row("ran", created=True))
    assert (boots(world)["ran"], view.observed.power_state) == (2, PowerState.RUNNING)


async def test_a_host_that_is_answered_boots_nothing_by_itself(world: HostWorld) -> None:
    """H-E6: whoever reaches the control plane leaves it to that; a release below its floor does nothing, ever."""
    await make(world, "ran")
    answer = ReportAnswer(acknowledged=1, want_whole=False, epoch=1, min_worker_version=None)
    for after, floor in ((60.0, None), (0.0, "99.0.0")):
        world.alone_after_seconds = after
        await reboot(world)
        reports = Reports(world.host, (), renew=nothing)
        await reports.take(answer.model_copy(update={"min_worker_version": floor}))
        async with left_alone(world):
            await asyncio.sleep(0.3)
        assert boots(world) == {"ran": 1}


@pytest.mark.parametrize(("wish", "count"), [("start", 2), ("stop", 1)])
async def test_a_guest_that_ended_by_itself(world: HostWorld, wish: str, count: int) -> None:
    """H-E6, L-V4: booted again at once, then after a pause; one that turned itself off for good stays so."""
    await make(world, "ran", on_guest_poweroff=wish)
    async with left_alone(world):
        world.simulation.cause("ran", "poweroff")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await until_boots(world, {"ran": 2})
        if wish == "start":
            world.simulation.cause("ran", "poweroff")
        await asyncio.sleep(0.5)
    assert boots(world) == {"ran": count}, "the second time it waits for ten seconds"


async def test_an_order_ends_what_the_host_does_by_itself(world: HostWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-E6, L-G5: while an order is in hand the host does nothing; one that comes ends what the host has begun."""
    await make(world, "ran")
    await reboot(world)
    began, ended = asyncio.Event(), asyncio.Event()

    async def boot(job, order, say) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    monkeypatch.setattr(world.host.alone, "_boot", boot)
    async with left_alone(world):
        async with asyncio.timeout(5):
            await began.wait()
        view = await world.run_pass(make_row("ran", created=True))
        async with asyncio.timeout(5):
            await ended.wait()
    assert (boots(world)["ran"], view.observed.power_state) == (2, PowerState.RUNNING)
    with pytest.raises(Fenced):
        async with world.host.parts.jobs.own_initiative("nobody"):
            pass
