"""Wake, claim and sweep on the real store, under terminated runs, lost pokes, repeated and late local activities.

A world is a queue of events on a clock of its own: the test's databases see a schema `clock` before pg_catalog, whose
now() is the world's. Each event calls the real store. At the end the newest wish is applied, nothing is due, and no
older pass has written over a newer one. Without one of the guards some world must fail, or these tests prove nothing.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from model.generations import VmChange
from model.passes import ClaimRequest, Finish, Outcome, PassRef
from model.row import Row
from model.vm import Phase
from store.audit import Actor
from store.database import Pool, open_pool
from store.passes import PassStore
from store.sweep import due_vms
from store.vm_change import VmChanges
from store.vm_create import create_vm
from tests.fixtures.rows import add_host, new_vm

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
LENGTH_SECONDS = 400.0
CALM_SECONDS = 900.0
ACTOR = Actor("world")


@dataclass
class Run:
    """One workflow run: what Temporal knows of it, and what it has read."""

    id: str
    closed: bool = False
    signalled: bool = False
    claims: int = 0
    lost: int = 0
    row: Row | None = None

    @property
    def ref(self) -> PassRef:
        assert self.row is not None
        return PassRef(vm_id=self.row.vm_id, pass_number=self.row.status.pass_number)


@dataclass
class World:
    """The event queue. `wake_guard` and `sweeping` are switched off to see that something fails without them."""

    pool: Pool
    vm_id: str
    seed: int
    wake_guard: bool = True
    sweeping: bool = True
    pokes_kept: float = 0.7
    now: float = 0.0
    events: list[tuple[float, int, Callable[..., Awaitable[None]], tuple[Any, ...]]] = field(default_factory=list)
    open_run: Run | None = None
    newest_written: int = 0
    overwritten: int = 0
    forgotten: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.order = itertools.count()
        self.names = itertools.count(1)
        self.passes = PassStore(self.pool)
        self.changes = VmChanges(self.pool)

    def at(self, delay: float, event: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.order), event, arguments))

    async def live(self) -> None:
        self.at(0, self.poke)
        self.at(3, self.sweep)
        for event, mean in ((self.wish, 15), (self.terminate, 40)):
            at = self.random.expovariate(1 / mean)
            while at < LENGTH_SECONDS:
                self.at(at, event)
                at += self.random.expovariate(1 / mean)
        while self.events and self.events[0][0] < LENGTH_SECONDS + CALM_SECONDS:
            self.now, _, event, arguments = heapq.heappop(self.events)
            await self.pool.execute("update clock.moment set at = $1", EPOCH + timedelta(seconds=self.now))
            await event(*arguments)

    async def is_right(self) -> bool:
        record = await self.pool.fetchrow("select generation, failures, due_at from vms where id = $1", self.vm_id)
        assert record is not None
        applied = record["failures"] == record["generation"]
        calm = record["due_at"] is None and self.open_run is None
        return applied and calm and self.overwritten == 0 and self.forgotten == 0

    async def wish(self) -> None:
        labels = {"n": str(self.now)}
        await self.changes.change(None, self.vm_id, VmChange(labels=labels), ACTOR)
        if self.random.random() < self.pokes_kept:
            self.at(self.random.uniform(0, 0.3), self.poke)

    async def terminate(self) -> None:
        if self.open_run is not None:
            self.close(self.open_run)

    async def sweep(self) -> None:
        if self.sweeping and await due_vms(self.pool, 10):
            await self.poke()
        self.at(10, self.sweep)

    async def poke(self) -> None:
        if self.open_run is not None:
            self.open_run.signalled = True
            return
        run = Run(f"run-{next(self.names)}")
        self.open_run = run
        self.at(self.random.uniform(0.005, 0.05), self.claim, run)

    def close(self, run: Run) -> None:
        run.closed = True
        if self.open_run is run:
            self.open_run = None

    def happens(self, run: Run) -> bool:
        """A local activity of a closed run still runs, with some luck."""
        return not run.closed or self.random.random() < 0.5

    async def claim(self, run: Run) -> None:
        if not self.happens(run):
            return
        key = run.id if run.claims == 0 else f"{run.id}#{run.claims}"
        for _ in range(1 + (self.random.random() < 0.2)):
            run.row = await self.passes.claim(ClaimRequest(vm_id=self.vm_id, run_id=key))
        run.claims += 1
        if not run.closed:
            self.at(60, self.renew, run, run.claims)
        self.at(self.random.choice([0.1, 1, 5, 30, 200]) * self.random.random(), self.work, run)

    async def renew(self, run: Run, claims: int) -> None:
        if run.closed or run.claims != claims:
            return
        await self.passes.renew(run.ref)
        self.at(60, self.renew, run, claims)

    def take_anew(self, run: Run, *, lost: bool) -> None:
        run.lost += lost
        if run.closed:
            return
        if run.lost >= 3:
            self.close(run)
            return
        self.at(0.02, self.claim, run)

    async def work(self, run: Run) -> None:
        if not self.happens(run):
            return
        assert run.row is not None
        wanted = run.row.desired.generation
        outcome = Outcome(**run.ref.model_dump(), step=1, phase=Phase.READY, failures=wanted)
        row = await self.passes.write_outcome(outcome)
        assert row is not None
        if not row.owner:
            self.take_anew(run, lost=True)
            return
        self.overwritten += wanted < self.newest_written
        self.newest_written = wanted
        self.at(self.random.uniform(0.005, 0.05), self.end, run)

    async def end(self, run: Run) -> None:
        if not self.happens(run):
            return
        assert run.row is not None
        wake = run.row.wake
        if not self.wake_guard:
            wake = await self.pool.fetchval("select wake from vms where id = $1", self.vm_id)
        finish = Finish(**run.ref.model_dump(), wake=wake, due_at=None, result="settled")
        finished = await self.passes.finish(finish)
        if finished.ended and finished.row is not None:
            self.forgotten += finished.row.status.failures != finished.row.desired.generation
        if not finished.ended:
            assert finished.row is not None
            self.take_anew(run, lost=not finished.row.owner)
        elif not run.closed:
            self.at(self.random.uniform(0.001, 0.03), self.complete, run)

    async def complete(self, run: Run) -> None:
        if run.closed:
            return
        if run.signalled:
            run.signalled = False
            self.take_anew(run, lost=False)
        else:
            self.close(run)


@pytest.fixture
async def world_pool(database_url: str) -> AsyncIterator[Pool]:
    """A pool whose now() is the world's."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        """create schema clock;
        create table clock.moment (at timestamptz not null);
        insert into clock.moment values ('2030-01-01 00:00:00+00');
        create function clock.now() returns timestamptz language sql stable as 'select at from clock.moment';
        do $$ begin
            execute format('alter database %I set search_path = clock, public, pg_catalog', current_database());
        end $$;"""
    )
    await connection.close()
    pool = await open_pool(database_url, largest=1)
    assert await pool.fetchval("select now()") == EPOCH
    yield pool
    await pool.close()


async def judge(pool: Pool, seed: int, **switches: Any) -> bool:
    await pool.execute("update clock.moment set at = $1", EPOCH)
    made = await create_vm(pool, new_vm(await add_host(pool)), ACTOR)
    await pool.execute("update vms set due_at = now() where id = $1", made.vm_id)
    world = World(pool, made.vm_id, seed, **switches)
    await world.live()
    right = await world.is_right()
    await pool.execute("update vms set due_at = null where id = $1", made.vm_id)
    return right


@pytest.mark.parametrize("seed", range(12))
async def test_no_world_is_stuck_or_overwritten(world_pool: Pool, seed: int) -> None:
    """L-G1, L-G2: whatever is lost, repeated or late costs seconds, never correctness."""
    assert await judge(world_pool, seed)


@pytest.mark.parametrize("missing", ["wake_guard", "sweeping"])
async def test_without_a_guard_some_world_fails(world_pool: Pool, missing: str) -> None:
    """With every poke lost, all worlds are right, but for what the missing guard lets through."""
    assert await judge(world_pool, 0, pokes_kept=0.0)
    for seed in range(30):
        if not await judge(world_pool, seed, pokes_kept=0.0, **{missing: False}):
            return
    pytest.fail(f"no world failed without {missing}: this test proves nothing about it")
