"""One whole installation: brought up by `hostler up`, asked by `hostler`, looked at from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.installation import remove as remove_installation
from workers.installation import read_installation

PROJECT = Path(__file__).resolve().parents[2]
PROCESSES = ("supervisor", "postgres", "temporal", "api", "gateway", "control", "host")
Row = dict[str, Any]


class Installation:
    """A state directory, names of its own on this machine, and what is asked of it."""

    def __init__(self, home: Path | None = None, *arguments: str, hosts: int = 1) -> None:
        self.run_id = uuid.uuid4().hex[:5]
        self.name = f"e{self.run_id}"
        self.home = home or Path(f"/tmp/hostler-{self.name}")  # short: sockets live below it
        self.boot_id_path = self.home / "boot_id"
        self.arguments = arguments if hosts == 1 else (*arguments, "--hosts", str(hosts))
        self.host_count = hosts

    def up(self, *arguments: str, timeout: float = 180) -> str:
        """Run `hostler up` with this installation's names; return what it printed."""
        self.home.mkdir(mode=0o755, exist_ok=True)
        if not self.boot_id_path.exists():
            self.set_boot_id(self.host_count)
        own = ("--name", self.name, "--port", "0", "--boot-id-path", str(self.boot_id_path))
        return self.hostler("up", *own, *self.arguments, *arguments, timeout=timeout).stdout

    def down(self, *, vms: bool = False) -> None:
        self.hostler("down", *(["--vms"] if vms else []), timeout=180)

    def remove(self) -> None:
        """Leave nothing of it on this machine."""
        self.down(vms=True)
        if not (self.home / "settings.json").exists():
            shutil.rmtree(self.home, ignore_errors=True)
            return
        known = read_installation(self.home)
        assert known is not None
        remove_installation(known)

    def keep_evidence(self, test: str) -> None:
        """Copy logs, records and consoles to a folder that is named after a test that failed."""
        folder = PROJECT / "tests" / "evidence" / re.sub(r"[^a-z0-9]+", "-", test.lower())
        for path in (*(self.home / "logs").glob("*"), *(self.home / "host" / "machines").glob("*/*")):
            if path.is_file() and (path.suffix == ".log" or path.name in ("status.json", "console.log.1")):
                place = folder / path.relative_to(self.home)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)

    def hostler(
        self, *arguments: str, check: bool = True, timeout: float = 120, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("hostler")), *arguments],
            cwd=PROJECT,
            env={**self.environment(), "COLUMNS": "200"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check:
            assert done.returncode == 0, (
                f"hostler {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def environment(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HOSTLER_") or k == "HOSTLER_CACHE"}
        return {**clean, "HOSTLER_HOME": str(self.home)}

    @property
    def settings(self) -> dict[str, Any]:
        return json.loads((self.home / "settings.json").read_text())

    @property
    def bridge(self) -> str:
        return self.settings["bridge"]

    @property
    def ports(self) -> dict[str, int]:
        return json.loads((self.home / "run" / "ports.json").read_text())

    def call(self, method: str, path: str, body: object = None, timeout: float = 70) -> tuple[int, Row]:
        """Ask the API; return status and document."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports['api']}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {(self.home / 'token').read_text().strip()}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def row(self, name_or_id: str) -> Row:
        """Return a VM's row by id, or by name."""
        status, row = self.call("GET", f"/v1/vms/{name_or_id}")
        if status == 200:
            return row
        status, found = self.call("GET", f"/v1/vms?name={name_or_id}")
        assert found.get("items"), (status, row, found)
        return self.call("GET", f"/v1/vms/{found['items'][0]['id']}")[1]

    def until(self, name_or_id: str, condition: Callable[[Row], bool], seconds: float = 60, pause: float = 0.1) -> Row:
        """Wait for a level of a VM's row, with a bound."""
        deadline = time.monotonic() + seconds
        row: Row = {}
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, AssertionError):
                row = self.row(name_or_id)
                if condition(row):
                    return row
            time.sleep(pause)
        raise AssertionError(f"did not come within {seconds} s: {row}")

    def create(self, name: str, **fields: Any) -> Row:
        """Create a VM by the API with the installation's key; return its row at once."""
        body = {"name": name, "image": "demo", "memory_mib": 128, "ssh_authorized_keys": [self.public_key], **fields}
        status, row = self.call("POST", "/v1/vms", body)
        assert status == 201, row
        return row

    def ready(self, name_or_id: str, seconds: float = 120) -> Row:
        return self.until(name_or_id, lambda row: row["phase"] == "ready" and row["settled"], seconds)

    @property
    def public_key(self) -> str:
        return " ".join((self.home / "ssh" / "id_ed25519.pub").read_text().split()[:2])

    def ssh(self, name: str, command: str, *, seconds: float = 120) -> str:
        """Run a command in the guest by `hostler vm ssh`, trying until it answers."""
        deadline = time.monotonic() + seconds
        while True:
            done = self.hostler("vm", "ssh", name, command, check=False, timeout=60)
            if done.returncode == 0:
                return done.stdout
            assert time.monotonic() < deadline, f"no SSH: {done.stdout} {done.stderr}"

    def process(self, name: str) -> dict[str, Any]:
        """Return pid and start time of one of the installation's processes."""
        return json.loads((self.home / "run" / f"{name}.json").read_text())["process"]

    def kill(self, name: str) -> int:
        """kill -9 one of the installation's processes; return the pid that it had."""
        pid: int = self.process(name)["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def await_new_process(self, name: str, old: dict[str, Any], seconds: float = 30) -> dict[str, Any]:
        """Wait until another process than `old` does the work of `name`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            record = json.loads((self.home / "run" / f"{name}.json").read_text())
            if record["state"] == "ready" and record["process"] != old:
                return record["process"]
            time.sleep(0.05)
        raise AssertionError(f"{name} did not come back within {seconds} s")

    def until_gone(self, vm_id: str, seconds: float = 60) -> None:
        """Wait until a VM is no more."""
        deadline = time.monotonic() + seconds
        while (answer := self.call("GET", f"/v1/vms/{vm_id}"))[0] not in (404, 410):
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)

    def kill_network_servers(self, host: Path | None = None) -> None:
        """Kill a host's DHCP server, as a reboot does. host: its state directory, else the first one's."""
        folder = str((host or self.home / "host") / "dnsmasq").encode()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and folder in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

    def set_boot_id(self, hosts: int = 1) -> None:
        """As a reboot of the host does; guests must be gone, too (`kill_guests`). hosts: how many there are to be."""
        further = (self.boot_id_path.with_name(f"{self.boot_id_path.name}-h{number + 1}") for number in range(hosts))
        for path in (self.boot_id_path, *(further if hosts > 1 else ())):
            path.write_text(f"{uuid.uuid4()}\n")

    def guests(self) -> dict[str, tuple[int, int]]:
        """Return (pid, start time) of the hypervisor process of each VM id, by the uid range and the arguments."""
        first = int(self.settings["uid_base"])
        return self.guests_of(range(first, first + int(self.settings["uid_count"])))

    def guests_of(self, users: range) -> dict[str, tuple[int, int]]:
        """Return the same of one host's users."""
        found: dict[str, tuple[int, int]] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError, ValueError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.stat().st_uid in users and stat[0] != "Z" and b"-name" in words:
                    vm_id = words[words.index(b"-name") + 1].decode()
                    assert vm_id not in found, f"two processes of {vm_id}"
                    found[vm_id] = (int(entry.name), int(stat[19]))
        return found

    def kill_guests(self) -> None:
        for pid, _ in self.guests().values():
            os.kill(pid, signal.SIGKILL)

    def taps(self) -> set[str]:
        shown = subprocess.run(
            ["ip", "-j", "link", "show", "master", self.bridge], capture_output=True, text=True, check=False
        ).stdout
        return {link["ifname"] for link in json.loads(shown or "[]")}

    def inventory(self) -> dict[str, Any]:
        """Everything that VMs leave on a host and in the store; images, logs, fences and what is gone excepted."""
        host = self.home / "host"
        tables = subprocess.run(["nft", "-j", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
        own = [
            json.dumps(item, sort_keys=True)
            for entry in json.loads(tables)["nftables"]
            for kind, item in entry.items()
            if kind in ("set", "map", "element") and item.get("table") == self.settings["table"]
        ]
        elements = sorted(text for line in own for text in _elements(json.loads(line)))
        files = sorted(
            str(path.relative_to(host))
            for folder in ("machines", "sockets", "locks")
            for path in (host / folder).rglob("*")
            if not path.name.startswith("console")
        )
        return {
            "processes": sorted(self.guests()),
            "taps": sorted(self.taps()),
            "reservations": sorted(path.name for path in (host / "dnsmasq" / "hosts").iterdir()),
            "elements": elements,
            "files": files,
            "rows": sorted(row["name"] for row in self.call("GET", "/v1/vms?limit=500")[1]["items"]),
        }


def _elements(item: dict[str, Any]) -> Iterator[str]:
    for element in item.get("elem", []):
        text = json.dumps(element, sort_keys=True)
        yield f"{item['name']}: {text}"
