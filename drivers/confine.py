"""Start programs as other users, with nothing but what is listed, and know them again (S-11).

The work in the child is done by `drivers.launcher`, run by `drivers.launching`; processes are named by
`ProcessRecord`, never by their pid alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drivers.launching import Stream, anonymous_file, await_child, hearing, kill, launching
from drivers.processes import await_end, find_start_time, is_alive, read_boot_id, signal_process
from drivers.threads import finish
from model.errors import StepFailed
from model.process import ProcessRecord

__all__ = [
    "Confinement",
    "Finished",
    "Jail",
    "await_end",
    "is_alive",
    "launch_detached",
    "python_binds",
    "read_boot_id",
    "run_confined",
    "signal_process",
    "start_confined",
]

PROGRAM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Jail:
    """Lock a program into a root of its own (S-11): /usr, `null`, `urandom`, itself, and what is bound, all read-only.

    Its mount, IPC, UTS and network namespaces are its own, those of a detached program's processes too; the network
    one is empty. devices: further names below /dev. reopened: numbers of descriptors in the program, whose files it
    opens again as /dev/fd/NUMBER. network: it stays in this network namespace. Needs root: without it there is none.
    """

    devices: tuple[str, ...] = ()
    reopened: tuple[int, ...] = ()
    network: bool = False


@dataclass(frozen=True)
class Confinement:
    """Say all that a program gets.

    argv: the first is a program's path, or a name looked up in the system's folders. environment: all of it.
    descriptors: number in the program -> descriptor here; 0 to 2 default to /dev/null, nothing else is inherited.
    limits: "RLIMIT_AS" -> value, soft and hard; RLIMIT_CORE is always 0. cgroup_files: the `cgroup.procs` files that
    are joined before the program starts. bind: paths that the user must reach although it may not enter a folder above
    them (in an own mount namespace an empty folder is laid over the first closed one, and the path bound in it).
    jail: of all paths the program has those in `bind`, and nothing else but what every jail has.
    """

    argv: tuple[str, ...]
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    descriptors: Mapping[int, int] = field(default_factory=dict[int, int])
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    cgroup_files: tuple[Path, ...] = ()
    bind: tuple[Path, ...] = ()
    working_directory: str = "/"
    jail: Jail | None = None

    @property
    def program(self) -> str:
        """The program's bare name, for messages."""
        return Path(self.argv[0]).name


@dataclass(frozen=True)
class Finished:
    """What a program answered."""

    returncode: int
    stdout: bytes
    stderr: bytes


def python_binds() -> tuple[Path, ...]:
    """List what another user needs for running `python -m …` of this installation."""
    found = {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[1]}
    return tuple(sorted(path for path in found if path.exists()))


async def start_confined(
    c: Confinement,
    *,
    stdin: Stream = DEVNULL,
    stdout: Stream = DEVNULL,
    stderr: Stream = DEVNULL,
) -> Process:
    """Start a program as a child, leader of its own session; return when it has begun.

    It ends with this process, however that ends: call this in a thread that lives as long. Raises StepFailed when it
    could not begin.
    """
    async with launching(c.program, marshal_order(c), c.descriptors.values(), stdin, stdout, stderr) as (
        launch,
        process,
    ):
        try:
            await launch.await_begin()
        except BaseException:
            await kill(process)
            raise
        return process


async def run_confined(
    c: Confinement, *, input: bytes = b"", timeout_seconds: float, output_limit_bytes: int = 1 << 20
) -> Finished:
    """Run a program to its end; on timeout, too much output or cancel kill it and wait for its end.

    Raises StepFailed when it could not begin, did not end in time, or said more than the limit.
    """
    async with hearing() as out, hearing() as err:
        with anonymous_file(input) as stdin:
            process = await start_confined(c, stdin=stdin, stdout=out.descriptor, stderr=err.descriptor)
        out.hand_over()
        err.hand_over()
        try:
            async with asyncio.timeout(timeout_seconds):
                stdout, stderr = await asyncio.gather(
                    out.read_bounded(output_limit_bytes), err.read_bounded(output_limit_bytes)
                )
                returncode = await process.wait()
        except TimeoutError as error:
            raise StepFailed(f"{c.program} did not end within {timeout_seconds:g} s and was killed") from error
        except OverflowError as error:
            raise StepFailed(f"{c.program} said more than {output_limit_bytes} bytes and was killed") from error
        finally:
            await kill(process)
        return Finished(returncode, stdout, stderr)


async def launch_detached(
    c: Confinement, *, record: Callable[[ProcessRecord], Awaitable[None]], boot_id: str | None = None
) -> ProcessRecord:
    """Start a program that is nobody's child and outlives this process; return when it has begun.

    It begins only once `record` has returned: what it names must then be durable. If that fails, or this process dies
    before, nothing was started. boot_id: what the record names, the kernel's if not given. Raises StepFailed when it
    could not begin.
    """
    order = marshal_order(c)
    async with launching(c.program, order, c.descriptors.values(), detached=True) as (launch, process):
        try:
            pid = await launch.await_ready()
            start_time = find_start_time(pid)
            if start_time is None:
                raise StepFailed(f"{c.program} was gone before it could be recorded")
            named = ProcessRecord(pid=pid, start_time=start_time, boot_id=boot_id or read_boot_id(), uid=c.uid)
            await record(named)
            launch.let_go()
            await launch.await_begin()
        except BaseException:
            launch.hold_back()
            with contextlib.suppress(StepFailed):
                await finish(launch.await_begin())  # the held back child has ended when this returns
            raise
        finally:
            await await_child(process)  # the launcher itself ends as soon as its child is there
        return named


def marshal_order(c: Confinement) -> bytes:
    """Say to the launcher what to do."""
    program = c.argv[0] if c.argv[0].startswith("/") else shutil.which(c.argv[0], path=PROGRAM_FOLDERS)
    if program is None:
        raise StepFailed(f"{c.program} is not installed on this host")
    order: dict[str, object] = {
        "argv": [program, *c.argv[1:]],
        "uid": c.uid,
        "gid": c.gid,
        "groups": list(c.groups),
        "environment": dict(c.environment),
        "descriptors": dict(c.descriptors),
        "limits": dict(c.limits),
        "cgroup_files": [str(path) for path in c.cgroup_files],
        "bind": [str(path) for path in c.bind] + find_own_program(c, program),
        "working_directory": c.working_directory,
        "parent": os.getpid(),
        "jail": spell_jail(c.jail),
    }
    return marshal.dumps(order)


def find_own_program(c: Confinement, program: str) -> list[str]:
    """Name a program that a jail has to bind, as it is not below /usr."""
    return [program] if spell_jail(c.jail) is not None and not program.startswith("/usr/") else []


def spell_jail(jail: Jail | None) -> dict[str, object] | None:
    if jail is None or os.geteuid() != 0:
        return None
    return {"devices": list(jail.devices), "reopened": list(jail.reopened), "network": jail.network}
