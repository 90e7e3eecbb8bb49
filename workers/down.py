"""Stop the processes of an installation and leave its guests running: `python -m workers.down [--vms]`.

`--vms` stops the guests too, and what serves them on the network. They stay wanted: the next `hostler up` boots them.
Speaks JSON lines like `workers.up`; ends with 0 or 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from drivers.confine import await_end, signal_process
from drivers.network.joint import remove_joint
from model.errors import HostlerError, StepFailed
from runtime.settings import default_home
from workers import systemd
from workers.events import say_error, say_result, say_step
from workers.guests import stop_guests
from workers.installation import Installation, read_installation
from workers.keeper import end_process
from workers.locks import is_supervised, lock_supervisor, locked
from workers.progress import Followed, is_running
from workers.service import Service, ServiceRecords
from workers.service_hostler import installation_services

_SUPERVISOR_SECONDS = 150.0


async def down(home: Path, *, vms: bool) -> None:
    """Stop everything, the last started first; nothing to stop is fine."""
    installation = await asyncio.to_thread(read_installation, home)
    if installation is None:
        say_result("down", home=str(home), stopped=[])
        return
    async with locked(home):
        if installation.settings.service and not systemd.find_missing():
            await systemd.stop_service(installation)
        await stop_supervisor(installation)
        lock = lock_supervisor(installation.run)
        if lock is None:
            raise StepFailed("a supervisor still keeps this state directory: try again")
        try:
            stopped = [await stop_left(service, installation) for service in reversed(services(installation))]
            guests = await stop_hosts(installation) if vms else None
        finally:
            os.close(lock)
    say_result("down", home=str(home), stopped=[name for name in stopped if name], guests=guests)


async def stop_hosts(installation: Installation) -> int:
    """Stop the guests of all hosts, and take away the namespaces that were made for hosts; return how many ran."""
    say_step("guests", "starting", "power off")
    stopped = 0
    for place in installation.settings.hosts:
        stopped += await stop_guests(installation, place)
        joint = installation.joint(place)
        if joint is not None:
            await remove_joint(joint)
    return stopped


def services(installation: Installation) -> tuple[Service, ...]:
    return installation_services(installation)


async def stop_supervisor(installation: Installation) -> None:
    """Ask the supervisor to stop all that it keeps, and tell how that goes."""
    followed = Followed(installation)
    record = await asyncio.to_thread(followed.find, "supervisor")
    if not is_supervised(installation.run) or record is None or record.process is None or not is_running(record):
        return
    say_step("supervisor", "starting", "stops its services")
    signal_process(record.process, signal.SIGTERM)
    told: set[str] = set()
    deadline = time.monotonic() + _SUPERVISOR_SECONDS
    while not await await_end(record.process, 0.1):
        for service in reversed(services(installation)):
            found = await asyncio.to_thread(followed.find, service.name)
            if found is not None and found.state == "stopped" and service.name not in told:
                told.add(service.name)
                say_step(service.name, "stopped")
        if time.monotonic() > deadline:
            signal_process(record.process, signal.SIGKILL)
    say_step("supervisor", "stopped")


async def stop_left(service: Service, installation: Installation) -> str | None:
    """Stop what no supervisor keeps any more; return its name if there was a record of it."""
    records = ServiceRecords(installation.run)
    record = await asyncio.to_thread(records.read, service.name)
    if record is None:
        return None
    if is_running(record):
        if not await end_process(record.process, service.stop_signal, service.stop_seconds):
            raise StepFailed(f"{service.name} does not end, not even killed: the machine's storage may hang")
        say_step(service.name, "stopped")
    update = {"state": "stopped", "since": datetime.now(UTC), "detail": None}
    await asyncio.to_thread(records.write, record.model_copy(update=update))
    return service.name


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.down", description="Stop Hostler on this machine.")
    parser.add_argument("--home", type=Path, help="state directory (default: HOSTLER_HOME)")
    parser.add_argument("--vms", action="store_true", help="stop the guests too")
    given = parser.parse_args()
    home: Path = given.home or Path(os.environ.get("HOSTLER_HOME") or default_home())
    if os.geteuid() != 0:
        say_error("`hostler down` cannot begin", ("root is needed: run it as root or with sudo",))
        return 2
    try:
        asyncio.run(down(home.absolute(), vms=given.vms))
    except HostlerError as error:
        say_error(error.detail)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
