"""The real API over real Postgres. HTTP is real too where the guard, sizes or hang-ups matter."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
import uvicorn

from api.app import create_app
from api.pace import Pace
from api.parts import Parts
from model.credential import new_credential
from model.text import clean_text
from runtime.keys import MasterKeys
from runtime.ssh_ca import SshCa
from store.audit import Actor
from store.database import Pool, open_pool
from store.fleet import get_fleet
from store.token import Role, TokenStore
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.rows import HOST_ACTIVITIES, add_host

ACTOR = Actor("test")
SHA = "a" * 64
IMAGE = {"url": "https://images.test/root.qcow2", "sha256": SHA}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1mXj0gWSl7V7sOPBFTyB0FQZ3ZGSLRzLMDCPDNNJ0K me@here"
Answer = httpx2.Response


@dataclass
class World:
    """A fleet's API as its callers see it: `call` as whom, what, where."""

    pool: Pool
    parts: Parts
    keys: Path
    client: httpx2.AsyncClient
    tokens: dict[tuple[str, str | None], str] = field(default_factory=dict)

    async def token(self, role: Role = "admin", project: str | None = None, *, days: float = 1) -> str:
        """A token of this role, made once."""
        if (role, project) not in self.tokens or days != 1:
            text, credential = new_credential("hst")
            await TokenStore(self.pool).add(
                token_id=credential.id,
                digest=credential.digest,
                role=role,
                project=project,
                lifetime=timedelta(days=days),
                actor=ACTOR,
            )
            self.tokens[role, project] = text
        return self.tokens[role, project]

    async def call(
        self, method: str, path: str, *, role: Role | None = None, project: str | None = None, **options: Any
    ) -> Answer:
        """Call as `role` of `project` (else with all rights); each answer is judged: an error is a problem document."""
        role = role or ("operator" if project else "admin")
        headers = {"authorization": f"Bearer {await self.token(role, project)}", **options.pop("headers", {})}
        return judged(await self.client.request(method, path, headers=headers, **options))

    async def as_host(self, credential: str, method: str, path: str, **options: Any) -> Answer:
        headers = {"authorization": f"Bearer {credential}", **options.pop("headers", {})}
        return judged(await self.client.request(method, path, headers=headers, **options))

    async def create(self, project: str | None = None, **changed: Any) -> dict[str, Any]:
        """Make a VM as that project's operator and return its row."""
        answer = await self.call("POST", "/v1/vms", role="operator", project=project, json=vm_body(**changed))
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def add_host(self, **columns: Any) -> tuple[str, str]:
        """Insert a host that is ready; return its id and its credential."""
        text, credential = new_credential("hsh")
        return await add_host(self.pool, credential_hash=credential.digest, **columns), text


def vm_body(**changed: Any) -> dict[str, Any]:
    return {"name": f"vm-{uuid.uuid4().hex[:12]}", "image": IMAGE, **changed}


def judged(answer: Answer) -> Answer:
    """A-1: what holds for every answer of the API, whatever was sent."""
    assert answer.status_code < 500 or answer.status_code == 503, (answer.status_code, answer.text)
    assert answer.headers["cache-control"] == "no-store"
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        document = answer.json()
        assert document["status"] == answer.status_code
        assert set(document) - {"errors"} == {"type", "title", "status", "detail", "retryable"}
        assert document["detail"] == clean_text(document["detail"])
        for error in document.get("errors", []):
            assert error["detail"]
            assert ("pointer" in error) != ("parameter" in error)
            assert error.get("pointer", "") == "" or error["pointer"].startswith("/")
    return answer


def report_of(number: int, vms: list[dict[str, Any]] | None = None, **changed: Any) -> dict[str, Any]:
    """A report as a host worker sends it."""
    return {
        "number": number,
        "instance_id": "i1",
        "machine_id": "m1",
        "boot_id": "b1",
        "worker_version": "dev",
        "clock": datetime.now(UTC).isoformat(),
        "whole": True,
        "activity_names": HOST_ACTIVITIES,
        "vms": vms or [],
        **changed,
    }


def vm_report(vm_id: str, *, power_state: str | None = "running", revision: int = 1, **changed: Any) -> dict[str, Any]:
    observed = {
        "boot_id": "b1",
        "power_state": power_state,
        "revision": revision,
        "seen_at": datetime.now(UTC).isoformat(),
        **changed.pop("observed", {}),
    }
    return {"vm_id": vm_id, "observed": observed, **changed}


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = 20) -> Any:
    """Wait on a level with a bound."""
    async with asyncio.timeout(seconds):
        while not (found := await condition()):  # noqa: ASYNC110 - a level in another process
            await asyncio.sleep(0.02)
    return found


async def make_world(pool: Pool, keys: Path) -> World:
    fleet, authority = await get_fleet(pool), SshCa(keys / "ssh_host_ca")
    parts = Parts(pool=pool, keys=MasterKeys(b"k" * 32), fleet_id=fleet.id, authority=authority)
    parts.reports = Pace(per_second=1000, ahead=1000)  # the hosts of a test report as fast as it goes on
    transport = httpx2.ASGITransport(create_app(parts))
    return World(
        pool, parts, keys, httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8460", timeout=30)
    )


@contextlib.asynccontextmanager
async def served(parts: Parts) -> AsyncIterator[str]:
    """Serve on a free port as the API's process does; yields the URL."""
    config = uvicorn.Config(
        create_app(parts), host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    serving = asyncio.create_task(server.serve())
    await until(lambda: asyncio.sleep(0, server.started))
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def world(pool: Pool, tmp_path: Path) -> AsyncIterator[World]:
    """The API with one ready host, called without a socket."""
    world = await make_world(pool, tmp_path / "keys")
    await add_host(pool, name="h1")
    async with world.client:
        yield world
        await world.parts.drain()


@pytest.fixture
async def url(world: World) -> AsyncIterator[str]:
    """The same API on a port of loopback."""
    async with served(world.parts) as url:
        yield url


@pytest.fixture
def call_often(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Callable[[str, str, bytes], Answer]]:
    """Call again and again without a running loop, as hypothesis needs it: one API with a host and the VM `there`."""
    name = f"t_{uuid.uuid4().hex}"
    with asyncio.Runner() as runner:
        runner.run(run_sql(postgres_server.url, f'create database "{name}" template "{postgres_server.template}"'))
        pool = runner.run(open_pool(postgres_server.url_of(name)))
        world = runner.run(make_world(pool, tmp_path / "keys"))
        _, host = runner.run(world.add_host(name="h1", instance_id=None))
        runner.run(world.call("PUT", "/v1/vms/there", json=vm_body(host="h1")))

        def call(method: str, path: str, content: bytes) -> Answer:
            json_type = {"content-type": "application/json"}
            if path.startswith("/v1/host/"):
                return runner.run(world.as_host(host, method, path, content=content, headers=json_type))
            return runner.run(world.call(method, path, content=content, headers=json_type))

        yield call
        # What was stored can be read again (I9).
        for path in ("/v1/vms/there", "/v1/vms?limit=500", "/v1/images?limit=500", "/v1/hosts?limit=500"):
            assert runner.run(world.call("GET", path)).status_code == 200, path
        assert runner.run(world.call("GET", "/v1/hosts/h1/foreign")).status_code == 200
        runner.run(world.client.aclose())
        runner.run(pool.close())
        runner.run(run_sql(postgres_server.url, f'drop database "{name}" with (force)'))


async def run_sql(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
