"""The gateway between hosts and Temporal, by real workers, a real server and a hostile host (S-7, S-1, S-6)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import temporalio.api.workflowservice.v1 as api
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from grpc import StatusCode
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode, WorkflowService

from api.gateway import CallRefused, Gateway, check_queue
from api.host_credentials import HostCredentials
from model.credential import new_credential
from model.errors import Permanent, Unauthenticated, Unavailable
from model.record import HostOrder, View
from runtime.converter import data_converter
from runtime.gateway import connect_gateway
from runtime.seal import Seal
from runtime.settings import Settings
from store.host import KnownHost
from tests.fixtures.temporal import free_ports
from tests.runtime.fleet import MASTER, Fleet, a_view, an_order, host_seal, running_fleet
from workers.gateway import build_server

BOUND = 20
SERVICE = "/temporal.api.workflowservice.v1.WorkflowService"
SHORT = timedelta(seconds=5)
ALLOWED = {
    "poll_activity_task_queue",
    "respond_activity_task_completed",
    "respond_activity_task_failed",
    "respond_activity_task_canceled",
    "record_activity_task_heartbeat",
    "get_system_info",
    "describe_namespace",
    "shutdown_worker",
}


@dataclass
class Known:
    """The hosts of the fleet, as their rows would name them. `away`: Postgres does not answer."""

    texts: dict[str, str] = field(default_factory=dict)
    hosts: dict[bytes, KnownHost] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    away: bool = False

    def add(self, host_id: str) -> None:
        self.texts[host_id], credential = new_credential("hsh")
        self.hosts[credential.digest] = KnownHost(host_id, host_id, 1, credential.digest, renew=False, instance_id="i1")

    async def find(self, digest: bytes) -> KnownHost | None:
        if self.away:
            raise Unavailable("away")
        host = self.hosts.get(digest)
        if host is not None and host.id in self.revoked:
            raise Unauthenticated(f"the credential of host {host.name} was revoked")
        return host


@dataclass
class World:
    """The gateway to a fleet's namespace, and who is known there."""

    known: Known
    settings: Settings
    gateway: Gateway
    server: grpc.aio.Server
    fleet: Fleet = None  # type: ignore[assignment]

    async def client(self, host_id: str, *, seal: Seal | None = None) -> Client:
        """Connect as a host does; without its seal, as its operator or a thief could."""
        return await connect_gateway(
            self.settings.gateway_url,
            namespace=self.settings.temporal_namespace,
            credential=self.known.texts[host_id],
            converter=data_converter(seal),
            identity="somebody",
        )

    async def worker_client(self, host_id: str) -> Client:
        return await self.client(host_id, seal=host_seal(host_id))


@contextlib.asynccontextmanager
async def serving(settings: Settings, known: Known) -> AsyncIterator[World]:
    """Run a gateway where the settings say, as its process does."""
    upstream = await Client.connect(settings.temporal_address, namespace=settings.temporal_namespace)
    clock = iter(range(0, 10**9, 1000))  # every look is a fresh one
    credentials = HostCredentials(known.find, lambda: float(next(clock)))
    gateway = Gateway(upstream.workflow_service, settings.temporal_namespace, MASTER, credentials)
    server = build_server(gateway, settings)
    await server.start()
    try:
        yield World(known, settings, gateway, server)
    finally:
        gateway.end()
        await server.stop(1.0)


def settings_of(address: str, namespace: str, **more: Any) -> Settings:
    own = f"127.0.0.1:{free_ports(1)[0]}"
    named = {"gateway_url": own, "gateway_listen": own, **more}
    return Settings(temporal_address=address, temporal_namespace=namespace, **named)


