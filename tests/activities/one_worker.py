"""A host worker as a process of its own, without Temporal: `python -m tests.activities.one_worker HOME NETNS BASE`.

It takes the lock of its state directory, says `ready PID`, and plays a pass for each line on its standard input: JSON
with `pass_number` and what `make_row` takes. It answers `NUMBER ok` or `NUMBER` and the error's name.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from drivers.machine import lock_worker
from drivers.names import HostNames
from model.errors import HostlerError
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.processes import SleepingGuests

VM = "vm1"


def names_of(netns: str, base: int) -> HostNames:
    return HostNames(netns=netns, cgroup=f"hst-{base:x}", uid_base=base, uid_count=10)


def make_world(home: Path, netns: str, base: int) -> HostWorld:
    """Make the same host again, whichever process asks."""
    world = HostWorld(home, netns, lambda names, boot_id: SleepingGuests(names, home / "monitors", boot_id))
    world.names = names_of(netns, base)
    world.add(VM)
    return world


async def play(world: HostWorld, number: int, row: dict[str, bool]) -> None:
    world.pass_number = number - 1
    try:
        await world.run_pass(make_row(VM, **row))
        print(number, "ok", flush=True)
    except HostlerError as error:
        print(number, type(error).__name__, flush=True)


async def main(home: Path, netns: str, base: int) -> None:
    lock_worker(home / "host")
    world = make_world(home, netns, base)
    await world.restart()
    print("ready", os.getpid(), flush=True)
    passes: list[asyncio.Task[None]] = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        row = json.loads(line)
        passes.append(asyncio.create_task(play(world, row.pop("pass_number"), row)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
