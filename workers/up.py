"""Bring up a whole fleet on this machine, or find it running: `python -m workers.up [options]`.

Speaks JSON lines (`workers.events`): steps, and at the end `up` with where everything is, or `error`. Everything can be
repeated: what is there is adopted, what is missing is made, what is of another build is replaced. Ends with 0, 1
(failed) or 2 (something is missing).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from temporalio.client import Client

from drivers.confine import PROGRAM_FOLDERS, Confinement, launch_detached
from drivers.durable import write_durably
from model.capacity import Caps, describe_caps
from model.errors import Conflict, HostlerError, Unavailable
from model.process import ProcessRecord
from runtime.deployment import end_runs_of_other_builds, find_build_id
from runtime.settings import HostSettings, default_home
from workers import service_temporal, systemd, users
from workers.builds import (
    SUPERVISOR,
    check_not_newer,
    end_other_supervisor,
    find_kept_build,
    find_own_build,
)
from workers.choice import Wishes, check_ports, check_subnet, choose_ports, choose_settings, hold_names
from workers.demo_image import find_guest, publish_guest
from workers.enrolment import measure_caps
from workers.events import say_error, say_result, say_step
from workers.fleet_client import FleetClient, ensure_token, refresh_credentials
from workers.folders import ensure_folders
from workers.installation import (
    Installation,
    Ports,
    check_home,
    project_root,
    python,
    read_ports,
    read_settings,
    save_installation,
)
from workers.locks import is_supervised, locked
from workers.preflight import find_missing
from workers.progress import Followed, follow
from workers.service_hostler import API, CONTROL, GATEWAY, host_service_name
from workers.service_log import opened_log
from workers.users import need_user

REPORT_SECONDS = 60.0


def read_arguments(words: list[str] | None = None) -> tuple[Path, Path | None, Wishes]:
    """Read the command line: state directory, folder of the demo guest, and what else was wished."""
    parser = argparse.ArgumentParser(prog="python -m workers.up", description="Bring up Hostler on this machine.")
    parser.add_argument("--home", type=Path, help="state directory (default: HOSTLER_HOME)")
    parser.add_argument("--guest", type=Path, help="folder of the demo guest (default: the checkout's newest)")
    parser.add_argument("--name", help="what bridge, tables, cgroup … are named after (default: hostler)")
    parser.add_argument("--subnet", help="the guests' IPv4 network")
    parser.add_argument("--uid-base", type=int, help="first user id of guests")
    parser.add_argument("--netns", help="named network namespace for guests")
    parser.add_argument("--hosts", type=int, help="how many hosts this machine is; several live in namespaces")
    parser.add_argument("--boot-id-path", help="where the host worker reads the boot id (default: the kernel's)")
    for port in ("api", "gateway", "temporal", "ui"):
        parser.add_argument(f"--{port}-port", type=int, help="0: a free one, remembered")
    parser.add_argument("--port", type=int, choices=[0], help="all ports: free ones, remembered")
    parser.add_argument("--service", action="store_true", help="have systemd keep it, and start it at each boot")
    parser.add_argument("--no-caps", action="store_true", help="let the host admit whatever is asked for")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a HOSTLER_… setting")
    given = parser.parse_args(words)
    wishes = Wishes(
        name=given.name,
        subnet=given.subnet,
        uid_base=given.uid_base,
        netns=given.netns,
        hosts=given.hosts,
        boot_id_path=given.boot_id_path,
        no_caps=given.no_caps,
        service=given.service,
        api_port=given.port if given.api_port is None else given.api_port,
        temporal_port=given.port if given.temporal_port is None else given.temporal_port,
        ui_port=given.port if given.ui_port is None else given.ui_port,
        gateway_port=given.port if given.gateway_port is None else given.gateway_port,
        database_url=os.environ.get("HOSTLER_DATABASE_URL") or os.environ.get("DATABASE_URL"),
        environment=dict(pair.partition("=")[::2] for pair in given.set),
    )
    home = given.home or Path(os.environ.get("HOSTLER_HOME") or default_home())
    return home.absolute(), given.guest, wishes


async def up(home: Path, guest: Path | None, wishes: Wishes) -> None:
    """Do everything, step by step, and tell each."""
    async with locked(home):
        installation, running = await asyncio.to_thread(prepare, home, wishes)
        replaced = running and await end_other_build(installation)
        if replaced:
            say_step(SUPERVISOR, "stopped", "it was of another build; guests run on")
            installation, running = await asyncio.to_thread(prepare, home, wishes)
        if not running and installation.settings.service:
            await start_unit(installation)
        elif not running:
            await start_supervisor(installation)
        await follow(installation, [name for name in service_names(installation) if name != CONTROL])
        say_step("token", "starting")
        token = await ensure_token(installation)
        say_step("token", "done")
        async with FleetClient(installation, token) as fleet:
            hosts = await bring_hosts(installation, fleet, no_caps=wishes.no_caps)
            if replaced:
                await begin_passes_anew(installation)
            image = await bring_image(installation, fleet, guest)
        say_result("up", **describe(installation, hosts, image))


def prepare(home: Path, wishes: Wishes) -> tuple[Installation, bool]:
    """Settle names and ports, make users and folders; return the installation and whether it is being kept already."""
    earlier = read_settings(home)
    settings = choose_settings(earlier, wishes)
    installation = Installation(home, settings, choose_ports(read_ports(home), wishes))
    check_home(installation)
    check_not_newer(installation)
    running = earlier is not None and is_supervised(installation.run)
    if running:
        if (settings, installation.ports) != (earlier, with_gateway(read_ports(home), installation.ports)):
            raise Conflict("this installation runs with other settings: `hostler down`, then `hostler up` with these")
        return installation, True
    made = users.ensure_users()
    say_step("users", "done", f"made {', '.join(made)}" if made else None)
    check_subnet(settings)
    hold_names(home, settings)
    ensure_folders(installation)
    if not Followed(installation).any_alive():
        check_ports(installation.ports)
    store_database_url(installation, wishes.database_url)
    save_installation(installation)
    for place in settings.hosts:
        refresh_credentials(installation, place)
    say_step("state", "done", str(home))
    return installation, False


def with_gateway(known: Ports | None, chosen: Ports) -> Ports | None:
    """Return the ports of a run with the one chosen now that a release before the gateway did not write."""
    return known.model_copy(update={"gateway": chosen.gateway}) if known and not known.gateway else known


def store_database_url(installation: Installation, url: str | None) -> None:
    """Put a given DATABASE_URL, which may hold a password, where only API and control worker read it (S-42)."""
    if url is not None and not installation.settings.own_database:
        user = need_user(users.HOSTLER)
        write_durably(installation.database_url_file, url.encode() + b"\n", mode=0o600, uid=user.uid, gid=user.gid)


async def start_supervisor(installation: Installation) -> None:
    """Start the supervisor in a session of its own."""
    say_step(SUPERVISOR, "starting")

    async def nothing_to_record(process: ProcessRecord) -> None:
        """The supervisor's lock, not a record, makes it the only one."""

    with opened_log(installation.logs / f"{SUPERVISOR}.log") as log:
        order = Confinement(
            argv=(python(), "-P", "-m", "workers.supervisor", "--home", str(installation.home)),
            uid=0,
            gid=0,
            environment={"LANG": "C.UTF-8", "PATH": PROGRAM_FOLDERS, "PYTHONPATH": str(project_root())},
            descriptors={1: log, 2: log},
        )
        process = await launch_detached(order, record=nothing_to_record)
    await Followed(installation).await_supervisor(process)
    say_step(SUPERVISOR, "ready", f"pid {process.pid}")


