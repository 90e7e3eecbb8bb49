"""The host worker: one process per host, root, that does the host's work and outlives its control plane.

    python -m workers.host [--join FILE|-]

It reads its records before it asks for work, adopts what runs, and never touches a guest by its own start or end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from activities.image import ImageActivities
from activities.sync import SyncActivities
from activities.vm import VmActivities
from drivers.host.steps import HostSteps
from drivers.machine import HostIdentity, lock_worker
from drivers.patching import patch_files
from drivers.reserve import Reserve
from model.capacity import Caps, describe_caps
from model.errors import HostlerError, Unavailable
from model.join import JoinString
from model.temporal import bulk_queue, host_queue
from runtime.finish import finish
from runtime.log import configure_logging
from runtime.settings import HostSettings, Settings
from runtime.temporal import host_worker_options
from workers.control_release import check_at_start, keep_checking
from workers.enrolment import ensure_joined, measure_caps, read_caps, read_join_string, renew_credential
from workers.host_api import Credentials, HostApi, read_credentials
from workers.host_errands import run_errands
from workers.host_orders import Orders
from workers.host_parts import build_host
from workers.host_report import Reporter, Reports

RETRY_SECONDS = 2.0
GRACEFUL_SHUTDOWN = timedelta(seconds=10)
_log = logging.getLogger("hostler.host")


def find_activities(*owners: object) -> list[Callable[..., Any]]:
    """List the activities that objects hold, by name."""
    return [
        method
        for owner in owners
        for _, method in inspect.getmembers(owner, inspect.ismethod)
        if hasattr(method, "__temporal_activity_definition")
    ]


async def work(client: Client, host: HostSteps, credentials: Credentials, stopping: asyncio.Event) -> None:
    """Poll both queues of this host and instance until told to stop (H-E4)."""
    identity = host.parts.identity
    queues = (
        (
            host_queue(identity.host_id, identity.instance_id),
            find_activities(VmActivities(host), SyncActivities(host.sync)),
        ),
        (bulk_queue(identity.host_id, identity.instance_id), find_activities(ImageActivities(host))),
    )
    async with contextlib.AsyncExitStack() as stack:
        for queue, activities in queues:
            options = host_worker_options(queue, fleet_id=credentials.fleet_id, graceful_shutdown=GRACEFUL_SHUTDOWN)
            await stack.enter_async_context(Worker(client, activities=activities, **options))
        _log.info("host %s asks for work as instance %s", identity.host_id, identity.instance_id)
        await stopping.wait()


async def keep_working(host: HostSteps, credentials: Credentials, orders: Orders, stopping: asyncio.Event) -> None:
    """Connect to the gateway and work, again and again: a control plane that is away is no reason to end."""
    while not stopping.is_set():
        try:
            await work(await orders.connect(), host, credentials, stopping)
        except Unavailable as error:
            _log.warning("%s", error.detail)
        except RuntimeError as error:
            _log.warning("polling ended (%s): it is begun again", type(error).__name__)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await stopping.wait()


async def join_fleet(home: Path, join: JoinString, host_settings: HostSettings) -> None:
    """Join, with the caps that were said, else with those that this machine's size proposes (H-A5)."""
    # Simulated guests take nothing of the machine, whatever they are told to have.
    measured = measure_caps(home) if host_settings.simulated_guests == "none" else Caps()
    caps = host_settings.caps_over(measured)
    host_id = await ensure_joined(home, join, machine_id_path=host_settings.machine_id_path, caps=caps)
    _log.info(
        "host %s has joined; its VMs may take in all: %s (another start with --max-vcpus, --max-memory, --max-disk or "
        "--no-caps sets other caps)",
        host_id,
        describe_caps(host_settings.caps_over(read_caps(home))),
    )


