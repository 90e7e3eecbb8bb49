"""A sweep: whole lives of VMs, one fault in each piece of a life, until every point of every piece had its turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.ids import new_id
from tests.faults.faults import Plan, Point
from tests.faults.fleet import Fleet
from tests.faults.lives import Life
from tests.faults.outcome import find_outcome

LANDING_SECONDS = 60
MOST_MISSES = 4
MISSED_OF = 20
"""Of so many points one may never come again: how often a pass looks depends on when reports and pauses come."""
Story = tuple[Life, ...]


@dataclass
class Sweep:
    """What the plain lives met and came to, and what is still to be tried: for each life (point, fault).

    faults_at: what may befall a point. `turn`: None tries every fault at every point, a number one fault at each
    point, each time another. where: what the control worker was about at its kills.
    """

    turn: int | None
    faults_at: Callable[[Point], Sequence[str]]
    first: dict[str, set[Point]] = field(default_factory=dict)
    """Of each piece the points that its first plain life met."""
    plain: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: dict[str, list[tuple[Point, str]]] = field(default_factory=dict)
    tried: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    where: Counter[str | None] = field(default_factory=Counter)

    async def learn_all(self, fleet: Fleet, stories: Sequence[Story]) -> None:
        """Live each story plain, twice: what only one of them met came by chance, as a look that a report asked for."""
        for _ in range(2):
            await asyncio.gather(*(self.live(fleet, new_id(), story) for story in stories))

    def _learn(self, life: Life, plan: Plan, outcome: dict[str, Any]) -> None:
        if life.name not in self.first:
            self.first[life.name] = set(plan.met.values())
            return
        self.plain[life.name] = outcome
        both = [point for point in plan.met.values() if point in self.first[life.name]]
        found = [(point, list(self.faults_at(point))) for point in both]
        met = [(point, faults) for point, faults in found if faults]
        pairs = [(point, fault) for point, faults in met for fault in faults]
        if self.turn is not None:
            pairs = [(point, faults[(place + self.turn) % len(faults)]) for place, (point, faults) in enumerate(met)]
            self.turn += len(met)
        self.left[life.name] = pairs

    def next(self, life: Life) -> tuple[Point | None, str | None]:
        return self.left[life.name].pop() if self.left[life.name] else (None, None)

    def judge(self, life: Life, plan: Plan, outcome: dict[str, Any]) -> None:
        if plan.fault is None or plan.point is None:
            return
        self.tried += 1
        trial = f"{life.name}: {plan.fault} at use {plan.point.use} of {plan.point.name}"
        if plan.landed:
            self.where[plan.where] += 1
        else:
            # A plain life may look once more than another one: a report or a pause that ends comes when it comes.
            self.misses[trial] += 1
            if self.misses[trial] < MOST_MISSES:
                self.left[life.name].append((plan.point, plan.fault))
            else:
                self.missed.append(trial)
        for key, wanted in self.plain[life.name].items():
            if outcome[key] != wanted:
                self.wrong.append(f"{trial}: {key} is {_differing(outcome[key], wanted)}")

    def check(self, floor: int) -> None:
        """Raise AssertionError for an end that was another one, and where too little was tried or too much missed."""
        assert not self.wrong, "\n".join(self.wrong)
        assert len(self.missed) <= self.tried // MISSED_OF, "\n".join(self.missed)
        assert self.tried >= floor

    async def run(self, fleet: Fleet, stories: Sequence[Story], at_once: int) -> None:
        """Try all that is left, in so many lives beside each other."""
        await asyncio.gather(*(self._work(fleet, stories) for _ in range(at_once)))

    async def _work(self, fleet: Fleet, stories: Sequence[Story]) -> None:
        for story in stories:
            while any(self.left[life.name] for life in story):
                await self.live(fleet, new_id(), story)

    async def live(self, fleet: Fleet, vm_id: str, story: Story) -> None:
        """Live one life, each piece with the next fault that is left for it; the first two are plain.

        Where no later piece has a fault to try, it is over.
        """
        for place, life in enumerate(story):
            is_plain = life.name not in self.plain
            if not is_plain and not any(self.left[later.name] for later in story[place:]):
                await fleet.call("DELETE", f"/v1/vms/{vm_id}?now=true")
                return
            point, fault = (None, None) if is_plain else self.next(life)
            if life.prepare is not None:
                await life.prepare(fleet, vm_id)
            mark = fleet.machine.mark(vm_id)
            plan = fleet.faults.plan(vm_id, point, fault)
            await life.act(fleet, vm_id)
            await fleet.until(vm_id, life.over)
            await _await_landing(plan)
            del fleet.faults.plans[vm_id]
            outcome = await find_outcome(fleet, vm_id, mark, exact=life.exact)
            if is_plain:
                self._learn(life, plan, outcome)
            else:
                self.judge(life, plan, outcome)


async def _await_landing(plan: Plan) -> None:
    """A row may be as it should while a kill at its last write has yet to fall."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LANDING_SECONDS):
            while plan.is_met and not plan.landed:  # noqa: ASYNC110 - another process' end
                await asyncio.sleep(0.02)


def _differing(found: Any, wanted: Any) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
        return str({key: f"{found.get(key)!r}, not {wanted.get(key)!r}" for key in keys})
    return f"{found!r}, not {wanted!r}"
