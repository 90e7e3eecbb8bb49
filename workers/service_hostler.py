"""Hostler's own processes: API, gateway and control worker as `hostler`, the host worker as root (S-2).

They are told by their environment where everything is; what is secret lies in files that only their user reads (S-42).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import cast

from drivers.confine import PROGRAM_FOLDERS
from drivers.network.joint import ensure_joint
from drivers.network.namespace import prefix
from model.process import ProcessRecord
from model.temporal import CONTROL_QUEUE
from workers import service_postgres, service_temporal, users
from workers.builds import find_own_build
from workers.host_place import HostPlace
from workers.installation import Installation, project_root, python
from workers.service import Service

API, GATEWAY, CONTROL, HOST = "api", "gateway", "control", "host"
_STEADY_SECONDS = 1.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_ANSWER_SECONDS = 5.0


def installation_services(installation: Installation) -> tuple[Service, ...]:
    """List all services of an installation, in the order in which they start; they stop in reverse."""
    own = (service_postgres.postgres_service(installation),) if installation.settings.own_database else ()
    temporal = service_temporal.temporal_service(installation)
    hosts = (host_service(installation, place) for place in installation.settings.hosts)
    ours = (api_service(installation), gateway_service(installation), control_service(installation))
    return (*own, temporal, *ours, *hosts)


def api_service(installation: Installation) -> Service:
    """Describe the API."""

    async def ready(process: ProcessRecord) -> bool:
        return await http_status(installation.ports.api, "/readyz") == 200

    return Service(
        name=API,
        user=users.HOSTLER,
        argv=module_arguments("workers.api"),
        environment=environment(installation),
        ready=ready,
        build=find_own_build(),
        requires=(service_postgres.NAME,),
        bind=(installation.home,),
    )


def gateway_service(installation: Installation) -> Service:
    """Describe the gateway; it listens once it has reached Postgres and Temporal."""

    async def ready(process: ProcessRecord) -> bool:
        return await is_listening(installation.ports.gateway)

    return Service(
        name=GATEWAY,
        user=users.HOSTLER,
        argv=module_arguments("workers.gateway"),
        environment=environment(installation),
        ready=ready,
        build=find_own_build(),
        requires=(service_postgres.NAME, service_temporal.NAME, API),  # the API brings the schema up to date
        bind=(installation.home,),
    )


def control_service(installation: Installation) -> Service:
    """Describe the control worker; it is ready once Temporal has seen it poll."""

    async def ready(process: ProcessRecord) -> bool:
        # The legacy form is the one that lists the pollers of every build (measured: server 1.32, CLI 1.9).
        words = ("task-queue", "describe", "--legacy-mode", "--task-queue", CONTROL_QUEUE, "--output", "json")
        asked = await service_temporal.call(installation, *words)
        return asked.returncode == 0 and is_polled_since(asked.stdout, time.time() - age_seconds(process))

    return Service(
        name=CONTROL,
        user=users.HOSTLER,
        argv=module_arguments("workers.control"),
        environment=control_environment(installation),
        ready=ready,
        build=find_own_build(),
        requires=(service_postgres.NAME, service_temporal.NAME, API),  # the API brings the schema up to date
        bind=(installation.home,),
    )


def host_service_name(place: HostPlace) -> str:
    """Return the name of a host worker's service."""
    return HOST if place.number == 1 else f"{HOST}-{place.number}"


def host_service(installation: Installation, place: HostPlace) -> Service:
    """Describe a host worker. It outlives the rest of the fleet, so it requires nothing but its enrolment."""
    joint = installation.joint(place)

    async def ready(process: ProcessRecord) -> bool:
        return age_seconds(process) >= _STEADY_SECONDS

    async def prepare() -> None:
        if joint is not None:
            await ensure_joint(joint)

    return Service(
        name=host_service_name(place),
        user=users.ROOT,
        argv=(*prefix(None if joint is None else joint.netns), *module_arguments("workers.host")),
        environment={**common_environment(installation), **host_environment(installation, place)},
        ready=ready,
        prepare=prepare,
        build=find_own_build(),
        needs=installation.host_credentials(place),
        stop_seconds=30.0,
    )


def module_arguments(module: str) -> tuple[str, ...]:
    # -P: the working directory is not a place to import from.
    return (python(), "-P", "-m", module)