@pytest_asyncio.fixture
async def world(temporal_address: str, temporal_namespace: str) -> AsyncIterator[World]:
    """Hosts a and b that reach Temporal by the gateway alone; c has a credential and no worker."""
    known = Known()
    for host_id in ("a", "b", "c"):
        known.add(host_id)
    async with serving(settings_of(temporal_address, temporal_namespace), known) as made:
        reach = made.worker_client
        async with running_fleet(temporal_address, temporal_namespace, ("a", "b"), reach=reach) as fleet:
            made.fleet = fleet
            yield made


async def poll(client: Client, queue: str) -> api.PollActivityTaskQueueResponse:
    """Ask once, as a worker does."""
    request = api.PollActivityTaskQueueRequest(namespace=client.namespace)
    request.task_queue.name = queue
    return await client.workflow_service.poll_activity_task_queue(request, retry=False, timeout=timedelta(seconds=60))


async def until_polled(world: World, queue: str) -> None:
    """Wait until Temporal has seen a poll of a queue."""
    request = api.DescribeTaskQueueRequest(namespace=world.fleet.namespace)
    request.task_queue.name, request.task_queue_type = queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    async with asyncio.timeout(BOUND):
        while not (await world.fleet.control.workflow_service.describe_task_queue(request)).pollers:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def refused(call: Awaitable[object]) -> RPCStatusCode:
    with pytest.raises(RPCError) as error:
        await call
    return error.value.status


async def test_steps_run_through_the_gateway(world: World) -> None:
    """S-7: an order that runs, one that fails, and one that is cancelled while it heartbeats."""
    told = await asyncio.wait_for((await world.fleet.start("a")).result(), BOUND)
    assert told.view is not None
    assert world.fleet.hosts["a"].ran[0].fence.attempt == 1

    async def fail(order: HostOrder) -> View:
        raise Unavailable("the image server is away")

    world.fleet.hosts["b"].body = fail
    told = await asyncio.wait_for((await world.fleet.start("b")).result(), BOUND)
    assert (told.error, told.message) == ("Unavailable", "the image server is away")

    async def wait(order: HostOrder) -> View:
        await asyncio.Event().wait()
        return a_view()

    world.fleet.hosts["a"].started.clear()
    world.fleet.hosts["a"].body = wait
    handle = await world.fleet.start("a")
    await asyncio.wait_for(world.fleet.hosts["a"].started.wait(), BOUND)
    await handle.cancel()
    with contextlib.suppress(Exception):
        await asyncio.wait_for(handle.result(), BOUND)
    assert (await handle.describe()).status is not None


async def test_nothing_else_passes(world: World) -> None:
    """S-7: no start, signal, query, terminate, list, nothing by id: every call but those of a host's own tasks."""
    handle = await world.fleet.start("b", wait=True)
    client = await world.client("a")
    names = [name for name in dir(WorkflowService) if not name.startswith("_") and name not in ALLOWED]
    assert len(names) > 60
    tried = 0
    for name in names:
        kind = getattr(api, "".join(word.capitalize() for word in name.split("_")) + "Request", None)
        if kind is None:
            continue
        request = kind()
        if "namespace" in kind.DESCRIPTOR.fields_by_name:
            request.namespace = world.fleet.namespace
        call = getattr(client.workflow_service, name)(request, retry=False, timeout=SHORT)
        assert await refused(call) == RPCStatusCode.PERMISSION_DENIED, name
        tried += 1
    assert tried > 60
    assert await refused(client.get_workflow_handle(handle.id).terminate()) == RPCStatusCode.PERMISSION_DENIED
    await handle.signal("look_again")
    assert (await asyncio.wait_for(handle.result(), BOUND)).view is not None


