"""A whole fleet of real processes in a folder of its own, with a gate before each server."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import asyncpg
import httpx2

from drivers.simulated import Simulation
from model.join import JoinString
from runtime.temporal_server import ServerPorts, dev_server_arguments, find_temporal_binary
from tests.chaos.gates import Gate, to_path, to_port
from tests.chaos.journal import Machine
from tests.chaos.log import Log
from tests.chaos.programs import Program
from tests.chaos.real import RealGuests, serve_demo_guest
from tests.chaos.tricks import Tricks, build_library
from tests.fixtures.postgres import ENVIRONMENT, PreparedPostgres, prepare_postgres
from tests.fixtures.temporal import free_ports
from workers.enrolment import ensure_joined

PROJECT = Path(__file__).resolve().parents[2]
IMAGE_BYTES = 1 << 20
DISK_MIB = 640
SPARED_SECONDS = 4.0
START_SECONDS = 90
CGROUP = "CHAOS_CGROUP"
"""The variable that names the control group of this run's guests."""
CONTROLS = ("control-1", "control-2")
WAYS = {
    "users": (("api", "postgres"), (3.0, 10.0)),
    "work": (("temporal", "gateway", "host"), (3.0, 12.0)),
}
READY = {
    "postgres": b"ready to accept connections",
    "temporal": b"Temporal Server:",
    "api": b"Uvicorn running",
    "gateway": b"hosts reach the gateway",
    "host": b"asks for work",
    **dict.fromkeys(CONTROLS, b"the control worker runs"),
}


@dataclass
class Way:
    """What must work for something to be done. One fault at a time is in it, and a rest follows, or nothing is done.

    needs: the programs that must work. rest: for how long they have worked before the next fault, at least and at most.
    """

    needs: tuple[str, ...]
    rest: tuple[float, float]
    taken: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: float = 0
    resting_seconds: float = 0


