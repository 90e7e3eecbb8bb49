"""One fleet of real processes, each of whichever release a test wants: API, control workers, one host worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import asyncpg
from temporalio.client import Client

from model.join import JoinString
from model.temporal import vm_workflow_id
from runtime.deployment import current_build
from tests.fixtures.namespaces import make_namespace, remove_namespace
from tests.fixtures.temporal import free_ports
from tests.upgrades.api import Api
from tests.upgrades.releases import Release
from workers.enrolment import ensure_joined

T = TypeVar("T")
MODULES = {"api": "workers.api", "control": "workers.control", "host": "workers.host"}
READY = {"api": b"Uvicorn running", "control": b"the control worker runs", "host": b"asks for work"}
START_SECONDS = 60
END_SECONDS = 30


@dataclass(frozen=True)
class Run:
    """One run of a VM's workflow: its type, whether it is over and how, and the build that it is pinned to."""

    type: str
    status: str
    build: str


class Fleet(Api):
    """Processes by the name that a test gives them: `api`, `host`, `control`, and `control-2` beside it."""

    def __init__(self, folder: Path, database_url: str, temporal_address: str, namespace: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        super().__init__(self.home / "host")
        self.database_url = database_url
        self.temporal_address = temporal_address
        self.namespace = namespace
        self.netns = make_namespace()
        self.port = free_ports(1)[0]
        self.first_uid = 300_000 + secrets.randbelow(50_000) * 10
        self.cgroup = f"hst-{secrets.token_hex(4)}"
        self.simulated_guests = "none"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.releases: dict[str, Release] = {}
        self.host_id = ""
        self.host_home.mkdir(parents=True, mode=0o700)

    def start(self, name: str, release: Release) -> None:
        """Begin a process of a release, and wait until it works."""
        began = self.launch(name, release)
        self.until_said(name, READY[name.partition("-")[0]], began)

    def launch(self, name: str, release: Release) -> int:
        """Begin a process of a release; return where its part of the log begins."""
        assert name not in self.processes, f"{name} runs already"
        with self.log(name).open("ab") as log:
            began = log.tell()
            self.processes[name] = subprocess.Popen(
                release.module(MODULES[name.partition("-")[0]]),
                cwd="/",
                env=self.environment(release),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.releases[name] = release
        return began

    def stop(self, name: str) -> None:
        """Ask a process to end, as its supervisor does."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_SECONDS) == 0, self.tail(name)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait(END_SECONDS)

    def replace(self, name: str, release: Release) -> None:
        self.stop(name)
        self.start(name, release)

    def ended(self, name: str) -> tuple[int, str]:
        """Wait until a process has ended by itself; return its exit status and the end of its log."""
        return self.processes.pop(name).wait(START_SECONDS), self.tail(name)

    def until_said(self, name: str, words: bytes, began: int = 0) -> None:
        """Wait until a process wrote something to its log."""
        deadline = time.monotonic() + START_SECONDS
        while words not in self.log(name).read_bytes()[began:]:
            assert self.processes[name].poll() is None, f"{name} has ended: {self.tail(name)}"
            assert time.monotonic() < deadline, f"{name} never said {words!r}: {self.tail(name)}"
            time.sleep(0.1)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def tail(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")[-3000:]

    def environment(self, release: Release) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(release.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOSTLER_HOME": str(self.home),
            "HOSTLER_URL": f"http://127.0.0.1:{self.port}",
            "HOSTLER_DATABASE_URL": self.database_url,
            "HOSTLER_TEMPORAL_ADDRESS": self.temporal_address,
            "HOSTLER_TEMPORAL_NAMESPACE": self.namespace,
            "HOSTLER_HOST_NETNS": self.netns,
            "HOSTLER_HOST_CGROUP": self.cgroup,
            "HOSTLER_HOST_UID_BASE": str(self.first_uid),
            "HOSTLER_HOST_UID_COUNT": "10",
            "HOSTLER_HOST_IMAGE_ALLOW": '["127.0.0.0/8"]',
            "HOSTLER_HOST_ALLOW_EMULATED_GUESTS": "true",
            "HOSTLER_HOST_SIMULATED_GUESTS": self.simulated_guests,
        }

    def begin(self, release: Release) -> None:
        """Bring all of it up on one release, with the host enrolled."""
        self.start("api", release)
        self.enrol(release)
        self.start("control", release)
        self.start("host", release)
        self.until_host(release)

    def enrol(self, release: Release) -> None:
        """Make a token, and register the host; its worker finds who it is."""
        made = self.run(release, "workers.token")
        self.token = made.stdout.split()[-1]
        status, given = self.call("POST", "/v1/hosts", {"name": f"h-{secrets.token_hex(3)}"})
        assert status == 201, given
        self.host_id = given["host_id"]
        if "join" in given:
            join = JoinString.parse(given["join"]).model_copy(update={"url": f"http://127.0.0.1:{self.port}"})
            asyncio.run(ensure_joined(self.host_home, join, gateway_url=self.temporal_address))
            return
        # The first release hands the credential out itself.
        reached = {
            "api_url": f"http://127.0.0.1:{self.port}",
            "temporal_address": self.temporal_address,
            "namespace": self.namespace,
        }
        place = self.host_home / "credentials.json"
        place.touch(mode=0o600)
        place.write_text(json.dumps({**given, **reached}))

    def until_host(self, release: Release) -> None:
        """Wait until the host's worker of a release has reported."""
        deadline = time.monotonic() + START_SECONDS
        while (host := self.call("GET", f"/v1/hosts/{self.host_id}")[1]).get("worker_version") != release.version:
            assert time.monotonic() < deadline, host
            time.sleep(0.1)

    def run(self, release: Release, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a release to its end."""
        return subprocess.run(
            release.module(module, *words), cwd="/", env=self.environment(release), capture_output=True, text=True
        )

    def current_build(self) -> str | None:
        """Return the build that new passes begin on."""
        return asyncio.run(self._ask(current_build))

    def runs(self, vm_id: str) -> list[Run]:
        """Return the VM's runs that Temporal shows, the oldest first."""

        async def list_runs(client: Client) -> list[Run]:
            found = [run async for run in client.list_workflows(f'WorkflowId = "{vm_workflow_id(vm_id)}"')]
            found.sort(key=lambda run: run.start_time)
            return [await _describe(client, run.id, run.run_id) for run in found]

        return asyncio.run(self._ask(list_runs))

    async def _ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        return await question(await Client.connect(self.temporal_address, namespace=self.namespace))

    def lapse(self, vm_id: str, seconds: int) -> None:
        """Have a VM's claim, and the moment at which it is due, this much sooner, as if that much time had passed."""
        asyncio.run(self._lapse(vm_id, timedelta(seconds=seconds)))

    async def _lapse(self, vm_id: str, sooner: timedelta) -> None:
        connection = await asyncpg.connect(self.database_url)
        await connection.execute(
            "update vms set claim_until = claim_until - $2::interval, due_at = due_at - $2::interval where id = $1",
            vm_id,
            sooner,
        )
        await connection.close()

    def end(self) -> None:
        """End every process of it, its guests and its network."""
        for name in ("host", *(name for name in self.processes if name != "host")):
            if name in self.processes:
                self.kill(name)
        own = set(subprocess.run(["ip", "netns", "pids", self.netns], capture_output=True, text=True).stdout.split())
        for pid in {int(pid) for pid in own} | {pid for pid, _ in self.guests().values()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remove_namespace(self.netns)


async def _describe(client: Client, workflow_id: str, run_id: str) -> Run:
    described = await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    version = described.raw_description.workflow_execution_info.versioning_info.deployment_version
    return Run(described.workflow_type, described.status.name if described.status else "", version.build_id)