async def end_other_build(installation: Installation) -> bool:
    """End a supervisor of another build; return whether there was one."""
    if not installation.settings.service or find_kept_build(installation) == find_own_build():
        return await end_other_supervisor(installation)
    await systemd.stop_service(installation)  # what is killed, systemd starts again
    return True


async def start_unit(installation: Installation) -> None:
    """Have systemd start the supervisor, now and at each boot."""
    name = systemd.unit_name(installation)
    say_step(SUPERVISOR, "starting", name)
    await systemd.start_service(installation)
    say_step(SUPERVISOR, "ready", name)


def find_obstacles(home: Path, wishes: Wishes) -> tuple[str, ...]:
    """List what stands in the way of bringing it up at all, each as a sentence. Errors: Unreadable."""
    earlier = read_settings(home)
    by_systemd = wishes.service or (earlier is not None and earlier.service)
    return (*find_missing(), *(systemd.find_missing() if by_systemd else ()))


def service_names(installation: Installation) -> list[str]:
    """Name what runs without any host."""
    own = ["postgres"] if installation.settings.own_database else []
    return [*own, "temporal", API, GATEWAY, CONTROL]


async def bring_hosts(installation: Installation, fleet: FleetClient, *, no_caps: bool) -> list[dict[str, Any]]:
    """Enrol this machine's hosts, and wait until their workers have reported and the control worker polls."""
    places = installation.settings.hosts
    say_step("enrolment", "starting")
    new = [place for place in places if not installation.host_credentials(place).exists()]
    caps = Caps() if no_caps else await asyncio.to_thread(choose_caps, installation)
    # One after another: each takes the next free name.
    ids = [await fleet.ensure_enrolled(place, caps) for place in places]
    told = f"; its VMs may take in all: {describe_caps(caps)}" if new and caps != Caps() else ""
    say_step("enrolment", "done", ", ".join(ids) + told)
    await follow(installation, [CONTROL, *map(host_service_name, places)])
    say_step("first report", "starting")
    hosts = await asyncio.gather(*(fleet.await_first_report(host_id, REPORT_SECONDS) for host_id in ids))
    say_step("first report", "done")
    return hosts


