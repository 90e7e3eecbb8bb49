"""The supervisor: one process per state directory that keeps all services of the installation running.

Run as `python -m workers.supervisor --home HOME`. It outlives the terminal; SIGTERM stops the services in reverse order
and ends it. Killed, it leaves them running, and the next supervisor adopts them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from drivers.confine import read_boot_id
from drivers.processes import find_start_time
from model.errors import HostlerError
from model.process import ProcessRecord
from workers.builds import SUPERVISOR as NAME
from workers.builds import find_own_build
from workers.installation import Installation, read_installation
from workers.keeper import Keeper
from workers.locks import lock_supervisor
from workers.service import Service, ServiceRecord, ServiceRecords
from workers.service_hostler import installation_services
from workers.service_log import bound_log

ALREADY_RUNS = 3
_LOG_LOOK_SECONDS = 10.0
_PAUSE_AFTER_FAULT_SECONDS = 1.0


class Supervisor:
    """Keep services in their order. `stopping` is set by SIGTERM."""

    def __init__(self, services: Sequence[Service], run: Path, logs: Path) -> None:
        self.stopping = asyncio.Event()
        self.records = ServiceRecords(run)
        self.keepers = {
            service.name: Keeper(service, self.records, logs, lambda s=service: self.await_requirements(s), tell)
            for service in services
        }
        self._logs = [logs / f"{name}.log" for name in (*self.keepers, NAME)]

    async def run(self) -> None:
        """Keep all services until told to stop, then stop them, the last one first."""
        tasks = [asyncio.create_task(self._keep(keeper)) for keeper in self.keepers.values()]
        tasks.append(asyncio.create_task(self._bound_logs()))
        await self.stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for keeper in reversed(self.keepers.values()):
            await keeper.stop()

    async def await_requirements(self, service: Service) -> None:
        """Wait until everything that a service requires, of what is kept here, is ready."""
        for name in service.requires:
            if name in self.keepers:
                await self.keepers[name].ready.wait()

    async def _keep(self, keeper: Keeper) -> None:
        while True:
            try:
                await keeper.run()
            except Exception as error:  # a fault of ours in one keeper must not end the keeping of all
                say({"service": keeper.service.name, "fault": type(error).__name__})
                await asyncio.sleep(_PAUSE_AFTER_FAULT_SECONDS)

    async def _bound_logs(self) -> None:
        while True:
            for log in self._logs:
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(bound_log, log)
            await asyncio.sleep(_LOG_LOOK_SECONDS)


def tell(record: ServiceRecord) -> None:
    """Write a service's change of state into the supervisor's own log."""
    pid = None if record.process is None else record.process.pid
    say({"service": record.name, "state": record.state, "pid": pid, "restarts": record.restarts, "why": record.detail})


def say(words: dict[str, object]) -> None:
    print(json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **words}), flush=True)


async def supervise(installation: Installation) -> None:
    """Run the supervisor of an installation in this process."""
    supervisor = Supervisor(installation_services(installation), installation.run, installation.logs)
    loop = asyncio.get_running_loop()

    def stop(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(supervisor.stopping.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        # Not loop.add_signal_handler: its pipe is shared with the short-lived children that enter a host's namespace,
        # and the signal that ends one of those would stop this process.
        signal.signal(number, stop)
    own = ProcessRecord(pid=os.getpid(), start_time=find_start_time(os.getpid()) or 0, boot_id=read_boot_id(), uid=0)
    now = datetime.now(UTC)
    build = find_own_build()
    record = ServiceRecord(name=NAME, state="ready", since=now, started_at=now, process=own, fingerprint=build)
    supervisor.records.write(record)
    await supervisor.run()
    supervisor.records.write(record.model_copy(update={"state": "stopped", "since": datetime.now(UTC)}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.supervisor", description="Keep an installation running.")
    parser.add_argument("--home", type=Path, required=True, help="state directory of the installation")
    home: Path = parser.parse_args().home
    try:
        installation = read_installation(home)
        if installation is None:
            print("no installation in this state directory: run `hostler up`", file=sys.stderr)
            return 2
        lock = lock_supervisor(installation.run)
        if lock is None:
            print("another supervisor keeps this state directory", file=sys.stderr)
            return ALREADY_RUNS
        asyncio.run(supervise(installation))
    except HostlerError as error:
        print(error.detail, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