async def test_a_host_polls_its_own_queues_alone(world: World) -> None:
    """S-7: not another host's, not the control plane's, not those of another namespace."""
    client = await world.client("a")
    for queue in ("host/b/i1", "host/b/i1/bulk", "control", "host/a", "host//i1"):
        request = api.PollActivityTaskQueueRequest(namespace=world.fleet.namespace)
        request.task_queue.name = queue
        call = client.workflow_service.poll_activity_task_queue(request, retry=False, timeout=SHORT)
        assert await refused(call) == RPCStatusCode.PERMISSION_DENIED, queue
    request = api.PollActivityTaskQueueRequest(namespace="default")
    request.task_queue.name = "host/a/i1"
    call = client.workflow_service.poll_activity_task_queue(request, retry=False, timeout=SHORT)
    assert await refused(call) == RPCStatusCode.PERMISSION_DENIED


async def test_a_host_answers_its_own_tasks_alone(world: World) -> None:
    """S-7: a token of host c, known to host a, completes, fails, cancels and heartbeats nothing for it."""
    handle = await world.fleet.start("c", queue="host/c/i1", order=an_order("c"))
    thief, owner = await world.client("a"), await world.client("c")
    request = api.PollActivityTaskQueueRequest(namespace=world.fleet.namespace)
    request.task_queue.name = "host/c/i1"
    task = await asyncio.wait_for(owner.workflow_service.poll_activity_task_queue(request), BOUND)
    assert task.task_token
    for token in (task.task_token, task.task_token[:-1] + b"x", b"", b"x" * 200):
        told = {"namespace": world.fleet.namespace, "task_token": token}
        service = thief.workflow_service
        result = Payloads(payloads=[Payload(data=b"{}")])
        calls: list[Callable[[], Awaitable[object]]] = [
            partial(service.respond_activity_task_completed, api.RespondActivityTaskCompletedRequest(**told)),
            partial(service.respond_activity_task_failed, api.RespondActivityTaskFailedRequest(**told)),
            partial(service.respond_activity_task_canceled, api.RespondActivityTaskCanceledRequest(**told)),
            partial(service.record_activity_task_heartbeat, api.RecordActivityTaskHeartbeatRequest(**told)),
            partial(
                service.respond_activity_task_completed, api.RespondActivityTaskCompletedRequest(**told, result=result)
            ),
        ]
        for call in calls:
            assert await refused(call(retry=False, timeout=SHORT)) == RPCStatusCode.PERMISSION_DENIED  # type: ignore[call-arg]
    assert (await handle.describe()).raw_description.pending_activities[0].attempt == 1
    why = Failure(message="by its own host", application_failure_info=ApplicationFailureInfo(non_retryable=True))
    told = {"namespace": world.fleet.namespace, "task_token": task.task_token}
    failed = api.RespondActivityTaskFailedRequest(**told, failure=why)
    await owner.workflow_service.respond_activity_task_failed(failed)
    assert (await asyncio.wait_for(handle.result(), BOUND)).view is None


async def test_a_credential_that_counts_no_more_gets_nothing(world: World) -> None:
    """S-40, S-7: unknown, revoked: no poll and no answer; while Postgres is away nobody new is believed."""
    client = await world.client("a")
    request = api.GetSystemInfoRequest()
    world.known.revoked.add("a")
    call = client.workflow_service.get_system_info(request, retry=False, timeout=SHORT)
    assert await refused(call) == RPCStatusCode.UNAUTHENTICATED
    client.api_key = new_credential("hsh")[0]
    call = client.workflow_service.get_system_info(request, retry=False, timeout=SHORT)
    assert await refused(call) == RPCStatusCode.UNAUTHENTICATED
    client.api_key = None
    call = client.workflow_service.get_system_info(request, retry=False, timeout=SHORT)
    assert await refused(call) == RPCStatusCode.UNAUTHENTICATED
    world.known.away = True
    client.api_key = world.known.texts["c"]
    call = client.workflow_service.get_system_info(request, retry=False, timeout=SHORT)
    assert await refused(call) == RPCStatusCode.UNAVAILABLE


