"""Faults of what is around the processes: connections, clocks, disk, and the runs at Temporal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncGenerator
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

from tests.chaos.faults import NotNow, Stage, fault, landed
from tests.chaos.gates import Gate

USERS_GATES = ("users>api", "api>postgres")
LONG_SECONDS = 4 * 3600.0


async def _temporal(stage: Stage) -> Client:
    try:
        async with asyncio.timeout(3):
            return await Client.connect(f"127.0.0.1:{stage.fleet.ports['temporal']}")
    except (RuntimeError, RPCError, TimeoutError):
        raise NotNow from None


@fault("terminate a run", 12)
async def terminate_run(stage: Stage) -> AsyncGenerator[str]:
    client = await _temporal(stage)
    try:
        async with asyncio.timeout(5):
            found = [run.id async for run in client.list_workflows("ExecutionStatus='Running'", limit=50)]
            if not found:
                raise NotNow
            workflow_id = stage.rng.choice(sorted(found))
            handle = client.get_workflow_handle(workflow_id)
            described = await handle.describe()
            await client.get_workflow_handle(workflow_id, run_id=described.run_id).terminate("chaos")
    except (RPCError, TimeoutError):
        raise NotNow from None  # it has ended by itself
    yield f"{workflow_id} {described.run_id}"


@fault("a storm of pokes", 6)
async def poke_storm(stage: Stage) -> AsyncGenerator[str]:
    """Signals to every run that is open: what pokes do, only more of it."""
    client = await _temporal(stage)
    told = 0
    with contextlib.suppress(TimeoutError, RPCError):
        async with asyncio.timeout(5):
            found = [run.id async for run in client.list_workflows("ExecutionStatus='Running'", limit=50)]
            for workflow_id in found * 3:
                with contextlib.suppress(RPCError):
                    await client.get_workflow_handle(workflow_id).signal("look_again")
                    told += 1
    if not told:
        raise NotNow
    yield f"{told} pokes"


@contextlib.asynccontextmanager
async def _some_gate(stage: Stage) -> AsyncGenerator[tuple[str, Gate]]:
    """Have a gate for oneself."""
    name = stage.rng.choice(sorted(stage.fleet.gates))
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(stage.in_the_way("users" if name in USERS_GATES else "work"))
        await stack.enter_async_context(stage.playing(name))
        yield name, stage.fleet.gates[name]


@fault("cut connections", 2, hard=True)
async def cut(stage: Stage) -> AsyncGenerator[str]:
    async with _some_gate(stage) as (name, gate):
        count = await gate.cut()
        if not count:
            raise NotNow
        yield f"{count} of {name}"


@fault("refuse a port", 2, (0.5, 8), hard=True)
async def refuse(stage: Stage) -> AsyncGenerator[str]:
    async with _some_gate(stage) as (name, gate):
        count = await gate.refuse()
        try:
            yield f"{name}, and {count} connections cut"
        finally:
            await gate.open()


@fault("lose answers", 2, (0.2, 4), hard=True)
async def lose_answers(stage: Stage) -> AsyncGenerator[str]:
    """What is asked arrives, and what is answered does not."""
    async with _some_gate(stage) as (name, gate):
        before, gate.lose_answers = gate.lost, True
        try:
            with contextlib.suppress(AssertionError):
                await landed("an answer is lost", lambda: gate.lost > before, 5)
            if gate.lost == before:
                raise NotNow  # nobody asked for anything
            yield name
        finally:
            gate.lose_answers = False


@fault("shift a clock", 6, (1, 20))
async def shift_clock(stage: Stage) -> AsyncGenerator[str]:
    name = stage.rng.choice(sorted(stage.fleet.tricks))
    async with stage.playing(name):
        seconds = stage.rng.choice((-LONG_SECONDS, -60.0, 60.0, LONG_SECONDS))
        stage.fleet.tricks[name].set(clock_seconds=seconds)
        try:
            yield f"that of {name} by {seconds:g} s"
        finally:
            stage.fleet.tricks[name].set()


@fault("slow disk", 1, (1, 8), hard=True)
async def slow_disk(stage: Stage) -> AsyncGenerator[str]:
    async with stage.playing("host"), stage.in_the_way("work"):
        seconds = stage.rng.uniform(0.05, 1.0)
        stage.fleet.tricks["host"].set(flush_seconds=seconds)
        try:
            yield f"each flush on the host takes {seconds:.2f} s"
        finally:
            stage.fleet.tricks["host"].set()


@fault("full disk", 1, (1, 10), hard=True)
async def full_disk(stage: Stage) -> AsyncGenerator[str]:
    """Nothing more can be written where the host keeps its state."""
    filler = stage.fleet.host / "filler"
    async with stage.in_the_way("work"):
        try:
            yield f"{_fill(filler)} bytes fill it up"
        finally:
            filler.unlink()


def _fill(filler: Path) -> int:
    """Write until nothing more fits; return how much that was."""
    size = 1 << 20
    with filler.open("wb", buffering=0) as file:
        while size >= 512:
            try:
                fits = file.write(bytes(size)) == size
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                fits = False
            size = size if fits else size // 2
        return file.tell()
