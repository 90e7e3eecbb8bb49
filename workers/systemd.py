"""An installation as a systemd service: `hostler up --service` installs a unit that runs its supervisor."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path

from drivers.confine import PROGRAM_FOLDERS
from drivers.durable import write_durably
from model.errors import StepFailed
from workers.installation import Installation, project_root, python
from workers.locks import is_supervised

RUNNING = Path("/run/systemd/system")
"""There where systemd is the init of this machine (sd_booted(3))."""

UNITS = Path("/etc/systemd/system")
_TEMPLATE = project_root() / "infra" / "systemd" / "hostler-up.service"
_START_SECONDS = 20.0
_STOP_SECONDS = 240.0
_LOOK_SECONDS = 0.1


def find_missing(running: Path = RUNNING) -> tuple[str, ...]:
    """List what keeps a service from being installed here, each as a sentence; empty: nothing."""
    if running.is_dir() and shutil.which("systemctl", path=PROGRAM_FOLDERS):
        return ()
    return (
        "systemd does not run on this machine, so there is nothing to install a service for: run `hostler up` without "
        "--service, and have this machine's own init run it at each boot",
    )


def unit_name(installation: Installation) -> str:
    """Return the name of an installation's unit, which no unit of a larger installation has."""
    return f"hostler-up-{installation.settings.name}.service"


def render(installation: Installation) -> str:
    """Write an installation's unit. Errors: StepFailed, where its template was not shipped."""
    if not _TEMPLATE.exists():
        raise StepFailed("infra/systemd/hostler-up.service is not there: use a whole checkout of Hostler")
    told = {
        "NAME": installation.settings.name,
        "HOME": str(installation.home),
        "PYTHON": python(),
        "ROOT": str(project_root()),
        "PATH": PROGRAM_FOLDERS,
    }
    text = _TEMPLATE.read_text("utf-8")
    for name, value in told.items():
        text = text.replace(f"@{name}@", value)
    return text


async def start_service(installation: Installation) -> None:
    """Install the unit, have it started at each boot, and start it. Errors: StepFailed, in systemd's words."""
    name = unit_name(installation)
    await asyncio.to_thread(write_durably, UNITS / name, render(installation).encode(), mode=0o644)
    await _call("daemon-reload")
    await _call("enable", "--now", name)
    deadline = time.monotonic() + _START_SECONDS
    while not is_supervised(installation.run):
        if time.monotonic() > deadline:
            raise StepFailed(f"the supervisor did not come up: `systemctl status {name}` says why")
        await asyncio.sleep(_LOOK_SECONDS)


async def stop_service(installation: Installation) -> None:
    """Stop the unit, and have it started at no boot until the next `hostler up`."""
    await _call("disable", "--now", unit_name(installation))


async def _call(*words: str) -> None:
    def call() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=_STOP_SECONDS, check=False)

    done = await asyncio.to_thread(call)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1][:200]
        raise StepFailed(f"`systemctl {' '.join(words)}` failed: {said}")
