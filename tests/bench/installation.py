"""An installation of Hostler for the benchmark alone, in a folder of its own, of which nothing is left afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from drivers.cgroups import Cgroups
from drivers.processes import find_processes_of, read_boot_id
from workers.choice import REGISTRY
from workers.installation import Installation, project_root, read_installation

UP_SECONDS, DOWN_SECONDS = 300.0, 240.0
LOG_BYTES = 2000


@contextlib.contextmanager
def installed(folder: Path, name: str, guest: Path, *, keep: bool) -> Generator[Installation]:
    """Bring an installation up; at the end take down what runs, and unless `keep`, all that is left of it."""
    home = folder / "home"
    try:
        call(home, UP_SECONDS, "workers.up", "--name", name, "--port", "0", "--guest", str(guest))
        installation = read_installation(home)
        if installation is None:
            raise RuntimeError("`hostler up` made no settings")
        yield installation
    except BaseException:
        tell_logs(home)
        raise
    finally:
        installation = read_installation(home)
        if installation is not None:
            call(home, DOWN_SECONDS, "workers.down", "--vms")
            if not keep:
                remove(installation)


def call(home: Path, timeout_seconds: float, module: str, *words: str) -> dict[str, Any]:
    """Run one of Hostler's commands as the command line does; return its last line."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", module, "--home", str(home), *words],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_seconds,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(project_root())},
    )
    last = (done.stdout.strip().splitlines() or ["{}"])[-1]
    if done.returncode:
        raise RuntimeError(f"{module} ended with {done.returncode}: {last}")
    return json.loads(last)


def remove(installation: Installation) -> None:
    """Remove what `hostler down --vms` leaves for the next `up`: links, firewall, cgroups, files."""
    settings = installation.settings
    for link in Path("/sys/class/net").iterdir():
        if link.name == settings.bridge or settings.names().owns_tap(link.name):
            subprocess.run(["ip", "link", "delete", link.name], check=False)
    for family in ("bridge", "inet"):
        subprocess.run(["nft", "delete", "table", family, settings.table], check=False, capture_output=True)
    for cgroups in (Cgroups.detect(place.cgroup) for place in settings.hosts):
        for vm_id in cgroups.list_ids():
            cgroups.remove(vm_id)
        for folder in cgroup_folders(cgroups):
            folder.rmdir()
    shutil.rmtree(installation.home)
    for entry in registry_entries(installation):
        entry.unlink()


def find_left(installation: Installation) -> list[str]:
    """List what is still there of an installation that was removed."""
    settings = installation.settings
    tables = subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True).stdout
    left = [str(path) for path in (installation.home, *registry_entries(installation)) if path.exists()]
    left += [line for line in tables.splitlines() if line.split()[-1] == settings.table]
    left += [
        f"link {link.name}"
        for link in Path("/sys/class/net").iterdir()
        if link.name == settings.bridge or settings.names().owns_tap(link.name)
    ]
    left += [str(folder) for folder in cgroup_folders(Cgroups.detect(settings.cgroup))]
    left += [f"guest process {p.pid}" for p in find_processes_of(settings.names().users, read_boot_id())]
    return left + [f"process {pid}" for pid in find_processes(str(installation.home))]


def registry_entries(installation: Installation) -> list[Path]:
    """List what the machine's registry of installations holds of one: its names, and the lock of its `up`."""
    lock = hashlib.sha256(os.fsencode(installation.home)).hexdigest()[:24]
    found = (REGISTRY / f"{installation.settings.name}.json", REGISTRY / f"{lock}.lock")
    return [path for path in found if path.exists()]


def cgroup_folders(cgroups: Cgroups) -> list[Path]:
    controllers = cgroups.controllers if cgroups.backend == "v1" else ("",)
    found = (cgroups.root / controller / cgroups.name for controller in controllers)
    return [folder for folder in found if folder.exists()]


def find_processes(word: str) -> list[int]:
    """Find the processes that name a path in their arguments, but for this one."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def tell_logs(home: Path) -> None:
    """Show the ends of the logs, which are about to go."""
    for log in sorted((home / "logs").glob("*.log")):
        sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-LOG_BYTES:]}\n")
