"""The host worker killed at every step of real guests' lives: one process, one tap, one disk, or nothing (case E5).

The steps are those that the plain run of the code does on its host; SIGKILL meets each before it, within it, or after
it has worked and before Temporal has heard of it.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.image import ImageActivities
from activities.vm import VmActivities
from tests.faults.apart import KILLS
from tests.faults.faults import Point
from tests.faults.fleet import Fleet, running_fleet
from tests.faults.lives import REAL_STORIES
from tests.faults.machines import RealMachine
from tests.faults.sweep import Sweep

AT_ONCE = 8
FLOOR = 50
"""Fewer kills than this mean that points are not found any more."""


@pytest.fixture
async def home() -> AsyncIterator[Path]:
    """A state directory with a short name, since sockets lie below it, that guests' users may pass through."""
    made = Path(tempfile.mkdtemp(prefix="hst-kills-", dir="/tmp"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def machine(home: Path, netns: str) -> AsyncIterator[RealMachine]:
    machine = RealMachine(home / "host", netns)
    yield machine
    await machine.remove()


def _activities() -> set[str]:
    owners = (VmActivities, ImageActivities)
    return {name for owner in owners for name, each in vars(owner).items() if hasattr(each, _DEFINED)}


_DEFINED = "__temporal_activity_definition"


def kills_at(point: Point) -> tuple[str, ...]:
    return KILLS if point.name in _activities() else ()


# Not part of every slow run: alone it takes a quarter of an hour.
@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("FAULTS") != "all", reason="`make faults` runs it")
@pytest.mark.skipif(os.geteuid() != 0, reason="a host's bridge, taps and users need root")
@pytest.mark.timeout(1500)
async def test_case_e5_a_host_worker_killed_at_every_step_of_real_guests(
    database_url: str,
    temporal_address: str,
    temporal_namespace: str,
    home: Path,
    machine: RealMachine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L-C1, L-G3, L-G4, L-V7, L-R5, H-E5, cases C2, E5: each piece ends as its plain run."""
    sweep = Sweep(random.randrange(len(KILLS)), kills_at)
    fleet_of = running_fleet(
        database_url, temporal_address, temporal_namespace, home, monkeypatch, apart="host", real=machine
    )
    async with fleet_of as fleet:
        await sweep.learn_all(fleet, REAL_STORIES)
        struck = {point.name for left in sweep.left.values() for point, _ in left}
        assert struck == _activities(), "a step that no life takes needs one in lives.py"
        began = time.monotonic()
        await sweep.run(fleet, REAL_STORIES, AT_ONCE)
        await _until_nothing_is_left(fleet)
    print(f"{sweep.tried} kills in {time.monotonic() - began:.0f} s")
    sweep.check(FLOOR)


async def _until_nothing_is_left(fleet: Fleet) -> None:
    """Every VM is deleted by now: once it is gone, so is all that there was of it."""
    for row in await fleet.pool.fetch("select id from vms"):
        await fleet.until(row["id"], lambda row: row is None)
    left = fleet.machine.inventory(fleet.home / "host" / "machines")
    assert (left.processes, left.taps, left.disks) == ({}, {}, {})
