"""Faults of whole processes: killed, stopped for longer than anybody waits, away, or with another boot beneath them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator

from tests.chaos.faults import CONTROLS, PROCESSES, NotNow, Stage, fault, landed
from tests.chaos.programs import Program


async def _killed(program: Program) -> str:
    """Kill a process, and see that another takes its place."""
    starts, pid = program.starts, await program.kill()
    assert pid is not None
    await landed(f"{program.name} is begun again", lambda: program.starts > starts and program.pid not in (None, pid))
    return f"{program.name} {pid} became {program.pid}"


@fault("kill the API", 2, hard=True)
async def kill_api(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken("api") as (program,):
        yield await _killed(program)


@fault("kill the gateway", 2, hard=True)
async def kill_gateway(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken("gateway") as (program,):
        yield await _killed(program)


@fault("kill a control worker", 2, hard=True)
async def kill_control(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken(stage.rng.choice(CONTROLS)) as (program,):
        yield await _killed(program)


@fault("kill the host worker", 3, hard=True)
async def kill_host(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken("host") as (program,):
        yield await _killed(program)


@fault("kill Temporal", 1, hard=True)
async def kill_temporal(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken("temporal") as (program,):
        yield await _killed(program)


@fault("kill Postgres", 1, hard=True)
async def kill_postgres(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken("postgres") as (program,):
        yield await _killed(program)


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] == "T"


@contextlib.asynccontextmanager
async def _stopped(program: Program) -> AsyncGenerator[str]:
    """Stop a process where it stands, and let it go on."""
    pid = program.signal(signal.SIGSTOP)
    assert pid is not None
    try:
        await landed(f"{program.name} stands still", lambda: _is_stopped(pid))
        yield f"{program.name} {pid} stands still"
    finally:
        if program.pid == pid:
            program.signal(signal.SIGCONT)


@fault("stop a process for a moment", 3, (0.3, 4), hard=True)
async def stop_shortly(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken(stage.rng.choice(PROCESSES)) as (program,), _stopped(program) as what:
        yield what


@fault("stop a process over its limits", 2, (13, 17), hard=True)
async def stop_long(stage: Stage) -> AsyncGenerator[str]:
    """Longer than a heartbeat's limit, a workflow task's, and what a client waits for an answer."""
    name = stage.rng.choice(("api", "host", "host", *CONTROLS))
    async with stage.taken(name) as (program,), _stopped(program) as what:
        yield what


@fault("take Postgres away", 1, (2, 9), hard=True)
async def postgres_away(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken("postgres") as (program,):
        await program.put_away(signal.SIGINT)
        try:
            yield "Postgres is away"
        finally:
            program.keep()


@fault("take Temporal away", 1, (2, 9), hard=True)
async def temporal_away(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken("temporal") as (program,):
        await program.put_away()
        try:
            yield "Temporal is away"
        finally:
            program.keep()


@fault("empty Temporal", 1, (0, 1), hard=True)
async def empty_temporal(stage: Stage) -> AsyncGenerator[str]:
    async with stage.taken("temporal") as (program,):
        await program.put_away()
        file = stage.fleet.temporal_file
        size = file.stat().st_size
        for each in file.parent.glob(f"{file.name}*"):
            each.unlink()
        try:
            yield f"Temporal has lost its {size} bytes"
        finally:
            program.keep()


@fault("reboot the host", 2, (0, 3), hard=True)
async def reboot(stage: Stage) -> AsyncGenerator[str]:
    """Every guest dies with its machine, and the worker of its next boot finds another boot id."""
    async with stage.taken("host") as (program,):
        await program.put_away(signal.SIGKILL)
        await asyncio.to_thread(stage.fleet.real.end_with_the_machine)
        stage.fleet.new_boot()
        try:
            yield f"the host's boot is {stage.fleet.boot_id()} now"
        finally:
            program.keep()
            await asyncio.sleep(0)


@fault("kill a real guest", 6)
async def kill_guest(stage: Stage) -> AsyncGenerator[str]:
    """Its process, as the kernel's out-of-memory killer does."""
    ids = sorted(stage.fleet.real.processes)
    if not ids:
        raise NotNow
    vm_id = stage.rng.choice(ids)
    pid = stage.fleet.real.processes[vm_id][0]
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        raise NotNow from None
    yield f"{vm_id} {pid}"
