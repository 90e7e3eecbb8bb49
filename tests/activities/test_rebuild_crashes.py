"""The crash-point sweep of rebuilds and undos, on a simulated host: killed before each effect, and gone on by another.

Whatever instant it was, the disk that the user had is there, and one disk is in use (L-V10, L-G3, L-G4).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from model.row import Row
from model.vm import PowerState
from tests.activities.test_rebuild import Places, look_at
from tests.activities.test_vm_crashes import Bomb, bomb, run_until_killed
from tests.fixtures.host import HostWorld, make_row

__all__ = ["bomb"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STOPPED = {"power_state": PowerState.STOPPED}
GONE = {"created": True, "deleted": True, "destroying": True}
REBUILD = {"created": True, "rebuild_generation": 1, "generation": 2}
UNDO = {"created": True, "rebuild_generation": 2, "undo_of": 1, "generation": 3}
AGAIN = {"created": True, "rebuild_generation": 2, "generation": 3}
OVERTAKEN = {**AGAIN, "kept_by": 1}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HostWorld]:
    world = HostWorld(tmp_path)
    await world.restart()
    yield world
    await world.close()


async def live(world: HostWorld, vm_id: str, *lives: dict[str, Any]) -> Places:
    """Play a VM's life while it is wanted stopped, so that nothing waits for a guest."""
    world.add(vm_id)
    await world.run_pass(make_row(vm_id, **STOPPED))
    for each in lives:
        await world.run_pass(make_row(vm_id, **each, **STOPPED))
    return look_at(world, vm_id)


async def killed(world: HostWorld, bomb: Bomb, at: int, row: Row) -> bool:
    """Kill the worker before its `at`-th effect and start another; False when the pass came to its end before."""
    bomb.arm(at)
    met = await run_until_killed(world, row)
    bomb.disarm()
    if met:
        await world.stop()
        await world.restart()
    return met


@pytest.mark.parametrize(
    ("before", "asked"),
    [((), REBUILD), ((REBUILD,), UNDO), ((REBUILD,), AGAIN)],
    ids=["rebuild", "undo", "discard"],
)
async def test_a_worker_killed_in_a_rebuild_loses_no_disk(
    world: HostWorld, bomb: Bomb, before: tuple[dict[str, Any], ...], asked: dict[str, Any]
) -> None:
    """L-V10: each point in turn, until a last pass ends without meeting the bomb."""
    for at in range(1, 200):
        vm_id = f"vm{at}"
        had = await live(world, vm_id, *before)
        met = await killed(world, bomb, at, make_row(vm_id, **asked))
        await world.run_pass(make_row(vm_id, **asked))
        has = look_at(world, vm_id)
        assert has.kept == had.in_use, f"killed before check {at}"
        if asked is UNDO:
            assert has.in_use == had.kept, f"killed before check {at}"
        assert (has.processes, has.applied) == (1, asked["rebuild_generation"]), f"killed before check {at}"
        await world.run_pass(make_row(vm_id, **GONE))
        if not met:
            assert at > 15, "the sweep met too few points to be one"
            return
    raise AssertionError("the sweep does not end")


async def test_a_rebuild_that_is_overtaken_anywhere_keeps_the_first_disk(world: HostWorld, bomb: Bomb) -> None:
    """L-V10: what the first one made was never used; the second, or an undo, starts from the user's own disk."""
    met, at = True, 0
    while met:
        at += 1
        for asked in (OVERTAKEN, UNDO):
            vm_id = f"vm{at}-{asked.get('undo_of', 0)}"
            had = await live(world, vm_id)
            met = await killed(world, bomb, at, make_row(vm_id, **REBUILD, **STOPPED))
            await world.run_pass(make_row(vm_id, **asked, **STOPPED))
            has = look_at(world, vm_id)
            assert (has.in_use if asked is UNDO else has.kept) == had.in_use, f"killed before check {at}"
    assert at > 10, "the sweep met too few points to be one"
