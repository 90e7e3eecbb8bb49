"""`hostler up`, `status` and `down` with the real processes: each state directory is a fleet of its own."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivers.confine import is_alive, read_boot_id, signal_process
from model.process import ProcessRecord
from workers import users
from workers.enrolment import measure_caps, read_caps
from workers.service import ServiceRecords
from workers.users import need_user

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each process runs as a user of its own"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("postgres", "temporal", "api", "gateway", "control", "host")
USERS = {
    "postgres": users.POSTGRES,
    "temporal": users.TEMPORAL,
    "api": users.HOSTLER,
    "gateway": users.HOSTLER,
    "control": users.HOSTLER,
    "host": users.ROOT,
}


class Fleet:
    """One state directory below a closed folder, in a network namespace of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = "t" + secrets.token_hex(4)
        self.home = folder / "home"
        subprocess.run(["ip", "netns", "add", self.name], check=True)

    async def call(self, module: str, *words: str, **environment: str) -> tuple[int, list[dict[str, Any]]]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", module, *words),
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "PYTHONPATH": str(ROOT),
                "HOSTLER_HOME": str(self.home),
                **environment,
            },
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        if module == "workers.status":
            return process.returncode or 0, [json.loads(output)]
        return process.returncode or 0, [json.loads(line) for line in output.splitlines()]

    async def up(self, *words: str) -> dict[str, Any]:
        code, events = await self.call("workers.up", "--name", self.name, "--netns", self.name, "--port", "0", *words)
        assert code == 0, json.dumps(events, indent=1)
        assert events[-1]["event"] == "up"
        return events[-1]

    def processes(self) -> dict[str, ProcessRecord]:
        records = ServiceRecords(self.home / "run")
        found = {name: records.read(name) for name in SERVICES}
        return {name: record.process for name, record in found.items() if record and record.process}

    async def await_ready(self, name: str, *, not_pid: int) -> None:
        records = ServiceRecords(self.home / "run")
        async with asyncio.timeout(60):
            while True:
                record = records.read(name)
                if record and record.process and record.process.pid != not_pid and record.state == "ready":
                    return
                await asyncio.sleep(0.05)

    def supervisor(self) -> ProcessRecord:
        record = ServiceRecords(self.home / "run").read("supervisor")
        assert record is not None
        assert record.process is not None
        return record.process

    async def close(self) -> None:
        await self.call("workers.down", "--vms")
        await asyncio.to_thread(subprocess.run, ["ip", "netns", "delete", self.name], check=True)
        shutil.rmtree(self.folder)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet(Path(tempfile.mkdtemp(prefix="hst-")))
    yield fleet
    await fleet.close()


async def test_up_is_whole_and_can_be_repeated(fleet: Fleet) -> None:
    """S-2, S-42: each process has its user, secrets are in no argument or environment; a second run adopts."""
    first = await fleet.up()
    before = fleet.processes()
    assert set(before) == set(SERVICES)
    for name, process in before.items():
        assert Path(f"/proc/{process.pid}").stat().st_uid == need_user(USERS[name]).uid, name

    token = Path(first["token_path"])
    assert token.stat().st_mode & 0o777 == 0o600
    credentials = json.loads((fleet.home / "host/credentials.json").read_text())
    hidden = [token.read_text().strip(), credentials["credential"], credentials["sealing_key"]]
    for process in before.values():
        told = Path(f"/proc/{process.pid}/cmdline").read_bytes() + Path(f"/proc/{process.pid}/environ").read_bytes()
        assert not any(secret.encode() in told for secret in hidden)
    logs = b"".join(log.read_bytes() for log in (fleet.home / "logs").iterdir())
    assert not any(secret.encode() in logs for secret in hidden)

    assert read_caps(fleet.home / "host") == measure_caps(fleet.home / "host"), "H-A5: taken without a question"

    second = await fleet.up()
    assert fleet.processes() == before
    assert {key: second[key] for key in ("url", "ui_url", "ports")} == {
        key: first[key] for key in ("url", "ui_url", "ports")
    }


async def test_killed_processes_come_back_and_a_killed_supervisor_is_replaced(fleet: Fleet) -> None:
    await fleet.up()
    before = fleet.processes()
    for name, process in before.items():
        signal_process(process, signal.SIGKILL)
        await fleet.await_ready(name, not_pid=process.pid)
    kept = fleet.processes()
    code, (status,) = await fleet.call("workers.status")
    assert code == 0, status
    restarts = {service["name"]: service["restarts"] for service in status["services"]}
    assert min(restarts.values()) >= 1, restarts  # Postgres tries again until the killed one's children are gone

    supervisor = fleet.supervisor()
    signal_process(supervisor, signal.SIGKILL)
    code, (status,) = await fleet.call("workers.status")
    assert code == 1
    assert not status["supervisor"]["up"]
    assert all(service["up"] for service in status["services"]), status
    await fleet.up()
    assert fleet.processes() == kept
    assert fleet.supervisor() != supervisor


async def test_down_stops_everything_and_status_says_so(fleet: Fleet) -> None:
    await fleet.up()
    before = fleet.processes()
    code, events = await fleet.call("workers.down")
    assert (code, events[-1]["event"]) == (0, "down")
    assert not any(is_alive(process, read_boot_id()) for process in before.values())
    code, (status,) = await fleet.call("workers.status")
    assert code == 1
    assert {service["state"] for service in status["services"]} == {"stopped"}
    assert (await fleet.call("workers.down"))[0] == 0

    again = await fleet.up()
    assert again["host"]["id"] == json.loads((fleet.home / "host/credentials.json").read_text())["host_id"]


async def test_status_without_an_installation(fleet: Fleet) -> None:
    code, (status,) = await fleet.call("workers.status")
    assert code == 3
    assert "hostler up" in status["why"]
