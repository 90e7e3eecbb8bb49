"""Each activity of each piece of a VM's life, struck by each fault: the piece ends as if nothing had happened.

L-G2 to L-G5, cases C2, E5, F1, F3, I2, I4, O5, O14, O15. The points come from the plain run of the code as it is.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest

from activities.image import ImageActivities
from activities.passes import PassActivities
from activities.vm import VmActivities
from tests.faults.conftest import Given
from tests.faults.faults import FAULTS, NOT_COUNTED
from tests.faults.fleet import running_fleet
from tests.faults.lives import STORIES
from tests.faults.sweep import Sweep

AT_ONCE = 12
FLOORS = {"each point": 90, "all": 630}
"""Fewer trials than this mean that points are not found any more."""
NOT_LIVED = frozenset({"take_over"})
"""Needs a fleet whose database was restored, which reaches all VMs beside; tests/store/test_passes.py has it."""


@pytest.mark.timeout(3000)
async def test_every_activity_of_every_life_under_faults(given: Given) -> None:
    """Each point is struck once, by another fault in each run; with FAULTS=all (`make faults`) by every fault."""
    scope = os.environ.get("FAULTS", "each point")
    sweep = Sweep(random.randrange(len(FAULTS)) if scope == "each point" else None, lambda _: tuple(FAULTS))
    async with running_fleet(*given) as fleet:
        await sweep.learn_all(fleet, STORIES)
        met = {point.name for left in sweep.left.values() for point, _ in left}
        unmet = set(_names()) - met - NOT_LIVED
        assert unmet == set(), "an activity that no life uses needs one in lives.py"
        began = time.monotonic()
        await sweep.run(fleet, STORIES, AT_ONCE)
    print(f"{sweep.tried} faults in {time.monotonic() - began:.0f} s")
    sweep.check(FLOORS[scope])


def _names() -> Iterator[str]:
    for owner in (PassActivities, VmActivities, ImageActivities):
        names = [name for name in vars(owner) if hasattr(getattr(owner, name), "__temporal_activity_definition")]
        yield from set(names) - NOT_COUNTED
