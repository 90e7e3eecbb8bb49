"""Run the launcher: hand it an order, hear what it answers, and hold a detached child back until it may begin."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator, Generator, Iterable
from pathlib import Path
from typing import IO

from model.errors import StepFailed

LAUNCHER = Path(__file__).with_name("launcher.py")
LAUNCH_SECONDS = 20.0

Stream = int | IO[bytes] | None


class Hearing:
    """The reading end of a pipe on the loop, and its writing end until that was handed over."""

    def __init__(self, reader: asyncio.StreamReader, descriptor: int) -> None:
        self.reader = reader
        self.descriptor = descriptor

    def hand_over(self) -> None:
        """Close our copy of the writing end, so that the other's end is seen."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    async def read_bounded(self, limit_bytes: int) -> bytes:
        """Read to the end; OverflowError beyond the limit."""
        found = bytearray()
        while chunk := await self.reader.read(1 << 16):
            found += chunk
            if len(found) > limit_bytes:
                raise OverflowError
        return bytes(found)


@contextlib.asynccontextmanager
async def hearing() -> AsyncGenerator[Hearing]:
    """Open a pipe that a child may write to."""
    reading, writing = os.pipe()
    heard = Hearing(asyncio.StreamReader(), writing)
    file = open(reading, "rb", buffering=0)  # noqa: SIM115, PTH123 - a descriptor, closed by its transport
    protocol = asyncio.StreamReaderProtocol(heard.reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
    try:
        yield heard
    finally:
        heard.hand_over()
        transport.close()


@contextlib.contextmanager
def anonymous_file(data: bytes) -> Generator[int]:
    """Hold data in a file without a name: in no argument, on no disk, read at the child's own pace."""
    descriptor = os.memfd_create("hostler", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


class Launch:
    """One run of the launcher."""

    def __init__(self, program: str, heard: Hearing, held: int) -> None:
        self.program = program
        self.heard = heard
        self.held = held

    async def await_ready(self) -> int:
        """Wait until the child has become the user and waits; return its pid."""
        pid, ready = 0, False
        while not (pid and ready):
            word, _, rest = (await self.read_line()).partition(" ")
            if word == "pid":
                pid = int(rest)
            elif word == "ready":
                ready = True
            else:
                raise StepFailed(f"{self.program} could not be started ({rest or 'the launcher ended'})")
        return pid

    async def await_begin(self) -> None:
        """Wait until the program runs; the kernel then closes the answers."""
        while line := await self.read_line():
            if line.startswith("error "):
                raise StepFailed(f"{self.program} could not be started ({line.removeprefix('error ')})")

    async def read_line(self) -> str:
        try:
            async with asyncio.timeout(LAUNCH_SECONDS):
                return (await self.heard.reader.readline()).decode(errors="replace").strip()
        except TimeoutError as error:
            raise StepFailed(f"{self.program} did not begin within {LAUNCH_SECONDS:g} s") from error

    def let_go(self) -> None:
        os.write(self.held, b"g")

    def hold_back(self) -> None:
        """Make a child that still waits end."""
        if self.held >= 0:
            os.close(self.held)
            self.held = -1


@contextlib.asynccontextmanager
async def launching(
    program: str,
    order: bytes,
    descriptors: Iterable[int],
    stdin: Stream = DEVNULL,
    stdout: Stream = DEVNULL,
    stderr: Stream = DEVNULL,
    *,
    detached: bool = False,
) -> AsyncGenerator[tuple[Launch, Process]]:
    """Start the launcher; what it answers is heard as long as the block lasts."""
    async with hearing() as heard:
        go, held = os.pipe() if detached else (-1, -1)
        launch = Launch(program, heard, held)
        try:
            with anonymous_file(order) as ordered:
                mode = "detach" if detached else "exec"
                own = [ordered, heard.descriptor, *([go] if detached else [])]
                process = await asyncio.create_subprocess_exec(
                    *(os.path.realpath(sys.executable), "-I", "-S", str(LAUNCHER)),
                    *(mode, str(ordered), str(heard.descriptor), str(go)),
                    pass_fds=(*own, *descriptors),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                )
            heard.hand_over()
            if detached:
                os.close(go)
                go = -1
            yield launch, process
        finally:
            launch.hold_back()
            if go >= 0:
                os.close(go)


async def kill(process: Process) -> None:
    """Kill a child with its session's group and wait for its end, also while being cancelled."""
    if process.returncode is None:
        # Not process.kill(): that reaps the child behind the back of the loop, which then knows no return code.
        for send, target in ((os.killpg, process.pid), (os.kill, process.pid)):
            with contextlib.suppress(ProcessLookupError):
                send(target, signal.SIGKILL)
    await await_child(process)


async def await_child(process: Process) -> None:
    """Wait for the end of a child, also while being cancelled."""
    waiting = asyncio.ensure_future(process.wait())
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
