"""Follow what the supervisor does by the records that it writes, and tell it."""

from __future__ import annotations

import asyncio
import time

from drivers.confine import is_alive, read_boot_id
from model.errors import StepFailed
from model.process import ProcessRecord
from workers.events import say_step
from workers.installation import Installation
from workers.service import ServiceRecord, ServiceRecords
from workers.service_log import read_last_lines

READY_SECONDS = 180.0
RESTARTS_LIMIT = 6
"""A service that ended this often while we watched will not come up by waiting: about 12 seconds of trying."""

_LOOK_SECONDS = 0.05
_SUPERVISOR_SECONDS = 20.0


class Followed:
    """Look at the services of an installation from outside."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._records = ServiceRecords(installation.run)

    def find(self, name: str) -> ServiceRecord | None:
        """Return what is written of a service. Blocks."""
        return self._records.read(name)

    def any_alive(self) -> bool:
        """Tell whether anything of this installation runs. Blocks."""
        return any(map(is_running, self._records.read_all()))

    async def await_supervisor(self, process: ProcessRecord) -> None:
        """Wait until a supervisor that was just started keeps the services."""
        deadline = time.monotonic() + _SUPERVISOR_SECONDS
        while True:
            record = await asyncio.to_thread(self.find, "supervisor")
            if record is not None and record.process is not None and record.process.pid == process.pid:
                return
            if not is_alive(process, read_boot_id()) or time.monotonic() > deadline:
                say_step("supervisor", "failed", "did not come up", self.log_end("supervisor"))
                raise StepFailed("the supervisor did not come up: see its log")
            await asyncio.sleep(_LOOK_SECONDS)

    def log_end(self, name: str) -> tuple[str, ...]:
        """Return the last lines of a service's log. Blocks."""
        return read_last_lines(self._installation.logs / f"{name}.log")


def is_running(record: ServiceRecord) -> bool:
    return record.process is not None and is_alive(record.process, read_boot_id())


async def follow(installation: Installation, names: list[str], timeout_seconds: float = READY_SECONDS) -> None:
    """Tell how services come up until all are ready. Raises StepFailed when one does not."""
    followed = Followed(installation)
    began = time.monotonic()
    restarts: dict[str, int] = {}
    told: dict[str, tuple[str, str | None]] = {}
    pending = list(names)
    while pending:
        kept_since = await asyncio.to_thread(followed.find, "supervisor")
        for name in list(pending):
            record = await asyncio.to_thread(followed.find, name)
            # What an earlier supervisor wrote says nothing about what this one does.
            if record is None or (kept_since is not None and record.since < kept_since.since):
                continue
            if told.get(name) != (record.state, record.detail):
                told[name] = (record.state, record.detail)
                say_step(name, record.state, record.detail)
            if record.state == "ready" and is_running(record):
                pending.remove(name)
            elif (
                record.restarts - restarts.setdefault(name, record.restarts) >= RESTARTS_LIMIT
                and record.state == "restarting"  # whose detail tells why
            ):
                await give_up(followed, name, record)
        if pending and time.monotonic() - began > timeout_seconds:
            await give_up(followed, pending[0], followed.find(pending[0]))
        if pending:
            await asyncio.sleep(_LOOK_SECONDS)


async def give_up(followed: Followed, name: str, record: ServiceRecord | None) -> None:
    why = "nothing is known" if record is None else record.detail or record.state
    say_step(name, "failed", why, await asyncio.to_thread(followed.log_end, name))
    raise StepFailed(f"{name} does not come up ({why}): see its log")
