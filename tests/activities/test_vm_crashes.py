"""The crash-point sweep: the worker is killed at each point where a step is about to act, and a new one goes on.

The end state equals the uninterrupted run: one process, one tap, one disk, or nothing at all (L-G3, L-G4, C2, E5).
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from drivers.fences import FenceStore
from drivers.processes import find_processes_of
from model.vm import PowerState
from tests.activities.test_vm import NONE, ONE, inventory
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.processes import SleepingGuests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Killed(BaseException):
    """The worker's end: nothing catches it."""


class Bomb:
    """Count the checks of the fence, which come before every write and side effect, and end the worker at one."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.is_off = at, 0, False

    def __call__(self) -> None:
        if self.is_off:
            raise Killed  # a dead worker does nothing more, not even tidy up
        self.count += 1
        if self.count == self.at:
            self.is_off = True
            raise Killed


LIVES = {
    "create": [({}, ONE)],
    "create, stop, start": [
        ({}, ONE),
        ({"created": True, "power_state": PowerState.STOPPED}, ONE | {"processes": 0}),
        ({"created": True}, ONE),
    ],
    "create, restart": [({}, ONE), ({"created": True, "restart_generation": 1}, ONE)],
    "create, destroy": [({}, ONE), ({"created": True, "deleted": True, "destroying": True}, NONE)],
}


@pytest.mark.parametrize("life", LIVES)
async def test_a_worker_killed_before_any_effect_leaves_no_extra(tmp_path_factory, netns, monkeypatch, life) -> None:
    """Each number of checks in turn, until the last pass ends without meeting the bomb."""
    original = FenceStore.check
    at = 0
    while True:
        at += 1
        bomb = Bomb(10**9)
        home = tmp_path_factory.mktemp("world")

        def check(self, vm_id, fence, bomb=bomb):
            bomb()
            original(self, vm_id, fence)

        monkeypatch.setattr(FenceStore, "check", check)
        world = HostWorld(home, netns, lambda n, b, home=home: SleepingGuests(n, home / "monitors", b))
        world.add("vm1")
        await world.restart()
        try:
            *before, (row, expected) = LIVES[life]
            for earlier, found in before:
                await world.run_pass(make_row("vm1", **earlier))
                assert await inventory(world) == found
            bomb.at = bomb.count + at
            met = await run_until_killed(world, row)
            monkeypatch.setattr(FenceStore, "check", original)
            await world.stop()
            await world.restart()
            created = row.get("created", False)
            await world.run_pass(make_row("vm1", **row))
            assert await inventory(world) == expected, f"killed before check {at}"
            assert len(find_processes_of(world.names.users, world.boot_id)) == expected["processes"]
            if created and not row.get("deleted"):
                assert world.host.parts.records.status("vm1").record.restart_of is None
            world_done = not met
        finally:
            await world.close()
            await release_all(world)
        if world_done:
            assert at > 8, "the sweep met too few points to be one"
            return


async def run_until_killed(world: HostWorld, row) -> bool:
    """Run a pass until the bomb; say whether it was met."""
    try:
        await world.run_pass(make_row("vm1", **row))
    except Killed:
        await settle()
        return True
    return False


async def settle() -> None:
    """Let threads that a dead worker would have taken with it come to their end."""
    await asyncio.sleep(0.05)


async def release_all(world: HostWorld) -> None:
    for vm_id in world.inputs:
        with contextlib.suppress(Exception):
            config = world.host.parts.records.config(vm_id)
            given = config.allocation
            await world.host.parts.network.release(vm_id, tap=given.tap, mac=given.mac, address=given.address)
