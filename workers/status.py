"""Say what of an installation is up, where, and why not: `python -m workers.status` prints one JSON document.

Ends with 0 when everything is up, 1 when something is not, 2 when root is needed, 3 when there is no installation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from model.errors import HostlerError
from runtime.settings import default_home
from workers.fleet_client import FleetClient, read_host_id, read_token
from workers.host_place import HostPlace
from workers.installation import Installation, read_installation
from workers.locks import is_supervised
from workers.preflight import RULES_WITHOUT_ROOT
from workers.progress import Followed, is_running
from workers.service_hostler import API, GATEWAY, installation_services

_NO_INSTALLATION = {"installed": False, "why": "nothing was brought up in this state directory: run `hostler up`"}


def describe_services(installation: Installation) -> list[dict[str, Any]]:
    """Describe each service: state, where, since when, how often it came back, and why it is not up. Blocks."""
    return [describe_service(installation, service.name) for service in installation_services(installation)]


def describe_service(installation: Installation, name: str) -> dict[str, Any]:
    followed = Followed(installation)
    record = followed.find(name)
    if record is None:
        return {"name": name, "state": "stopped", "up": False, "detail": "was never started"}
    alive = is_running(record)
    up = alive and record.state == "ready"
    detail = record.detail or (None if up or record.state == "stopped" else "its process is gone")
    return {
        "name": name,
        "state": record.state,
        "up": up,
        "pid": record.process.pid if alive and record.process else None,
        "where": where(installation, name),
        "started_at": record.started_at.isoformat() if alive and record.started_at else None,
        "since": record.since.isoformat(),
        "restarts": record.restarts,
        "detail": detail,
        "log_file": str(installation.logs / f"{name}.log"),
        "log": [] if up else list(followed.log_end(name)),
    }


def where(installation: Installation, name: str) -> str | None:
    """Say where a service is reached."""
    places = {
        "postgres": str(installation.postgres_socket),
        "temporal": f"{installation.temporal_address}, UI {installation.ui_url}",
        API: installation.url,
        GATEWAY: installation.gateway_url,
    }
    return places.get(name)


async def describe_hosts(installation: Installation) -> list[dict[str, Any]]:
    """Describe each host of this machine: what the fleet knows of it, or why nothing is known."""
    token = await asyncio.to_thread(read_token, installation.token)
    return [await describe_host(installation, place, token) for place in installation.settings.hosts]


async def describe_host(installation: Installation, place: HostPlace, token: str | None) -> dict[str, Any]:
    """Ask the fleet what runs a host's guests and what is wrong there (D-12), what is overdue and what stands still."""
    if token is None or not installation.host_credentials(place).exists():
        return {"hypervisors": [], "why": "this host is not enrolled yet"}
    try:
        async with FleetClient(installation, token) as fleet:
            host = await fleet.find_host(await asyncio.to_thread(read_host_id, installation, place))
            overdue = await fleet.list_overdue() if place.number == 1 else []
            standstill = await fleet.find_standstill() if place.number == 1 else None
    except HostlerError as error:
        return {"hypervisors": [], "why": error.detail}
    told = {name: host.get(name) for name in ("id", "name", "silent")}
    told |= {name: host.get(name, []) for name in ("hypervisors", "conditions")}
    return {**told, "netns": place.netns, "overdue": overdue, "standstill": standstill, "why": None}


async def status(home: Path) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the document."""
    if os.geteuid() != 0:
        return 2, {"installed": None, "why": "root is needed to look: use sudo", "not_held": RULES_WITHOUT_ROOT}
    installation = await asyncio.to_thread(read_installation, home)
    if installation is None:
        return 3, {**_NO_INSTALLATION, "home": str(home)}
    described = await asyncio.to_thread(describe_services, installation)
    hosts = await describe_hosts(installation)
    supervised = is_supervised(installation.run)
    document: dict[str, Any] = {
        "installed": True,
        "home": str(home),
        "name": installation.settings.name,
        "url": installation.url,
        "ui_url": installation.ui_url,
        "ports": installation.ports.model_dump(),
        "own_database": installation.settings.own_database,
        "supervisor": {"up": supervised, "why": None if supervised else "no supervisor runs: `hostler up` starts one"},
        "services": described,
        "host": hosts[0],
        "hosts": hosts,
        "not_held": {},
    }
    return int(not (supervised and all(service["up"] for service in described))), document


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.status", description="Say what is up.")
    parser.add_argument("--home", type=Path, help="state directory (default: HOSTLER_HOME)")
    home: Path = parser.parse_args().home or Path(os.environ.get("HOSTLER_HOME") or default_home())
    try:
        code, document = asyncio.run(status(home.absolute()))
    except HostlerError as error:
        code, document = 1, {"installed": None, "home": str(home), "why": error.detail}
    print(json.dumps(document, indent=2))
    return code


if __name__ == "__main__":
    sys.exit(main())