async def run(
    settings: Settings, host_settings: HostSettings, stopping: asyncio.Event, join: JoinString | None = None
) -> None:
    """Run the host worker until told to stop; guests and what steps have begun stay for the next one (H-E5)."""
    home = settings.host_home
    lock_worker(home)
    await check_at_start(home)
    patched = await asyncio.to_thread(patch_files, home)
    if patched:
        _log.info("%d files of the state directory were patched to this release's formats", patched)
    if join is not None:
        await join_fleet(home, join, host_settings)
    credentials = read_credentials(home / "credentials.json")
    reserve = Reserve(home)
    identity = HostIdentity.open(
        home,
        fleet_id=credentials.fleet_id,
        host_id=credentials.host_id,
        machine_id_path=host_settings.machine_id_path,
        write=reserve.write,
    )
    await asyncio.to_thread(reserve.keep)
    async with HostApi(credentials.api_url, credentials.credential.get_secret_value()) as api:
        host = build_host(settings, host_settings, identity, api, reserve)
        await host.start()
        owners = (VmActivities(host), ImageActivities(host), SyncActivities(host.sync))
        names = sorted(method.__name__ for method in find_activities(*owners))

        orders = Orders(credentials, host_settings.gateway_ca_file)

        async def renew() -> None:
            orders.use(await renew_credential(home, api))

        reports = Reports(host, tuple(names), renew=renew)
        reporter = Reporter(
            api,
            host.parts.seen,
            next_number=identity.next_number,
            frame=reports.frame,
            on_answer=reports.take,
        )
        background = [
            keep_checking(api),
            reporter.run(),
            host.watch.run(),
            host.alone.run(),
            run_errands(api, host.parts),
        ]
        await _until_stopped(keep_working(host, credentials, orders, stopping), background)
        await host.parts.images.close()


async def _until_stopped(main: Coroutine[Any, Any, None], background: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all until the first of them ends: background work never does, but by a fault that must be seen."""
    tasks = [asyncio.create_task(work) for work in (main, *background)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(join: str | None = None, **said: Any) -> None:
    """Run until SIGTERM or SIGINT; `join` names the file with the join string (`-`: standard input).

    said: fields of HostSettings that the command line gave.
    """
    settings, host_settings = Settings(), HostSettings(**said)
    configure_logging(settings.log_format, settings.log_level)
    given = None if join is None else read_join_string(join)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(stopping.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        # Not loop.add_signal_handler: its pipe is shared with every forked child, and a signal to one of those, such as
        # the short-lived ones that enter a network namespace, would stop this process.
        signal.signal(number, stop)
    await run(settings, host_settings, stopping, given)


def read_arguments(words: Sequence[str] | None = None) -> tuple[str | None, dict[str, Any]]:
    """Read the command line: the file with the join string, and what it says of HostSettings."""
    parser = argparse.ArgumentParser(prog="python -m workers.host", description="Be this machine's host worker.")
    parser.add_argument("--join", metavar="FILE", help="a file with the join string, 0600; -: standard input")
    parser.add_argument("--max-vcpus", type=int, metavar="N", help="processors of all VMs; 0: no cap")
    parser.add_argument("--max-memory", type=int, metavar="MIB", help="memory of all VMs, in MiB; 0: no cap")
    parser.add_argument("--max-disk", type=int, metavar="GIB", help="disks of all VMs, in GiB; 0: no cap")
    parser.add_argument("--no-caps", action="store_true", help="admit whatever is asked for")
    parser.add_argument(
        "--no-disk-overcommit", action="store_true", help="promise disks no more than the filesystem can hold"
    )
    given = parser.parse_args(words)
    caps = {"max_vcpus": given.max_vcpus, "max_memory_mib": given.max_memory, "max_disk_gib": given.max_disk}
    said = {name: value for name, value in caps.items() if value is not None}
    if given.no_caps and any(said.values()):
        parser.error("--no-caps and a cap: say one of them")
    if given.no_caps:
        said = dict.fromkeys(caps, 0)
    if given.no_disk_overcommit:
        said["disk_overcommit"] = False
    return given.join, said


def main(words: Sequence[str] | None = None) -> None:
    """Start the host worker; it ends with 1 and one sentence when it cannot. words: as of the command line."""
    os.umask(0o077)
    join, said = read_arguments(words)
    try:
        asyncio.run(serve(join, **said))
    except HostlerError as error:
        _log.error("%s", error.detail)
        finish(1)
    finish(0)


if __name__ == "__main__":
    main()
