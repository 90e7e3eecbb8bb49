"""Each activity of each piece of a VM's life, struck by each fault: the piece ends as if nothing had happened.

L-G2 to L-G5, cases C2, E5, F1, F3, I2, I4, O5, O14, O15. The points come from the plain run of the code as it is.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from activities.image import ImageActivities
from activities.passes import PassActivities
from activities.vm import VmActivities
from model.ids import new_id
from tests.faults.faults import FAULTS, NOT_COUNTED, Plan, Point
from tests.faults.fleet import Fleet, running_fleet
from tests.faults.lives import STORIES, Life
from tests.faults.outcome import count_effects, find_outcome

AT_ONCE = 12
MOST_MISSES = 4
FLOORS = {"each point": 90, "all": 630}
"""Fewer trials than this mean that points are not found any more."""


@dataclass
class Sweep:
    """What the plain run met and came to, and what is still to be tried: for each life (point, fault).

    `turn`: None tries every fault at every point, a number one fault at each point, each time another.
    """

    turn: int | None
    plain: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: dict[str, list[tuple[Point, str]]] = field(default_factory=dict)
    tried: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def learn(self, life: Life, plan: Plan, outcome: dict[str, Any]) -> None:
        self.plain[life.name] = outcome
        points, faults = list(dict.fromkeys(plan.met)), list(FAULTS)
        pairs = [(point, fault) for point in points for fault in faults]
        if self.turn is not None:
            pairs = [(point, faults[(place + self.turn) % len(faults)]) for place, point in enumerate(points)]
            self.turn += len(points)
        self.left[life.name] = pairs

    def next(self, life: Life) -> tuple[Point | None, str | None]:
        return self.left[life.name].pop() if self.left[life.name] else (None, None)

    def judge(self, life: Life, plan: Plan, outcome: dict[str, Any]) -> None:
        if plan.fault is None or plan.point is None:
            return
        self.tried += 1
        trial = f"{life.name}: {plan.fault} at use {plan.point.use} of {plan.point.name}"
        if not plan.landed:
            # A plain life may look once more than another one: a report or a pause that ends comes when it comes.
            self.misses[trial] += 1
            if self.misses[trial] < MOST_MISSES:
                self.left[life.name].append((plan.point, plan.fault))
            else:
                self.missed.append(trial)
        for key, wanted in self.plain[life.name].items():
            if outcome[key] != wanted:
                self.wrong.append(f"{trial}: {key} is {_differing(outcome[key], wanted)}")


def _differing(found: Any, wanted: Any) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
        return str({key: f"{found.get(key)!r}, not {wanted.get(key)!r}" for key in keys})
    return f"{found!r}, not {wanted!r}"


@pytest.mark.timeout(3000)
async def test_every_activity_of_every_life_under_faults(
    database_url: str,
    temporal_address: str,
    temporal_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each point is struck once, by another fault in each run; with FAULTS=all (`make faults`) by every fault."""
    scope = os.environ.get("FAULTS", "each point")
    sweep = Sweep(random.randrange(len(FAULTS)) if scope == "each point" else None)
    async with running_fleet(database_url, temporal_address, temporal_namespace, tmp_path, monkeypatch) as fleet:
        for story in STORIES:
            await live(fleet, new_id(), story, sweep)
        met = {point.name for left in sweep.left.values() for point, _ in left}
        unmet = set(_names()) - met
        assert unmet == set(), "an activity that no life uses needs one in lives.py"
        began = time.monotonic()
        await asyncio.gather(*(work(fleet, sweep) for _ in range(AT_ONCE)))
    print(f"{sweep.tried} faults in {time.monotonic() - began:.0f} s")
    assert not sweep.wrong, "\n".join(sweep.wrong)
    assert not sweep.missed, "\n".join(sweep.missed)
    assert sweep.tried >= FLOORS[scope]


def _names() -> Iterator[str]:
    for owner in (PassActivities, VmActivities, ImageActivities):
        names = [name for name in vars(owner) if hasattr(getattr(owner, name), "__temporal_activity_definition")]
        yield from set(names) - NOT_COUNTED


async def work(fleet: Fleet, sweep: Sweep) -> None:
    for story in STORIES:
        while any(sweep.left[life.name] for life in story):
            await live(fleet, new_id(), story, sweep)


async def live(fleet: Fleet, vm_id: str, story: tuple[Life, ...], sweep: Sweep) -> None:
    """Live one whole life, each piece with the next fault that is left for it; the first one is plain."""
    for life in story:
        is_plain = life.name not in sweep.plain
        point, fault = (None, None) if is_plain else sweep.next(life)
        if life.prepare is not None:
            await life.prepare(fleet, vm_id)
        since = count_effects(fleet, vm_id)
        plan = fleet.faults.plan(vm_id, point, fault)
        await life.act(fleet, vm_id)
        await fleet.until(vm_id, life.over)
        del fleet.faults.plans[vm_id]
        outcome = await find_outcome(fleet, vm_id, since, exact=life.exact)
        if is_plain:
            sweep.learn(life, plan, outcome)
        else:
            sweep.judge(life, plan, outcome)
