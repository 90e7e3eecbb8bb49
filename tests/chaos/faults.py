"""The faults by name: what each does, how it is undone, and how it is seen that it really was."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random

from tests.chaos.fleet import CONTROLS, Fleet
from tests.chaos.log import Log
from tests.chaos.model import Model
from tests.chaos.programs import Program

PATIENCE_SECONDS = 45.0
LOOK_SECONDS = 0.3


class NotNow(Exception):
    """Another fault has what this one needs, or there is nothing to do it to."""


@dataclass
class Stage:
    """What a fault gets: the fleet, and the generator of the actor that does it."""

    fleet: Fleet
    model: Model
    rng: Random

    @contextlib.asynccontextmanager
    async def taken(self, *names: str) -> AsyncGenerator[list[Program]]:
        """Have programs for oneself; raise NotNow where another fault has one."""
        programs = [self.fleet.programs[name] for name in names]
        if any(program.busy.locked() or program.is_spared for program in programs):
            raise NotNow
        async with contextlib.AsyncExitStack() as stack:
            for way in sorted({way for way, known in self.fleet.ways.items() if set(names) & set(known.needs)}):
                await stack.enter_async_context(self.in_the_way(way))
            for program in programs:
                await stack.enter_async_context(program.busy)
            yield programs

    @contextlib.asynccontextmanager
    async def in_the_way(self, name: str) -> AsyncGenerator[None]:
        """Be the only fault that keeps users from their answers, or work from being done."""
        way = self.fleet.ways[name]
        programs = [self.fleet.programs[need] for need in way.needs]
        all_work = all(program.is_ready for program in programs)
        worked_since = max(way.freed, *(program.ready_since or 0 for program in programs))
        if way.taken.locked() or not all_work or time.monotonic() - worked_since < way.resting_seconds:
            raise NotNow
        async with way.taken:
            try:
                yield
            finally:
                way.freed, way.resting_seconds = time.monotonic(), self.rng.uniform(*way.rest)

    @contextlib.asynccontextmanager
    async def playing(self, name: str) -> AsyncGenerator[None]:
        """Have the clock and the disk of a program for oneself."""
        lock = self.fleet.played.setdefault(name, asyncio.Lock())
        if lock.locked():
            raise NotNow
        async with lock:
            yield


Fault = Callable[[Stage], AbstractAsyncContextManager[str]]
"""Do it, yield what was done to whom; what comes after is its undoing."""


@dataclass(frozen=True)
class Known:
    """A fault of the table. lasts: for how long, in seconds, at least and at most.

    weight: how often it is drawn. hard: it keeps many VMs from getting on, so that such faults take turns.
    """

    name: str
    fault: Fault
    weight: int
    lasts: tuple[float, float]
    hard: bool


TABLE: list[Known] = []


def fault(
    name: str, weight: int, lasts: tuple[float, float] = (0, 0), *, hard: bool = False
) -> Callable[[Callable[[Stage], AsyncGenerator[str]]], Fault]:
    """Put a fault into the table."""

    def put(make: Callable[[Stage], AsyncGenerator[str]]) -> Fault:
        found = contextlib.asynccontextmanager(make)
        TABLE.append(Known(name, found, weight, lasts, hard))
        return found

    return put


class Evil:
    """Does one fault after another until told to end; each is undone before it ends.

    hard: of the hard faults it does each as often as its weight says, in a drawn order, and then begins anew; of the
    others it draws one at a time.
    """

    def __init__(self, name: str, stage: Stage, log: Log, counts: Counter[str], *, hard: bool) -> None:
        self.name = name
        self.stage = stage
        self.log = log
        self.counts = counts
        self.hard = hard
        self._deck: list[Known] = []

    async def act(self, until: asyncio.Event, pause_seconds: float) -> None:
        rng = self.stage.rng
        while not until.is_set():
            known = self._draw()
            lasts, pause = rng.uniform(*known.lasts), rng.uniform(0, 2 * pause_seconds)
            deadline = time.monotonic() + (PATIENCE_SECONDS if known.hard else 0)
            while not until.is_set() and not await self._do(known, lasts, until) and time.monotonic() < deadline:
                await _first(until.wait(), LOOK_SECONDS)
            await _first(until.wait(), pause)

    def _draw(self) -> Known:
        rng, table = self.stage.rng, [known for known in TABLE if known.hard == self.hard]
        if not self.hard:
            return rng.choices(table, [known.weight for known in table])[0]
        if not self._deck:
            self._deck = [known for known in table for _ in range(known.weight)]
            rng.shuffle(self._deck)
        return self._deck.pop()

    async def _do(self, known: Known, lasts: float, until: asyncio.Event) -> bool:
        """Do a fault for so long; return whether it could be done now."""
        try:
            async with known.fault(self.stage) as done:
                self.counts[known.name] += 1
                self.log.note(self.name, f"{known.name}: {done}")
                await _first(until.wait(), lasts)
            self.log.note(self.name, f"{known.name}: over")
        except NotNow:
            return False
        return True


async def _first(event: Awaitable[object], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event, seconds)


async def landed(what: str, holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a fault shows; raise AssertionError for one that does not."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - the kernel's state
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"a fault did not land: {what}") from None


PROCESSES = ("api", "gateway", "host", "temporal", "postgres", *CONTROLS)
