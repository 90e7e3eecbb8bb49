"""One run: a fleet, users, faults and the watch beside each other; then rest, and the reckoning."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos import faults_around, faults_guests, faults_processes
from tests.chaos.evidence import keep_evidence
from tests.chaos.faults import TABLE, Evil, Stage
from tests.chaos.fleet import Fleet
from tests.chaos.log import Log
from tests.chaos.model import Model
from tests.chaos.settle import Settling
from tests.chaos.users import User
from tests.chaos.watch import Watch

USERS, EVILS, HARD_EVILS = 4, 8, 2
VMS_PER_USER = 6
USER_PAUSE_SECONDS, FAULT_PAUSE_SECONDS = 0.7, 0.4
LOOK_SECONDS = 0.2
END_SECONDS = 240.0
FAULT_MODULES = (faults_around, faults_guests, faults_processes)


@dataclass
class Result:
    """What a run came to."""

    log: Log
    model: Model
    faults: Counter[str] = field(default_factory=Counter)
    passes: int = 0
    evidence: Path | None = None

    def lines(self) -> list[str]:
        """Say it in words."""
        names = sorted({each.name for each in TABLE})
        told = [f"  {self.faults[name]:5}  {name}" for name in names]
        asked = Counter(ask.outcome for vm in self.model.vms.values() for ask in vm.asks if ask.verb != "guest")
        real = sum(vm.hypervisor == "qemu" for vm in self.model.vms.values())
        total = f"{len(self.model.vms)} VMs ({real} of them real), {sum(asked.values())} requests ({dict(asked)}), "
        total += f"{self.faults.total()} faults, {self.passes} passes, {len(self.log.violations)} violations"
        return [*told, f"answers: {dict(self.model.answers.most_common())}", total]


async def run(folder: Path, seed: str, seconds: float, least_faults: int = 0) -> Result:
    """Run for so long and for so many faults, or until something is as it must never be; then rest and compare."""
    log, model = Log(), Model()
    fleet, result = Fleet(folder, log, seed), Result(log, model)
    try:
        await fleet.start()
        watch = Watch(fleet, model, log)
        async with _beside(watch.follow_machine(), watch.follow_list()) as watching:
            await _rage(fleet, result, seconds, least_faults, watching)
            if not log.violations:
                log.note("run", "no more faults: everything comes to rest")
                await Settling(fleet, model, log, watch).settle()
            _raise_errors(watching)
        result.passes = await _count_passes(fleet)
    except BaseException:
        result.evidence = await keep_evidence(fleet, log, seed)
        raise
    finally:
        if log.violations and result.evidence is None:
            result.evidence = await keep_evidence(fleet, log, seed)
        await fleet.stop()
    return result


async def _rage(
    fleet: Fleet, result: Result, seconds: float, least_faults: int, watching: list[asyncio.Task[None]]
) -> None:
    """Let users and faults at it."""
    over, log, model = asyncio.Event(), result.log, result.model
    users = [User(f"user-{n}", fleet, model, log, most_vms=VMS_PER_USER * USERS) for n in range(USERS)]
    evils = [_evil(f"evil-{n}", fleet, result, hard=n < HARD_EVILS) for n in range(EVILS)]
    tasks = [asyncio.create_task(user.live(over, USER_PAUSE_SECONDS), name=user.name) for user in users]
    tasks += [asyncio.create_task(evil.act(over, FAULT_PAUSE_SECONDS), name=evil.name) for evil in evils]
    deadline = time.monotonic() + seconds
    while (time.monotonic() < deadline or result.faults.total() < least_faults) and not log.violations:
        await asyncio.sleep(LOOK_SECONDS)
        _raise_errors([*tasks, *watching])
    over.set()
    _, left = await asyncio.wait(tasks, timeout=END_SECONDS)
    _raise_errors(tasks)
    for task in left:
        log.violated(f"{task.get_name()} is not done {END_SECONDS:g} s after the last fault was undone")
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _evil(name: str, fleet: Fleet, result: Result, *, hard: bool) -> Evil:
    stage = Stage(fleet, result.model, Random(f"{fleet.seed}/{name}"))
    return Evil(name, stage, result.log, result.faults, hard=hard)


@contextlib.asynccontextmanager
async def _beside(*works: Coroutine[None, None, None]) -> AsyncGenerator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _raise_errors(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def _count_passes(fleet: Fleet) -> int:
    connection = await fleet.connect()
    try:
        return await connection.fetchval("select last_value from pass")
    finally:
        await connection.close()
