"""The gateway's own process, over real Postgres and Temporal: whom it knows, when it forgets them, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import temporalio.api.workflowservice.v1 as api
from pydantic import SecretStr
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from model.credential import new_credential
from model.temporal import host_queue
from runtime.converter import data_converter
from runtime.gateway import connect_gateway
from runtime.settings import Settings
from store.database import Pool
from tests.fixtures.rows import add_host
from tests.fixtures.temporal import free_ports
from workers import gateway
from workers.service_hostler import is_listening

BOUND = 20


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[asyncio.Event]:
    """Run the process' main until told to stop; it ends by itself then."""
    stopping = asyncio.Event()
    serving = asyncio.create_task(gateway.main(settings, stopping))
    port = int(settings.gateway_listen.rpartition(":")[2])
    async with asyncio.timeout(BOUND):
        while not await is_listening(port):
            assert not serving.done(), serving
            await asyncio.sleep(0.05)
    yield stopping
    stopping.set()
    await asyncio.wait_for(serving, BOUND)


async def poll(client: Client, queue: str) -> api.PollActivityTaskQueueResponse:
    request = api.PollActivityTaskQueueRequest(namespace=client.namespace)
    request.task_queue.name = queue
    return await client.workflow_service.poll_activity_task_queue(request, retry=False, timeout=timedelta(seconds=60))


async def refusal(client: Client, queue: str) -> RPCStatusCode:
    with pytest.raises(RPCError) as error:
        await asyncio.wait_for(poll(client, queue), BOUND)
    return error.value.status


async def test_hosts_are_known_by_their_rows(
    pool: Pool,
    database_url: str,
    temporal_address: str,
    temporal_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S-7, S-40, H-E4: by credential and present instance; an open poll ends by a revocation, and with the gateway."""
    monkeypatch.setattr("api.host_credentials.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("api.gateway.LOOK_SECONDS", 0.1)
    own = f"127.0.0.1:{free_ports(1)[0]}"
    settings = Settings(
        home=tmp_path,
        database_url=SecretStr(database_url),
        temporal_address=temporal_address,
        temporal_namespace=temporal_namespace,
        gateway_url=own,
        gateway_listen=own,
    )
    hosts: dict[str, str] = {}
    clients: dict[str, Client] = {}
    async with running(settings) as stopping:
        for name in ("h1", "h2"):
            text, credential = new_credential("hsh")
            hosts[name] = await add_host(pool, name=name, instance_id="i1", credential_hash=credential.digest)
            clients[name] = await connect_gateway(
                own, namespace=temporal_namespace, credential=text, converter=data_converter(None), identity=name
            )
        for instance in ("i2", "None", ""):
            assert await refusal(clients["h1"], host_queue(hosts["h1"], instance)) == RPCStatusCode.UNAVAILABLE
        assert await refusal(clients["h1"], host_queue(hosts["h2"], "i1")) == RPCStatusCode.PERMISSION_DENIED
        first, second = (asyncio.create_task(poll(clients[name], host_queue(hosts[name], "i1"))) for name in hosts)
        await asyncio.sleep(0)
        await pool.execute("update hosts set credential_revoked_at = now() where name = 'h1'")
        with pytest.raises(RPCError) as error:
            await asyncio.wait_for(first, BOUND)
        assert error.value.status == RPCStatusCode.UNAUTHENTICATED
        assert not second.done()
        stopping.set()
        assert not (await asyncio.wait_for(second, BOUND)).task_token
