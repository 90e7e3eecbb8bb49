"""The host worker killed by SIGKILL at each record write and side effect of each piece of a VM's life.

`python -m tests.faults.host_kills FOLDER` writes one JSON object to standard output. A process forks for each kill, so
it starts no thread and no event loop of its own. What is killed is a real process, on real files; only the guests are
simulated. The points are the calls that a plain pass makes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn

from drivers import durable
from drivers.fences import FenceStore
from drivers.machine import HostIdentity
from drivers.simulated import Simulation
from model.row import Row
from model.vm import PowerState
from model.volume import WantedVolume
from tests.fixtures.host import HostWorld, make_row

MOST_POINTS = 200
VM = "vm-1"

DATA, LARGER = (WantedVolume(volume_id="data", size_gib=size) for size in (1, 2))

# Each piece is a pass for a row; the ones before it in its list have been lived when it begins.
LIVES: dict[str, tuple[dict[str, Any], ...]] = {
    "create": ({},),
    "create stopped, start": ({"power_state": PowerState.STOPPED}, {"created": True}),
    "create paused, resume": ({"power_state": PowerState.PAUSED}, {"created": True}),
    "create, stop": ({}, {"created": True, "power_state": PowerState.STOPPED}),
    "create, pause": ({}, {"created": True, "power_state": PowerState.PAUSED}),
    "create, restart": ({}, {"created": True, "restart_generation": 1}),
    "create, grow": ({}, {"created": True, "disk_gib": 2, "generation": 2}),
    "create, quarantine": ({}, {"created": True, "deleted": True, "waits": True}),
    "create, quarantine, undelete": ({}, {"created": True, "deleted": True, "waits": True}, {"created": True}),
    "create, destroy": ({}, {"created": True, "deleted": True, "destroying": True}),
    "create with a volume": ({"volumes": (DATA,)},),
    "create, attach": ({}, {"created": True, "volumes": (DATA,)}),
    "create with a volume, grow it": ({"volumes": (DATA,)}, {"created": True, "volumes": (LARGER,)}),
    "create with a volume, detach": ({"volumes": (DATA,)}, {"created": True}),
    "create with a volume, destroy": (
        {"volumes": (DATA,)},
        {"volumes": (DATA,), "created": True, "deleted": True, "destroying": True},
    ),
    "create, reboot": ({}, {"created": True, "boot": "boot-2"}),
    "create, stop, reboot": (
        {},
        {"created": True, "power_state": PowerState.STOPPED},
        {"created": True, "power_state": PowerState.STOPPED, "boot": "boot-2"},
    ),
}


class Bomb:
    """Count the places where the worker is about to do something, or has just done it, and end it at one."""

    def __init__(self) -> None:
        self.left: int | None = None

    def tick(self) -> None:
        if self.left is None:
            return
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def plant(self) -> None:
        """Before each check of the fence, before a file is renamed into place, and after each effect on the machine."""
        self._before(FenceStore, "check")
        self._before(durable.os, "rename")
        effect = Simulation.append

        def append(*words: Any, **more: Any) -> None:
            effect(*words, **more)
            self.tick()

        Simulation.append = append  # type: ignore[method-assign]

    def _before(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*words: Any, **more: Any) -> Any:
            self.tick()
            return original(*words, **more)

        setattr(owner, name, call)


class Sweep:
    """One host's folder for each kill: a copy of what the pieces before it have left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = HostWorld(folder)
        self.world.add(VM)
        self.bomb = Bomb()
        self.bomb.plant()
        self.kills = 0

    def run(self) -> dict[str, Any]:
        """Kill at every point of every life; return what went wrong, and how many kills there were."""
        wrong: list[str] = []
        for name, (*before, last) in LIVES.items():
            start = self.folder / name.replace(", ", "-")
            self.move_to(start)
            self.fork(lambda before=before: self.passes(before, None))
            self.copy(start)
            plain = self.fork(lambda last=last: self.passes([last], None))
            for point in range(MOST_POINTS):
                self.copy(start)
                if self.fork(lambda last=last, point=point: self.passes([last], point)) is not None:
                    break
                self.kills += 1
                found = self.fork(lambda last=last: self.passes([last], None))
                if found != plain:
                    wrong.append(f"{name}, killed at point {point}: {found}, not {plain}")
            else:
                wrong.append(f"{name}: it has no end")
        return {"kills": self.kills, "wrong": wrong}

    def copy(self, start: Path) -> None:
        """Go on from what is in `start`, in a fresh copy."""
        trial = self.folder / "trial"
        shutil.rmtree(trial, ignore_errors=True)
        shutil.copytree(start, trial)
        self.move_to(trial)

    def move_to(self, home: Path) -> None:
        self.world.home = home
        home.mkdir(mode=0o700, exist_ok=True)
        self.world.boot_id = "boot-1"

    async def passes(self, pieces: Sequence[dict[str, Any]], point: int | None) -> dict[str, Any]:
        """Be a worker: find what an earlier one left, play the passes, and say what is there."""
        world = self.world
        world.identity = HostIdentity.open(world.home, fleet_id="fleet", host_id="h1")
        world.add(VM)
        for piece in pieces:
            await self.one_pass(piece, point)
        if not pieces:
            await world.restart()
        seen = world.simulation.inventory(world.host.parts.paths.machines)
        folder = world.host.parts.paths.folder(VM)
        entry = world.host.parts.records.find(VM)
        found = {
            "processes": len(seen.processes.get(VM, ())),
            "taps": len(seen.taps.get(VM, ())),
            "disk": seen.disks.get(VM),
            "files": sorted(path.name for path in folder.iterdir()) if folder.exists() else [],
            "volumes": [
                (
                    each.volume_id,
                    each.stored and each.stored.model_dump(mode="json"),
                    world.host.parts.volumes.path(each.volume_id).stat().st_size,
                )
                for each in world.host.parts.volumes
            ],
            "plugged": [sorted(each.volumes) for each in world.simulation.processes(VM)],
            "record": _comparable(entry.status.record.model_dump(mode="json") if entry and entry.status else None),
        }
        await world.stop()
        return found

    async def one_pass(self, piece: dict[str, Any], point: int | None) -> None:
        """Start a worker and play one pass."""
        row, boot_id = _row(piece)
        self.world.boot_id = boot_id or self.world.boot_id
        await self.world.restart()
        highest = self.world.host.parts.jobs.fences.highest(VM)
        self.world.pass_number = highest.pass_number if highest else 0
        self.bomb.left = point
        await self.world.run_pass(row)
        self.bomb.left = None

    def fork(self, work: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any] | None:
        """Run work in a process of its own; None when SIGKILL ended it."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _end(writer, work)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return None
        assert os.WEXITSTATUS(status) == 0, said.decode()
        found: dict[str, Any] = json.loads(said)
        return found


def _row(piece: dict[str, Any]) -> tuple[Row, str | None]:
    words = dict(piece)
    boot_id, waits = words.pop("boot", None), words.pop("waits", False)
    row = make_row(VM, **words)
    if waits and row.status.quarantine is not None:
        later = row.status.quarantine.model_copy(update={"destroy_at": row.now.replace(year=row.now.year + 1)})
        row = row.model_copy(update={"status": row.status.model_copy(update={"quarantine": later})})
    return row, boot_id


def _comparable(record: dict[str, Any] | None) -> dict[str, Any] | None:
    """Leave out what is each pass's or each moment's own."""
    if record is None:
        return None
    left_out = {"quarantined_at", "restart_of"}
    return {key: value for key, value in record.items() if key not in left_out}


def _end(writer: int, work: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> NoReturn:
    """Do a child's work and leave without any of the parent's clean-up."""
    code = 1
    try:
        said = json.dumps(asyncio.run(work())).encode()
        code = 0
    except BaseException:
        said = traceback.format_exc().encode()
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(said)
    os._exit(code)


if __name__ == "__main__":
    print(json.dumps(Sweep(Path(sys.argv[1])).run()))