def choose_caps(installation: Installation) -> Caps:
    """Choose the caps of this machine's host (H-A5): several share one machine, and simulated guests take none of it.

    Blocks.
    """
    given = installation.settings.environment
    said = {name: given[key] for name in Caps.model_fields if (key := f"HOSTLER_HOST_{name.upper()}") in given}
    simulated = given.get("HOSTLER_HOST_SIMULATED_GUESTS", "none") != "none"
    none = simulated or len(installation.settings.hosts) > 1
    return HostSettings.model_validate(said).caps_over(Caps() if none else measure_caps(installation.host))


async def begin_passes_anew(installation: Installation) -> None:
    """End what the control worker of the other build was in the middle of: nobody else can go on with it."""
    say_step("passes", "starting")
    try:
        client = await Client.connect(installation.temporal_address, namespace=service_temporal.NAMESPACE)
        ended = await end_runs_of_other_builds(client, await asyncio.to_thread(find_build_id))
    except (Unavailable, RuntimeError) as error:
        say_step("passes", "skipped", f"the sweep begins them anew: {error}")
        return
    say_step("passes", "done", f"{ended} are begun anew by this build")


async def bring_image(installation: Installation, fleet: FleetClient, guest: Path | None) -> str | None:
    """Register the demo guest, if it was built."""
    say_step("image", "starting")
    folder = await asyncio.to_thread(find_guest, guest)
    if folder is None:
        say_step("image", "skipped", "the demo guest is not built: `make guest`")
        return None
    image = await asyncio.to_thread(publish_guest, folder, installation)
    reference = await fleet.ensure_image(image)
    say_step("image", "done", reference)
    return reference


def describe(installation: Installation, hosts: list[dict[str, Any]], image: str | None) -> dict[str, Any]:
    """Say where everything is; `host` is the first of `hosts`."""
    shown = [
        {"id": host.get("id"), "name": host.get("name"), "hypervisors": host.get("hypervisors", [])} for host in hosts
    ]
    return {
        "home": str(installation.home),
        "url": installation.url,
        "docs_url": f"{installation.url}/docs",
        "ui_url": installation.ui_url,
        "token_path": str(installation.token),
        "logs": str(installation.logs),
        "ports": installation.ports.model_dump(),
        "image": image,
        "host": shown[0],
        "hosts": shown,
    }


def main() -> int:
    home, guest, wishes = read_arguments()
    try:
        missing = find_obstacles(home, wishes)
        if missing:
            say_error("`hostler up` cannot begin", missing)
            return 2
        asyncio.run(up(home, guest, wishes))
    except HostlerError as error:
        say_error(error.detail)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