async def test_a_host_that_left_leaves_no_poll_behind(world: World) -> None:
    """S-7, L-V1: its poll ends with its stream, so that the next worker of the host gets the first attempt."""
    client = await world.client("c")
    leaving = asyncio.ensure_future(poll(client, "host/c/i1"))
    await until_polled(world, "host/c/i1")
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    handle = await world.fleet.start("c", queue="host/c/i1", order=an_order("c"))
    task = await asyncio.wait_for(poll(client, "host/c/i1"), BOUND)
    assert task.attempt == 1
    await handle.terminate()


async def test_an_open_poll_ends_with_its_credential(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-40, S-7: a revocation ends the streams of the host that it is for, and no order goes to it any more."""
    monkeypatch.setattr("api.gateway.LOOK_SECONDS", 0.1)
    client, other = await world.client("c"), await world.client("b")
    polling = asyncio.ensure_future(poll(client, "host/c/i1"))
    kept = asyncio.ensure_future(poll(other, "host/b/i1"))
    await until_polled(world, "host/c/i1")
    world.known.revoked.add("c")
    assert await asyncio.wait_for(refused(polling), BOUND) == RPCStatusCode.UNAUTHENTICATED
    handle = await world.fleet.start("c", queue="host/c/i1", order=an_order("c"))
    assert await refused(poll(client, "host/c/i1")) == RPCStatusCode.UNAUTHENTICATED
    assert not kept.done()
    kept.cancel()
    await asyncio.gather(kept, return_exceptions=True)
    await handle.terminate()


async def test_the_gateways_end_costs_a_host_a_retry(world: World) -> None:
    """S-7: polls are answered with nothing; what a host was doing is taken by the gateway that comes after."""
    ready = asyncio.Event()

    async def wait(order: HostOrder) -> View:
        await ready.wait()
        return a_view()

    host = world.fleet.hosts["a"]
    host.body = wait
    client = await world.client("c")
    polling = asyncio.ensure_future(poll(client, "host/c/i1"))
    handle = await world.fleet.start("a")
    await asyncio.wait_for(host.started.wait(), BOUND)
    world.gateway.end()
    await world.server.stop(1.0)
    assert not (await asyncio.wait_for(polling, BOUND)).task_token
    ready.set()
    async with serving(world.settings, world.known):
        assert (await asyncio.wait_for(handle.result(), BOUND)).view is not None
        assert (await asyncio.wait_for((await world.fleet.start("a")).result(), BOUND)).view is not None
    assert [order.fence.attempt for order in host.ran] == [1, 1]


async def test_what_goes_beyond_the_machine_is_encrypted(
    temporal_address: str, temporal_namespace: str, tmp_path: Path
) -> None:
    """S-34, S-7: no port in the clear but on loopback, no credential in the clear, no certificate of somebody else."""
    known = Known()
    known.add("a")
    settings = settings_of(temporal_address, temporal_namespace)
    with pytest.raises(Permanent, match="beyond this machine"):
        async with serving(settings.model_copy(update={"gateway_listen": "0.0.0.0:0"}), known):
            pytest.fail("it listened")
    certificate, key, ca = make_certificate(tmp_path)
    files = {"gateway_certificate_file": certificate, "gateway_key_file": key}
    port = settings.gateway_listen.rpartition(":")[2]
    asked: dict[str, Any] = {
        "namespace": temporal_namespace,
        "credential": known.texts["a"],
        "converter": data_converter(None),
        "identity": "a",
    }
    async with serving(settings.model_copy(update=files), known):
        url = f"https://localhost:{port}"
        client = await connect_gateway(url, ca=ca, **asked)
        await client.workflow_service.get_system_info(api.GetSystemInfoRequest(), timeout=SHORT)
        with pytest.raises(Unavailable):
            await connect_gateway(url, **asked)
        with pytest.raises(Unavailable):
            await connect_gateway(f"localhost:{port}", **asked)
    with pytest.raises(Permanent, match="in the clear"):
        await connect_gateway(f"192.0.2.1:{port}", **asked)


def make_certificate(folder: Path) -> tuple[Path, Path, bytes]:
    """Make a key, 0600, and a certificate for localhost; return both, and the authority that signed it (PEM)."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    san = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    ca = sign("ca", ca_key, "ca", ca_key, x509.BasicConstraints(ca=True, path_length=0))
    own = sign("localhost", key, "ca", ca_key, san)
    paths = folder / "gateway.crt", folder / "gateway.key"
    paths[0].write_bytes(own.public_bytes(Encoding.PEM))
    paths[1].touch(mode=0o600)
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return *paths, ca.public_bytes(Encoding.PEM)


def sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.now(UTC)
    named, issued = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer))
    builder = x509.CertificateBuilder().subject_name(named).issuer_name(issued).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).add_extension(extension, critical=False)
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    return builder.sign(issuer_key, hashes.SHA256())