def common_environment(installation: Installation) -> dict[str, str]:
    """Return what every process of ours is told. Nothing secret: other users may see a process' environment (S-42)."""
    return {
        "LANG": "C.UTF-8",
        "PATH": PROGRAM_FOLDERS,
        "PYTHONPATH": str(project_root()),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **installation.settings.environment,
        "HOSTLER_HOME": str(installation.home),
        "HOSTLER_URL": installation.url,
    }


def environment(installation: Installation) -> dict[str, str]:
    """Return what every process of the control plane is told besides: where Temporal and Postgres are."""
    own = {"HOSTLER_DATABASE_URL": installation.database_url}
    given = {"HOSTLER_DATABASE_URL_FILE": str(installation.database_url_file)}
    return {
        **common_environment(installation),
        "HOSTLER_GATEWAY_URL": installation.gateway_url,
        "HOSTLER_GATEWAY_LISTEN": installation.gateway_url,
        "HOSTLER_TEMPORAL_ADDRESS": installation.temporal_address,
        "HOSTLER_TEMPORAL_NAMESPACE": service_temporal.NAMESPACE,
        "HOSTLER_TEMPORAL_UI_URL": installation.ui_url,
        **(own if installation.settings.own_database else given),
    }


def control_environment(installation: Installation) -> dict[str, str]:
    """Let the control worker keep compiled code: its sandbox reads the workflows' modules anew for every pass.

    From their source that takes twice the CPU (measured). In a folder that only its own user may write.
    """
    told = environment(installation)
    del told["PYTHONDONTWRITEBYTECODE"]
    return {**told, "PYTHONPYCACHEPREFIX": str(installation.home / "api" / "code")}


def host_environment(installation: Installation, place: HostPlace) -> dict[str, str]:
    """Return what only a host worker is told: the names that this installation has on the host."""
    told = {
        "HOSTLER_HOME": str(installation.host_home(place)),
        "HOSTLER_HOST_BRIDGE": place.bridge,
        "HOSTLER_HOST_TABLE": place.table,
        "HOSTLER_HOST_TAP_PREFIX": place.tap_prefix,
        "HOSTLER_HOST_CGROUP": place.cgroup,
        "HOSTLER_HOST_UID_BASE": str(place.uid_base),
        "HOSTLER_HOST_UID_COUNT": str(place.uid_count),
        "HOSTLER_HOST_SUBNET": str(place.subnet),
        "HOSTLER_HOST_NETNS": place.netns,
        "HOSTLER_HOST_BOOT_ID_PATH": place.boot_id_path,
    }
    defaults = {
        "HOSTLER_HOST_IMAGE_FILE_ROOT": str(installation.images_served),
        # One person's own machine: where KVM does not work, slow guests are better than none; status shows it (S-16).
        "HOSTLER_HOST_ALLOW_EMULATED_GUESTS": "true",
        **installation.settings.environment,
    }
    return defaults | {name: value for name, value in told.items() if value is not None}


async def is_listening(port: int) -> bool:
    """Tell whether a port of loopback takes connections."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
    except (OSError, TimeoutError):
        return False


async def http_status(port: int, path: str) -> int | None:
    """Ask a server on loopback by HTTP/1.1; return the status, or None when it does not answer in time."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
                version, status, *_ = (await reader.readline()).split()
                return int(status) if version.startswith(b"HTTP/") else None
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return None


def is_polled_since(description: bytes, began: float) -> bool:
    """Tell whether a queue's legacy description lists a poll after `began`, in seconds since 1970.

    Only one control worker of an installation lives at a time, whatever name it gives itself.
    """
    try:
        pollers = cast("list[dict[str, dict[str, int]]]", json.loads(description)["pollers"] or [])
        return any(_time_of(poller["last_access_time"]) > began for poller in pollers)
    except (ValueError, KeyError, TypeError):
        return False


def _time_of(stamp: dict[str, int]) -> float:
    """Return a protobuf timestamp in seconds. Without its fraction the poll may have come at the second's end.

    A poll lasts a minute: one that is taken for too early is not seen to be followed by another for as long.
    """
    return stamp["seconds"] + stamp.get("nanos", 999_999_999) / 1e9


def age_seconds(process: ProcessRecord) -> float:
    """Return for how long a process of this boot has lived."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.start_time / _TICKS_PER_SECOND
