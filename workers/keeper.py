"""Keep one service running: adopt it or start it, notice its end, start it again, and write down each of these."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from drivers.confine import await_end, is_alive, launch_detached, read_boot_id, signal_process
from model.errors import HostlerError
from model.process import ProcessRecord
from workers.service import Service, ServiceRecord, ServiceRecords, State
from workers.service_log import opened_log

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0
STEADY_SECONDS = 30.0
"""A service that has run this long is well again: its next pause is the first one."""

_LOOK_SECONDS = 0.1
_WATCH_SECONDS = 3600.0
_KILL_SECONDS = 10.0

Told = Callable[[ServiceRecord], None]


def pause_after(failures: int) -> float:
    """Return the pause before the next start, in seconds, after so many short lives in a row."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 16), LONGEST_PAUSE_SECONDS)


class Keeper:
    """Keep one service. `await_requirements` returns once all that the service requires is ready.

    Nothing here ends the service but `stop`: cancelling `run`, or killing the supervisor, leaves it running.
    """

    def __init__(
        self,
        service: Service,
        records: ServiceRecords,
        logs: Path,
        await_requirements: Callable[[], Awaitable[None]],
        tell: Told,
    ) -> None:
        self.service = service
        self.ready = asyncio.Event()
        self._records = records
        self._log = logs / f"{service.name}.log"
        self._await_requirements = await_requirements
        self._tell = tell
        self._record = ServiceRecord(name=service.name, state="waiting", since=datetime.now(UTC))

    async def run(self) -> None:
        """Keep the service until cancelled."""
        failures = 0
        process = await self._find_running()
        while True:
            began = time.monotonic()
            detail = await self._live(process)
            self.ready.clear()
            failures = 0 if time.monotonic() - began >= STEADY_SECONDS else failures
            pause = pause_after(failures)
            failures += 1
            await self._write("restarting", detail=f"{detail}; starts again after {pause:g} s")
            await asyncio.sleep(pause)
            self._record = self._record.model_copy(update={"restarts": self._record.restarts + 1})
            process = None

    async def stop(self) -> None:
        """Ask the service to end, kill it when it does not, and write that it was stopped."""
        self.ready.clear()
        record = await asyncio.to_thread(self._records.read, self.service.name)
        if record is not None:
            self._record = record
            await end_process(record.process, self.service.stop_signal, self.service.stop_seconds)
        await self._write("stopped", detail=None)

    async def _find_running(self) -> ProcessRecord | None:
        """Find what an earlier supervisor left running, and end it if it is not what is to run now."""
        earlier = await asyncio.to_thread(self._records.read, self.service.name)
        if earlier is None or earlier.process is None or not is_alive(earlier.process, read_boot_id()):
            return None
        self._record = earlier
        if earlier.fingerprint == self.service.fingerprint:
            return earlier.process
        await end_process(earlier.process, self.service.stop_signal, self.service.stop_seconds)
        return None

    async def _live(self, process: ProcessRecord | None) -> str:
        """Go through one life of the service; return how it ended."""
        try:
            if process is None:
                process = await self._start()
        except HostlerError as error:
            return error.detail
        await self._write("starting", detail="does not answer yet")
        announcing = asyncio.create_task(self._announce(process))
        try:
            while not await await_end(process, _WATCH_SECONDS):
                pass
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
        return "ended"

    async def _start(self) -> ProcessRecord:
        if self.service.needs is not None and not self.service.needs.exists():
            await self._write("waiting", detail=f"waits for {self.service.needs.name}")
            while not self.service.needs.exists():  # noqa: ASYNC110 - another process' state
                await asyncio.sleep(_LOOK_SECONDS)
        await self._write("waiting", detail=f"waits for {', '.join(self.service.requires) or 'its preparation'}")
        await self._await_requirements()
        await self.service.prepare()
        with opened_log(self._log) as log:
            return await launch_detached(self.service.confinement(log), record=self._write_process)

    async def _write_process(self, process: ProcessRecord) -> None:
        update = {"process": process, "fingerprint": self.service.fingerprint, "started_at": datetime.now(UTC)}
        self._record = self._record.model_copy(update=update)
        await self._write_durably("starting", detail="begins")

    async def _announce(self, process: ProcessRecord) -> None:
        """Wait until the service does its work, settle what it then needs, and say so."""
        while not await self._answers(process):  # noqa: ASYNC110 - another process' state
            await asyncio.sleep(_LOOK_SECONDS)
        while True:
            try:
                await self.service.settle()
                break
            except HostlerError as error:
                await self._write("starting", detail=error.detail)
                await asyncio.sleep(1.0)
        await self._write("ready", detail=None)
        self.ready.set()

    async def _answers(self, process: ProcessRecord) -> bool:
        try:
            return await self.service.ready(process)
        except HostlerError:
            return False

    async def _write(self, state: State, *, detail: str | None) -> None:
        """Write the state for others to read; a full disk must not end the keeping."""
        with contextlib.suppress(HostlerError):
            await self._write_durably(state, detail=detail)

    async def _write_durably(self, state: State, *, detail: str | None) -> None:
        update = {"state": state, "detail": detail, "since": datetime.now(UTC)}
        self._record = self._record.model_copy(update=update)
        self._tell(self._record)
        await asyncio.to_thread(self._records.write, self._record)


async def end_process(process: ProcessRecord | None, number: int, patience_seconds: float) -> bool:
    """End a recorded process by its own signal, then by SIGKILL; tell whether it is gone."""
    if process is None or not is_alive(process, read_boot_id()):
        return True
    signal_process(process, number)
    if await await_end(process, patience_seconds):
        return True
    signal_process(process, signal.SIGKILL)
    return await await_end(process, _KILL_SECONDS)
