"""The crash-point sweep: the worker is killed at each point where a step is about to act, and a new one goes on.

The end state equals the uninterrupted run: one process, one tap, one disk, or nothing at all (L-G3, L-G4, C2, E5).
"""

from __future__ import annotations

import pytest

from drivers.fences import FenceStore
from model.vm import PowerState
from tests.activities.test_vm import NONE, ONE, inventory
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.processes import SleepingGuests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Killed(BaseException):
    """The worker's end: nothing catches it."""


class Bomb:
    """Count the checks of the fence, which come before every write and side effect, and end the worker at one."""

    def __init__(self) -> None:
        self.left = -1

    def arm(self, at: int) -> None:
        self.left = at

    def disarm(self) -> None:
        self.left = -1

    def __call__(self) -> None:
        if self.left == 0:
            raise Killed  # a dead worker does nothing more, not even tidy up
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
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


@pytest.fixture
async def world(tmp_path, netns):
    world = HostWorld(tmp_path, netns, lambda names, boot_id: SleepingGuests(names, tmp_path / "monitors", boot_id))
    await world.restart()
    yield world
    await world.close()


@pytest.fixture
def bomb(monkeypatch) -> Bomb:
    bomb = Bomb()
    original = FenceStore.check

    def check(self, vm_id, fence):
        bomb()
        original(self, vm_id, fence)

    monkeypatch.setattr(FenceStore, "check", check)
    return bomb


@pytest.mark.parametrize("life", LIVES)
async def test_a_worker_killed_before_any_effect_leaves_no_extra(world, bomb, life) -> None:
    """Each point in turn, until a last pass ends without meeting the bomb; each life ends without a trace."""
    *before, (row, expected) = LIVES[life]
    for at in range(1, 500):
        vm_id = f"vm{at}"
        world.add(vm_id)
        for earlier, found in before:
            await world.run_pass(make_row(vm_id, **earlier))
            assert await inventory(world, vm_id) == found
        bomb.arm(at)
        met = await run_until_killed(world, make_row(vm_id, **row))
        bomb.disarm()
        if met:
            await world.stop()
            await world.restart()
            await world.run_pass(make_row(vm_id, **row))
        assert await inventory(world, vm_id) == expected, f"killed before check {at}"
        await world.run_pass(make_row(vm_id, created=True, deleted=True, destroying=True))
        assert await inventory(world, vm_id) == NONE, f"killed before check {at}"
        if not met:
            assert at > 8, "the sweep met too few points to be one"
            return
    raise AssertionError("the sweep does not end")


async def run_until_killed(world: HostWorld, row) -> bool:
    """Run a pass until the bomb; say whether it was met. Threads of the dead worker come to their end."""
    try:
        await world.run_pass(row)
    except Killed:
        return True
    return False
