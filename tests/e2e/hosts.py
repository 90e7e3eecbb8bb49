"""The hosts of one installation on this machine, each in its namespace: cut off, killed, rebooted, their state lost.

What a test does to a host lasts whatever its supervisor does: a worker that comes back finds the host cut off still.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drivers.network.joint import INSIDE
from drivers.processes import find_processes_of, read_boot_id
from tests.e2e.installation import Installation

CUT = "cut"


class Host:
    """One of the hosts, by its number."""

    def __init__(self, installation: Installation, number: int) -> None:
        self.installation = installation
        self.number = number
        settings = installation.settings
        self.settings: dict[str, Any] = [settings, *settings["further_hosts"]][number - 1]
        self.folder = installation.home / ("host" if number == 1 else f"hosts/{number}/host")
        self.service = "host" if number == 1 else f"host-{number}"

    @property
    def id(self) -> str:
        return json.loads((self.folder / "host.json").read_text())["host_id"]

    @property
    def instance_id(self) -> str:
        return json.loads((self.folder / "host.json").read_text())["instance_id"]

    def shown(self) -> dict[str, Any]:
        """Return the host as the API shows it."""
        return self.installation.call("GET", f"/v1/hosts/{self.id}")[1]

    def guests(self) -> dict[str, tuple[int, int]]:
        """Return (pid, start time) of the hypervisor process of each VM id."""
        first = int(self.settings["uid_base"])
        users = range(first, first + int(self.settings["uid_count"]))
        return self.installation.guests_of(users)

    def cut_off(self) -> None:
        """Let nothing pass between the host and the machine, and say so to neither."""
        table = f"add table inet {CUT}; delete table inet {CUT}; add table inet {CUT}"
        for hook, link in (("input", "iifname"), ("output", "oifname")):
            table += f"; add chain inet {CUT} {hook} {{ type filter hook {hook} priority -300; }}"
            table += f"; add rule inet {CUT} {hook} {link} {INSIDE} drop"
        self.inside("nft", table)

    def join(self) -> None:
        """Let all pass again."""
        self.inside("nft", f"delete table inet {CUT}")

    def kill_worker(self) -> None:
        """kill -9; the supervisor starts another one."""
        self.installation.kill(self.service)

    def reboot(self) -> None:
        """Leave what a reboot leaves: the disk. Processes and the namespace are gone, the boot id is another."""
        with self.without_worker():
            path = Path(self.settings["boot_id_path"])
            path.write_text(f"{uuid.uuid4()}\n")
            first, count = self.settings["uid_base"], self.settings["uid_count"]
            for process in find_processes_of(range(first, first + count), read_boot_id()):
                os.kill(process.pid, signal.SIGKILL)
            self.installation.kill_network_servers(self.folder)
            subprocess.run(["ip", "netns", "delete", self.settings["netns"]], check=True)

    @contextlib.contextmanager
    def without_worker(self) -> Iterator[Path]:
        """Have no worker for as long as the block lasts; yields the state directory, to be lost, copied or put back."""
        credentials, aside = self.folder / "credentials.json", self.folder.with_name("credentials.aside")
        credentials.rename(aside)  # without it no worker is started
        process = self.installation.process(self.service)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process["pid"], signal.SIGKILL)
        self._await_end(process["pid"])
        try:
            yield self.folder
        finally:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            aside.rename(credentials)

    def lose_state(self) -> None:
        """Lose the state directory, but not what the host is enrolled with; its guests run on."""
        with self.without_worker() as folder:
            shutil.rmtree(folder)

    def copy_state(self, to: Path) -> None:
        """Copy the state directory as it is now, for `roll_back`."""
        with self.without_worker() as folder:
            subprocess.run(["cp", "-a", "--sparse=always", f"{folder}/.", str(to)], check=True)

    def roll_back(self, copy: Path) -> None:
        """Put an earlier copy of the state directory in its place."""
        with self.without_worker() as folder:
            shutil.rmtree(folder)
            subprocess.run(["cp", "-a", "--sparse=always", str(copy), str(folder)], check=True)

    def await_log(self, words: str, seconds: float = 60) -> str:
        """Return the line of the worker's log that has these words, once it is there."""
        log = self.installation.home / "logs" / f"{self.service}.log"
        deadline = time.monotonic() + seconds
        while True:
            for line in log.read_text(errors="replace").splitlines():
                if words in line:
                    return line
            assert time.monotonic() < deadline, f"{log}: no line with {words!r}"
            time.sleep(0.2)

    def inside(self, *words: str) -> str:
        """Run a program in the host's namespace."""
        command = ["nsenter", f"--net=/run/netns/{self.settings['netns']}", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def await_silence(self, *, silent: bool, seconds: float = 60) -> dict[str, Any]:
        """Wait until the API shows the host as silent, or as heard."""
        deadline = time.monotonic() + seconds
        while (shown := self.shown())["silent"] is not silent:
            assert time.monotonic() < deadline, shown
            time.sleep(0.1)
        return shown

    def _await_end(self, pid: int) -> None:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    assert time.monotonic() < deadline, f"process {pid} does not end"
                    time.sleep(0.02)
                    continue
            return


@contextlib.contextmanager
def moved_to_another_machine(host: Host) -> Iterator[None]:
    """Let the state directory be one that was made on another machine, for as long as the block lasts."""
    path = host.folder / "host.json"
    own = path.read_text()
    with host.without_worker():
        path.write_text(json.dumps({**json.loads(own), "machine_id": "0" * 32}))
    try:
        yield
    finally:
        with host.without_worker():
            path.write_text(own)
