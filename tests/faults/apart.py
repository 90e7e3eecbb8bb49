"""A worker that is a process of its own, killed by SIGKILL at the points of VMs' lives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

from temporalio.api.enums.v1 import PendingWorkflowTaskState

from model.temporal import vm_workflow_id
from tests.chaos.programs import Program
from tests.faults.faults import Faults, Plan, Use

Kind = Literal["control", "host"]
PROJECT = Path(__file__).resolve().parents[2]
READY: dict[Kind, bytes] = {"control": b"the control worker runs", "host": b"asks for work"}
TASK_TIMEOUT = timedelta(seconds=3)
"""A task whose worker was killed is begun anew after this; what else is in hand then waits as long, too."""

GATHER_SECONDS = 0.5
"""Who comes to its point so soon after another is killed by the same blow: each kill costs a start."""

KILLS = ("killed_before", "killed_within", "killed_after")
"""What may befall an activity of a worker apart: it stands before it, is within it, or has not answered yet."""


class Apart:
    """One worker apart, what stands still in it, and who strikes it down."""

    def __init__(self, kind: Kind, faults: Faults, program: Program) -> None:
        self.kind = kind
        self.faults = faults
        self.program = program
        self.kills: list[int] = []
        self._seconds: dict[str, float] = {}

    async def strike(self, vm_id: str, plan: Plan) -> None:
        """Kill the worker while another has the VM's step in hand. One that does not work yet is dead to it."""
        await self._strike(vm_id, plan, self.program.pid if self.program.is_ready else None)

    async def _strike(self, vm_id: str, plan: Plan, pid: int | None, gather_seconds: float = GATHER_SECONDS) -> None:
        """Kill this process unless it is dead already, and see what the VM's run was about."""
        until = asyncio.get_running_loop().time() + gather_seconds
        while pid == self.program.pid and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - its end
            await asyncio.sleep(0.02)
        if pid is not None and pid == self.program.pid:
            self.kills.append(pid)
            with contextlib.suppress(ProcessLookupError):  # another was quicker
                await self.program.kill()
        workflow_id = vm_id if "/" in vm_id else vm_workflow_id(vm_id)  # a campaign goes by its whole id
        described = await self.faults.client.get_workflow_handle(workflow_id).describe()
        task = described.raw_description.pending_workflow_task
        is_begun = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
        plan.where = "within a task" if is_begun else "between tasks"
        plan.landed = True

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Have none for as long as the block lasts."""
        async with self.program.busy:
            await self.program.put_away(signal.SIGKILL)
            try:
                yield
            finally:
                self.program.keep()

    async def stand(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Attend one activity from before it runs until it has answered, or its worker is dead."""
        pid, gather_seconds = self.program.pid, GATHER_SECONDS
        try:
            line = await reader.readline()
            if not line:
                return
            use = Use(*json.loads(line))
            plan, fault = self.faults.meet(use) or (None, None)
            with contextlib.suppress(OSError):
                if fault != "killed_before":
                    gather_seconds = await self._attend(use, fault, reader, writer)
            if plan is not None:
                await self._strike(use.vm_id, plan, pid, gather_seconds)
        finally:
            writer.close()

    async def _attend(
        self, use: Use, fault: str | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> float:
        """Let it work until its point; return how long others may take to come to theirs."""
        writer.write(b"go on\n")
        began = asyncio.get_running_loop().time()
        working = asyncio.ensure_future(reader.readline())
        if fault == "killed_within":
            await asyncio.wait([working], timeout=random.uniform(0, self._seconds.get(use.name, 0)))
            working.cancel()
            return 0
        if await working:
            self._seconds[use.name] = asyncio.get_running_loop().time() - began
        if fault is None:
            writer.write(b"go on\n")
            await writer.drain()
        return GATHER_SECONDS


@contextlib.asynccontextmanager
async def worker_apart(kind: Kind, faults: Faults, home: Path, settings: dict[str, str]) -> AsyncIterator[Apart]:
    """Run a worker with these settings (`HOSTLER_…`), begun again whenever it is killed. It dies with the test."""
    socket, log = home / f"{kind}.sock", home / f"{kind}.log"
    kept = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = ["setpriv", "--pdeathsig=KILL", "--", sys.executable, "-P", "-m", "tests.faults.worker", kind, str(socket)]
    program = Program(kind, argv, {**kept, **settings}, log, random.Random(), READY[kind])
    apart = Apart(kind, faults, program)
    server = await asyncio.start_unix_server(apart.stand, socket)
    faults.apart = apart
    program.keep()
    try:
        yield apart
    finally:
        await program.put_away(signal.SIGKILL)
        server.close()
