"""The programs of the fleet: each is started, ended, stopped and begun again by its process' own id."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

END_SECONDS = 20.0
LONGEST_PAUSE_SECONDS = 1.5


@dataclass
class Program:
    """One program, kept alive: what ends is begun again after a short random pause, unless it is to be away.

    busy: a fault has it, and no other touches it meanwhile. starts: how often it was begun. says_ready: what it
    writes to its log once it works; it is spared until then and for `spared_seconds` more, so that something is done
    between two faults.
    """

    name: str
    argv: Sequence[str | os.PathLike[str]]
    environment: dict[str, str]
    log: Path
    rng: Random
    says_ready: bytes
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    note: Callable[[str], None] = lambda text: None
    end_signal: signal.Signals = signal.SIGTERM
    spared_seconds: float = 0
    starts: int = 0
    ready_since: float | None = None
    _log_begin: int = 0
    _process: asyncio.subprocess.Process | None = None
    _keeper: asyncio.Task[None] | None = None
    _away: bool = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def is_ready(self) -> bool:
        """Whether the present process has said that it works."""
        if self.pid is None:
            return False
        if self.ready_since is None:
            with self.log.open("rb") as log:
                log.seek(self._log_begin)
                if self.says_ready in log.read():
                    self.ready_since = time.monotonic()
        return self.ready_since is not None

    @property
    def is_spared(self) -> bool:
        return not self.is_ready or time.monotonic() - (self.ready_since or 0) < self.spared_seconds

    def keep(self) -> None:
        """Begin it, and begin it again whenever it ends."""
        self._away = False
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name=f"keeper of {self.name}")

    async def _keep(self) -> None:
        while not self._away:
            self.ready_since = None
            with self.log.open("ab") as log:
                self._log_begin = log.tell()
                self._process = await asyncio.create_subprocess_exec(
                    *self.argv, cwd="/", env=self.environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
                )
            self.starts += 1
            self.note(f"{self.name} is process {self._process.pid}")
            self.note(f"{self.name} {self._process.pid} has ended with {await self._process.wait()}")
            await asyncio.sleep(self.rng.uniform(0.1, LONGEST_PAUSE_SECONDS))

    def signal(self, number: signal.Signals) -> int | None:
        """Send a signal; return the id of the process that got it."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)
        return pid

    async def kill(self) -> int | None:
        """End it at once; its keeper begins another. Return the id of the process that was ended."""
        process = self._process
        pid = self.signal(signal.SIGKILL)
        if pid is not None and process is not None:
            await process.wait()
        return pid

    async def put_away(self, number: signal.Signals | None = None) -> None:
        """End it for good, or until it is kept again."""
        self._away = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number or self.end_signal)
                process.send_signal(signal.SIGCONT)
            try:
                await asyncio.wait_for(process.wait(), END_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
