"""What is decided of a row that may be older than what its host was ordered last (H-R1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from model.decide import next_step
from model.step import StepKind
from model.vm import PowerState, Quarantine
from model.waiting import Waiting
from tests.model.test_decide import created
from tests.model.world import NOW, World, change, make_row

OVER = Quarantine(kind="tombstone", since=NOW, destroy_at=NOW - timedelta(hours=1), stopped_at=NOW)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"power_state": PowerState.STOPPED},
        {"deleted": True, "quarantine": OVER},
        {"deleted": True, "quarantine": OVER, "destroying": True},
        {"generation": 0},
        {"restart_generation": 1},
    ],
)
@pytest.mark.parametrize("there", ["nothing", "runs", "stopped"])
def test_a_row_that_may_be_older_than_its_hosts_orders_moves_nothing(changed: dict[str, Any], there: str):
    """H-R1: nothing is booted, stopped, quarantined or destroyed, and no difference is called a fault."""
    world = created() if there != "nothing" else World(make_row(first_ready_at=NOW))
    if there == "stopped":
        world.stop_guest()
    row = change(world.row, behind=True, **changed)
    step = next_step(row, world.view)
    assert step.kind in (StepKind.WAIT, StepKind.SETTLED)
    assert step.waits in (Waiting.BEHIND, None)
    if (changed, there) != ({}, "runs"):
        assert (step.waits, step.until) == (Waiting.BEHIND, None)
