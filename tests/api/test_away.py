"""With Temporal or Postgres away: what can be accepted is, the rest says so quickly (A-1, C5, O16)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

import pytest
from temporalio.client import Client

from runtime.converter import data_converter
from store.database import open_pool
from tests.api.conftest import World, make_world, vm_body
from tests.fixtures.rows import add_host
from tests.fixtures.temporal import free_ports


async def test_case_c5_without_temporal_it_accepts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Cases C5, O16: never connected, or away since: the row is due, the sweep takes it up; readiness is degraded."""
    (port,) = free_ports(1)
    for client in (None, await Client.connect(f"127.0.0.1:{port}", lazy=True, data_converter=data_converter(None))):
        world.parts.client = client
        began = time.monotonic()
        vm = await world.create()
        shown = await world.call("GET", f"/v1/vms/{vm['id']}")
        assert time.monotonic() - began < 2
        assert (shown.status_code, shown.json()["settled"]) == (200, False)
        assert await world.pool.fetchval("select due_at <= now() from vms where id = $1", vm["id"])
        ready = await world.client.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "degraded"})
        await world.parts.drain()
    assert "the sweep finds it" in caplog.text


class Between:
    """A door between us and Postgres that can be shut, or held so that nothing passes."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []
        self._open = asyncio.Event()
        self._open.set()
        self._shut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._shut:
            writer.close()
            return
        there, back = await asyncio.open_unix_connection(self._target)
        self._writers += [writer, back]
        with contextlib.suppress(ConnectionError, OSError):
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        writer.close()

    def shut(self) -> None:
        self._shut = True
        for writer in self._writers:
            writer.close()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._shut = False
        self._open.set()


@contextlib.asynccontextmanager
async def behind_a_door(database_url: str, folder: Path) -> AsyncIterator[tuple[World, Between]]:
    parts = urlsplit(database_url)
    target = Path(parse_qs(parts.query)["host"][0]) / ".s.PGSQL.5432"
    door = Between(target)
    server = await asyncio.start_unix_server(door.serve, folder / ".s.PGSQL.5432")
    pool = await open_pool(urlunsplit((parts.scheme, parts.netloc, parts.path, f"host={folder}", "")))
    world = await make_world(pool, folder)
    await add_host(pool, name="h1")
    async with world.client:
        yield world, door
    door.release()
    pool.terminate()
    server.close()


@pytest.mark.parametrize("how", ["shut", "hold"])
async def test_without_postgres_it_says_so_quickly(database_url: str, tmp_path: Path, how: str) -> None:
    """A-1, S-34: 503 problems that may be tried again; once it is back all goes on."""
    if "host=" not in database_url:
        pytest.skip("this test shuts a socket of Postgres, DATABASE_URL names none")
    async with behind_a_door(database_url, tmp_path) as (world, door):
        await world.token()
        vm = await world.create()
        (door.shut if how == "shut" else door.hold)()
        began = time.monotonic()
        answers = await asyncio.gather(
            world.call("GET", f"/v1/vms/{vm['id']}"),
            world.call("POST", "/v1/vms", json=vm_body()),
            world.client.get("/readyz"),
            world.as_host("hsh_0123456789abcdef_" + "0" * 72, "POST", "/v1/host/report", json={}),
        )
        assert time.monotonic() - began < 10
        assert [answer.status_code for answer in answers[:3]] == [503] * 3, [answer.text for answer in answers]
        assert answers[0].json()["retryable"]
        assert (await world.client.get("/healthz")).status_code == 200
        door.release()
        assert (await world.call("GET", f"/v1/vms/{vm['id']}")).status_code == 200