@dataclass
class Fleet:
    """The processes, and what stands between them. gates: by client and server, as `host>api`."""

    folder: Path
    log: Log
    seed: str
    programs: dict[str, Program] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)
    tricks: dict[str, Tricks] = field(default_factory=dict)
    token: str = ""
    url: str = ""
    host_id: str = ""
    images: dict[str, Any] = field(default_factory=dict)
    """What a VM of each hypervisor is made from."""
    ways: dict[str, Way] = field(default_factory=lambda: {name: Way(*rest) for name, rest in WAYS.items()})
    played: dict[str, asyncio.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = self.folder / "home"
        self.host = self.home / "host"
        self.boot_id_path = self.folder / "boot_id"
        self.simulation = Simulation(self.host / "simulated", self.boot_id)
        self.real = RealGuests(self.folder / "sys")
        self.machine = Machine(self.host, self.boot_id, self.real)
        self.ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self.temporal_file = self.folder / "temporal" / "temporal.db"
        self.postgres: PreparedPostgres = None  # type: ignore[assignment] # made by start

    def boot_id(self) -> str:
        return self.boot_id_path.read_text().strip()

    def new_boot(self) -> None:
        """Give the machine the boot id of another boot."""
        new = self.boot_id_path.with_suffix(".new")
        new.write_text(f"{uuid.uuid4()}\n")
        new.rename(self.boot_id_path)

    async def start(self) -> None:
        """Bring everything up, enrol the host and register the image."""
        self._make_folders()
        library = build_library(self.folder)
        # It is killed here: what it said that it has committed must be there afterwards.
        self.postgres = await asyncio.to_thread(prepare_postgres, self.folder / "postgres", synchronous_commit="on")
        for name in ("api", "gateway", *CONTROLS, "host"):
            self.tricks[name] = Tricks(self.folder / f"{name}.tricks", library)
        await self._open_gates()
        self._add("postgres", self.postgres.arguments, ENVIRONMENT)
        self.programs["postgres"].end_signal = signal.SIGINT
        self._add("temporal", self._temporal_arguments(), {"HOME": str(self.folder), "PATH": os.environ["PATH"]})
        self._add_ours("api", "workers.api")
        self._add_ours("gateway", "workers.gateway")
        for name in CONTROLS:
            self._add_ours(name, "workers.control")
        self._add_ours("host", "workers.host")
        for name in ("postgres", "temporal", "api"):
            self.programs[name].keep()
        self.url = f"http://127.0.0.1:{self.ports['users>api']}"
        await self.until("the API answers", self._is_up)
        self.token = await asyncio.to_thread(self._make_token)
        await self._enrol()
        for name in ("gateway", *CONTROLS, "host"):
            self.programs[name].keep()
        await self.until("the host reports", self._has_reported)

    async def until(self, what: str, holds: Callable[[], Any]) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await holds():  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise RuntimeError(f"it never came about that {what}: see the logs in {self.folder}") from None

    async def stop(self) -> None:
        """End every process."""
        for name in ("host", *CONTROLS, "gateway", "api", "temporal", "postgres"):
            if name in self.programs:
                await self.programs[name].put_away()
        for gate in self.gates.values():
            await gate.close()

    async def connect(self) -> asyncpg.Connection:
        """Ask Postgres itself, past every gate."""
        return await asyncpg.connect(self.postgres.url, timeout=10)

    def client(self, gate: str = "users>api") -> httpx2.AsyncClient:
        """Return a client of the API, as a user or, by the API's own port, as nobody's fault touches."""
        return httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{self.ports[gate]}",
            headers={"authorization": f"Bearer {self.token}"} if self.token else {},
            timeout=8,
            trust_env=False,
        )

    def _make_folders(self) -> None:
        self.folder.chmod(0o711)
        for folder in (self.home, self.host, self.folder / "served", self.folder / "logs"):
            folder.mkdir(mode=0o700)
        for folder in (self.folder / "postgres", self.folder / "temporal"):
            folder.mkdir(mode=0o711)
        size = f"size={DISK_MIB}m,mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "chaos", self.host], check=True)
        # The network is this run's own; the view of it that the file system has is still the machine's.
        (self.folder / "sys").mkdir()
        subprocess.run(["mount", "-t", "sysfs", "sysfs", self.folder / "sys"], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        self.new_boot()

    async def _open_gates(self) -> None:
        for client in ("users", "host"):
            self.gates[f"{client}>api"] = Gate(to_port(self.ports["api"]), port=self.ports[f"{client}>api"])
        self.gates["host>gateway"] = Gate(to_port(self.ports["gateway"]), port=self.ports["host>gateway"])
        for client in ("api", "control", "gateway"):
            gate = Gate(to_port(self.ports["temporal"]), port=self.ports[f"{client}>temporal"])
            self.gates[f"{client}>temporal"] = gate
        for client in ("api", "control", "gateway"):
            folder = self.folder / f"{client}-postgres"
            folder.mkdir()
            name = ".s.PGSQL.5432"
            self.gates[f"{client}>postgres"] = Gate(to_path(self.postgres.socket / name), path=folder / name)
        for gate in self.gates.values():
            await gate.open()

    def _add(self, name: str, argv: Any, environment: dict[str, str]) -> None:
        log = self.folder / "logs" / f"{name}.log"
        self.programs[name] = Program(name, argv, environment, log, Random(f"{self.seed}/keeper/{name}"), READY[name])
        self.programs[name].spared_seconds = SPARED_SECONDS
        self.programs[name].note = lambda text: self.log.note("keeper", text)

    def _add_ours(self, name: str, module: str) -> None:
        client = "control" if name in CONTROLS else name
        environment = {**self._environment(client), **self.tricks[name].environment}
        self._add(name, [sys.executable, "-P", "-m", module], environment)

    def _environment(self, client: str) -> dict[str, str]:
        database = self.postgres.url.partition("?")[0] + "?host=" + quote(str(self.folder / f"{client}-postgres"))
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PROJECT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOSTLER_HOME": str(self.home),
            "HOSTLER_URL": f"http://127.0.0.1:{self.ports['api']}",
            "HOSTLER_DATABASE_URL": database,
            "HOSTLER_TEMPORAL_ADDRESS": f"127.0.0.1:{self.ports.get(f'{client}>temporal', 0)}",
            "HOSTLER_GATEWAY_LISTEN": f"127.0.0.1:{self.ports['gateway']}",
            "HOSTLER_HOST_SIMULATED_GUESTS": "beside",
            "HOSTLER_HOST_ALLOW_EMULATED_GUESTS": "true",
            "HOSTLER_HOST_CGROUP": os.environ[CGROUP],
            "HOSTLER_HOST_BOOT_ID_PATH": str(self.boot_id_path),
            "HOSTLER_HOST_IMAGE_FILE_ROOT": str(self.folder / "served"),
        }

    def _temporal_arguments(self) -> tuple[str, ...]:
        ports = ServerPorts(self.ports["temporal"], self.ports["temporal-http"], self.ports["temporal-metrics"])
        return dev_server_arguments(find_temporal_binary(), ports=ports, data_file=self.temporal_file)

    def _make_token(self) -> str:
        argv = [sys.executable, "-P", "-m", "workers.token"]
        made = subprocess.run(argv, env=self._environment("api"), cwd="/", capture_output=True, text=True, check=True)
        return made.stdout.split()[-1]

    async def _enrol(self) -> None:
        served = self.folder / "served" / "root.raw"
        served.write_bytes(bytes(IMAGE_BYTES))
        digest = hashlib.sha256(served.read_bytes()).hexdigest()
        told = {"url": served.as_uri(), "sha256": digest, "format": "raw"}
        demo = await asyncio.to_thread(serve_demo_guest, self.folder / "served")
        self.images = {"simulated": told, "qemu": demo["name"]}
        async with self.client() as client:
            answer = await client.post("/v1/hosts", json={"name": f"h-{secrets.token_hex(3)}"})
            (await client.post("/v1/images", json=demo)).raise_for_status()
        given = answer.raise_for_status().json()
        join = JoinString.parse(given["join"])
        join = join.model_copy(update={"url": f"http://127.0.0.1:{self.ports['host>api']}"})
        gateway = f"127.0.0.1:{self.ports['host>gateway']}"
        self.host_id = await ensure_joined(self.host, join, gateway_url=gateway)

    async def _is_up(self) -> bool:
        try:
            async with self.client() as client:
                return (await client.get("/readyz")).status_code == 200
        except httpx2.HTTPError:
            return False

    async def _has_reported(self) -> bool:
        async with self.client() as client:
            answer = await client.get(f"/v1/hosts/{self.host_id}")
        return answer.status_code == 200 and bool(answer.json()["instance_id"])


_PORTS = (
    "api",
    "temporal",
    "temporal-http",
    "temporal-metrics",
    "gateway",
    "users>api",
    "host>api",
    "api>temporal",
    "control>temporal",
    "gateway>temporal",
    "host>gateway",
)
