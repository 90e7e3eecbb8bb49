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
    """A fault of the table. lasts: for how long, in seconds, at least and at most."""

    name: str
    fault: Fault
    weight: int
    lasts: tuple[float, float] = (0, 0)


TABLE: list[Known] = []


def fault(
    name: str, weight: int, lasts: tuple[float, float] = (0, 0)
) -> Callable[[Callable[..., AsyncGenerator[str]]], Fault]:
    """Put a fault into the table."""

    def put(make: Callable[[Stage], AsyncGenerator[str]]) -> Fault:
        found = contextlib.asynccontextmanager(make)
        TABLE.append(Known(name, found, weight, lasts))
        return found

    return put


class Evil:
    """Does one fault after another until told to end; each is undone before it ends."""

    def __init__(self, name: str, fleet: Fleet, model: Model, log: Log, counts: Counter[str]) -> None:
        self.name = name
        self.log = log
        self.stage = Stage(fleet, model, Random(f"{fleet.seed}/{name}"))
        self.counts = counts

    async def act(self, until: asyncio.Event, pause_seconds: float) -> None:
        rng = self.stage.rng
        while not until.is_set():
            known = rng.choices(TABLE, [each.weight for each in TABLE])[0]
            lasts, pause = rng.uniform(*known.lasts), rng.uniform(0, 2 * pause_seconds)
            try:
                async with known.fault(self.stage) as done:
                    self.counts[known.name] += 1
                    self.log.note(self.name, f"{known.name}: {done}")
                    await _first(until.wait(), lasts)
                self.log.note(self.name, f"{known.name}: over")
            except NotNow:
                pause = 0.05
            await _first(until.wait(), pause)


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


PROCESSES = ("api", "host", "temporal", "postgres", *CONTROLS)
