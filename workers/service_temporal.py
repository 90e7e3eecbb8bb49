"""The Temporal dev server of the all-in-one installation: on loopback, as a user that can read no key (S-2)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from drivers.confine import PROGRAM_FOLDERS, Confinement, Finished, python_binds, run_confined
from model.errors import StepFailed
from model.process import ProcessRecord
from runtime.temporal_server import ServerPorts, dev_server_arguments, find_temporal_binary, packaged_binary
from workers import users
from workers.installation import Installation
from workers.service import Service
from workers.users import need_user

NAME = "temporal"
NAMESPACE = "default"
RETENTION = "720h"
_CALL_SECONDS = 15.0


def temporal_service(installation: Installation) -> Service:
    """Describe the Temporal server of an installation."""

    async def ready(process: ProcessRecord) -> bool:
        return (await call(installation, "operator", "cluster", "health")).returncode == 0

    async def prepare() -> None:
        await asyncio.to_thread(find_temporal_binary)  # checks the hash of a repackaged one (S-43)

    async def settle() -> None:
        words = ("operator", "namespace", "update", "--namespace", NAMESPACE, "--retention", RETENTION)
        if (await call(installation, *words)).returncode != 0:
            raise StepFailed("Temporal has not taken the retention of its histories yet")

    ports = installation.ports
    return Service(
        name=NAME,
        user=users.TEMPORAL,
        argv=dev_server_arguments(
            locate_temporal(),
            ports=ServerPorts(ports.temporal, ports.temporal_http, ports.temporal_metrics, ports.ui),
            data_file=installation.temporal / "temporal.db",
            log_level="warn",
        ),
        environment=environment(installation),
        ready=ready,
        prepare=prepare,
        settle=settle,
        bind=(installation.temporal,),
    )


def locate_temporal() -> Path:
    """Return the program that `find_temporal_binary` checks: one of the system's folders wins over the repackaged."""
    found = shutil.which("temporal", path=PROGRAM_FOLDERS)
    return Path(found) if found else packaged_binary("temporal")


async def call(installation: Installation, *words: str) -> Finished:
    """Ask the server by its own command line, as its own user."""
    user = need_user(users.TEMPORAL)
    order = Confinement(
        argv=(str(locate_temporal()), *words, "--address", installation.temporal_address),
        uid=user.uid,
        gid=user.gid,
        environment=environment(installation),
        bind=(*python_binds(), installation.temporal),
    )
    return await run_confined(order, timeout_seconds=_CALL_SECONDS)


def environment(installation: Installation) -> dict[str, str]:
    return {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "HOME": str(installation.temporal)}
