"""`hostler up` of this release where the first one runs, and of the first one where this one ran."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model.process import ProcessRecord
from tests.fixtures.image_server import ImageServer
from tests.upgrades.api import Api
from tests.upgrades.lives import HELD, Serve, go_on
from tests.upgrades.releases import Release
from workers.service import ServiceRecords

OURS = {"supervisor", "api", "control", "host"}
SERVICES = {*OURS, "postgres", "temporal"}
SOONER_SECONDS = 120
"""Less than it takes until a run whose claim nobody renews is ended as stuck."""


class Installed(Api):
    """One state directory, in a network namespace of its own, that each release is brought up in."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        super().__init__(self.home / "host")
        self.name = "u" + secrets.token_hex(4)
        subprocess.run(["ip", "netns", "add", self.name], check=True)

    def up(self, release: Release) -> list[dict[str, Any]]:
        """Run `hostler up` of a release; return what it told."""
        words = ("--name", self.name, "--netns", self.name, "--port", "0")
        events = self.run(release, "workers.up", *words, "--set", 'HOSTLER_HOST_IMAGE_ALLOW=["127.0.0.0/8"]')
        self.port = json.loads((self.home / "run" / "ports.json").read_text())["api"]
        self.first_uid = json.loads((self.home / "settings.json").read_text())["uid_base"]
        token = self.home / "token"
        self.token = token.read_text().strip() if token.exists() else ""
        return events

    def run(self, release: Release, module: str, *words: str) -> list[dict[str, Any]]:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(release.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOSTLER_HOME": str(self.home),
        }
        done = subprocess.run(release.module(module, *words), env=environment, cwd="/", capture_output=True, text=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def processes(self) -> dict[str, ProcessRecord | None]:
        records = ServiceRecords(self.home / "run")
        return {name: record.process for name in SERVICES if (record := records.read(name)) is not None}

    def remove(self, release: Release) -> None:
        self.run(release, "workers.down", "--vms")
        subprocess.run(["ip", "netns", "delete", self.name], check=True)


@pytest.fixture
def installed(this: Release) -> Iterator[Installed]:
    folder = Path(tempfile.mkdtemp(prefix="hst-"))
    folder.chmod(0o755)
    installed = Installed(folder)
    yield installed
    installed.remove(this)
    shutil.rmtree(folder)


def test_up_replaces_what_is_of_another_build(
    installed: Installed, first: Release, this: Release, image: Serve, image_server: ImageServer
):
    """H-D4, H-E5: Hostler's own processes, and nothing else; guests run on, a quarantine keeps its deadline.

    A create goes on within a minute, which is sooner than a claim ends that nobody renews.
    """
    assert installed.up(first)[-1]["event"] == "up"
    kept, held = installed.create(image()), installed.create(image())
    for vm_id in (kept, held):
        installed.ready(vm_id)
    guest, deadline = installed.guests()[kept], installed.quarantine(held, "1h")["quarantine"]
    making = installed.create(image(**HELD))
    installed.fetching(making)
    old = installed.processes()

    events = installed.up(this)
    assert events[-1]["event"] == "up", events
    go_on(image_server)
    installed.ready(making, SOONER_SECONDS)
    new = installed.processes()
    assert {name for name in SERVICES if old[name] != new[name]} == OURS
    assert _workers_version(installed) == this.version
    assert installed.guests()[kept] == guest
    assert installed.row(held)["quarantine"] == deadline
    installed.ready(kept)
    assert installed.up(this)[-1]["event"] == "up"
    assert installed.processes() == new

    # The first release cannot be told: it adopts what runs, and its API refuses the schema where nothing does.
    assert installed.up(first)[-1]["event"] == "up"
    assert installed.processes() == new
    installed.run(this, "workers.down")
    events = installed.up(first)
    assert events[-1]["event"] == "error"
    assert "it belongs to a newer release; run that one" in json.dumps(events), events
    assert installed.guests()[kept] == guest

    events = installed.up(this)
    assert events[-1]["event"] == "up", events
    assert installed.ready(kept)["power_state"] == "running"
    assert installed.guests()[kept] == guest
    assert installed.row(held)["quarantine"] == deadline


def _workers_version(installed: Installed) -> str:
    (host,) = installed.do("GET", "/v1/hosts")["items"]
    return host["worker_version"]