async def test_believed_for_a_while() -> None:
    """S-40: ten seconds without a look, fifty while Postgres is away; a revocation works within a minute."""
    known, now = Known(), [100.0]
    known.add("a")
    credentials = HostCredentials(known.find, lambda: now[0])
    bearer = f"Bearer {known.texts['a']}"
    assert (await credentials.host_of(bearer)).id == "a"
    known.away = True
    for now[0] in (109.0, 149.0):
        assert (await credentials.host_of(bearer)).id == "a"
    now[0] = 151.0
    with pytest.raises(Unavailable):
        await credentials.host_of(bearer)
    known.away = False
    assert (await credentials.host_of(bearer)).id == "a"
    known.revoked.add("a")
    assert (await credentials.host_of(bearer)).id == "a"
    now[0] = 162.0
    with pytest.raises(Unauthenticated):
        await credentials.host_of(bearer)


def test_whose_queue_it_is() -> None:
    """H-E4, S-7: whole names, one spelling, of the instance that reported last; another one of the host's waits."""
    host = KnownHost("h1", "h1", 1, b"", renew=False, instance_id="i1")
    for queue in ("host/h1/i1", "host/h1/i1/bulk"):
        check_queue(queue, host)
    bad = ("host/h2/i1", "host/h1", "xhost/h1/i1", "control", "", "host/h11/i1")
    others = (
        "host/h1/i2",
        "host/h1/",
        "host/h1/i1/x",
        "host/h1/I1",
        "host/h1/i1\n",
        "host/h1//bulk",
        "host/h1/i1/bulk/",
    )
    for queues, status in ((bad, StatusCode.PERMISSION_DENIED), (others, StatusCode.UNAVAILABLE)):
        for queue in queues:
            with pytest.raises(CallRefused) as error:
                check_queue(queue, host)
            assert error.value.status == status, queue
    with pytest.raises(CallRefused):
        check_queue("host/h1/None", KnownHost("h1", "h1", 1, b"", renew=False))


async def test_what_is_no_call_ends(world: World) -> None:
    """S-1, S-6: garbage, an HTTP/1.1 request, a message over the limit: that ends, the others go on."""
    host, port = world.settings.gateway_url.split(":")
    for sent in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        await writer.drain()
        await asyncio.wait_for(reader.read(), BOUND)
        writer.close()
    async with grpc.aio.insecure_channel(world.settings.gateway_url) as channel:
        call = channel.unary_unary(f"{SERVICE}/PollActivityTaskQueue")
        bearer = (("authorization", f"Bearer {world.known.texts['c']}"),)
        cases = ((b"\xff" * 9, StatusCode.INVALID_ARGUMENT), (bytes(5 << 20), StatusCode.RESOURCE_EXHAUSTED))
        for message, status in cases:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(message, metadata=bearer, timeout=BOUND)
            assert error.value.code() == status
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", metadata=bearer, timeout=BOUND)
        assert error.value.code() == StatusCode.PERMISSION_DENIED
    told = await asyncio.wait_for((await world.fleet.start("a")).result(), BOUND)
    assert told.view is not None
