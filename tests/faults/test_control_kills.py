"""A control worker killed at any point of any life leaves what the next one finishes (L-G1, L-G2, L-G5, cases E5, O14).

It is a process of its own, killed by SIGKILL: between its workflow tasks, while a host has a step in hand, and within
them, before and after each use of the store.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from activities.passes import PassActivities
from runtime import temporal
from tests.faults.apart import TASK_TIMEOUT
from tests.faults.conftest import Given
from tests.faults.faults import KILLED, Point
from tests.faults.fleet import running_fleet
from tests.faults.lives import STORIES
from tests.faults.sweep import Sweep

AT_ONCE = 10
FLOORS = {"between tasks": 60, "within a task": 80}
"""Fewer kills than this mean that points are not found any more."""


def kills_at(point: Point) -> tuple[str, ...]:
    """The store is used within a workflow task; a host's step is in hand between two."""
    return ("killed_before", "killed_after") if hasattr(PassActivities, point.name) else (KILLED,)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_case_e5_a_control_worker_killed_at_every_point(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-G1, L-G2, L-G5, L-C4, cases E5, O12, O14: each point is struck once; the piece ends as if nothing happened."""
    monkeypatch.setattr(temporal, "TASK_TIMEOUT", TASK_TIMEOUT)
    sweep = Sweep(random.randrange(2), kills_at)
    async with running_fleet(*given, apart="control") as fleet:
        await sweep.learn_all(fleet, STORIES)
        began = time.monotonic()
        await sweep.run(fleet, STORIES, AT_ONCE)
    print(f"{sweep.tried} kills ({dict(sweep.where)}) in {time.monotonic() - began:.0f} s")
    sweep.check(sum(FLOORS.values()))
    assert b"invalid command sequence" not in (tmp_path / "control.log").read_bytes()
    for where, floor in FLOORS.items():
        assert sweep.where[where] >= floor, sweep.where
