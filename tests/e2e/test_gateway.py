"""Two hosts that reach the control plane by the gateway and the API alone: what they see, and what a thief could do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import temporalio.api.workflowservice.v1 as api
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from model.temporal import CONTROL_QUEUE, host_queue, vm_workflow_id
from runtime.converter import data_converter
from runtime.gateway import connect_gateway
from tests.e2e.installation import Installation, Row
from workers.host_api import Credentials, read_credentials

SHORT = timedelta(seconds=5)
_CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Installation]:
    """An installation of two hosts whose guests are only told of."""
    made = Installation(None, "--no-demo", "--set", "HOSTLER_HOST_SIMULATED_GUESTS=beside", hosts=2)
    try:
        made.up()
        yield made
    finally:
        made.remove()


def create(fleet: Installation, host: Row) -> Row:
    body = {"name": f"on-{host['name']}", "image": "demo", "hypervisor": "simulated", "host": host["name"]}
    status, row = fleet.call("POST", "/v1/vms", body)
    assert status == 201, row
    return fleet.ready(row["id"])


def hosts_of(fleet: Installation) -> list[Row]:
    return sorted(fleet.call("GET", "/v1/hosts")[1]["items"], key=lambda host: host["name"])


def test_hosts_reach_the_gateway_and_the_api_alone(two_hosts: Installation):
    """S-7: from a host's namespace Temporal's ports are closed, and its worker is not told where Temporal is."""
    ports = two_hosts.ports
    for number in (1, 2):
        inside = ["nsenter", f"--net=/run/netns/{two_hosts.name}-h{number}", sys.executable, "-c", _CONNECT]
        reached = {
            name
            for name, port in ports.items()
            if subprocess.run([*inside, str(port)], capture_output=True, timeout=20).returncode == 0
        }
        assert reached == {"api", "gateway"}
    for name in ("host", "host-2"):
        told = Path(f"/proc/{two_hosts.process(name)['pid']}/environ").read_bytes().split(b"\0")
        assert not [pair for pair in told if pair.startswith((b"HOSTLER_TEMPORAL", b"HOSTLER_DATABASE", b"DATABASE"))]
    shown = json.loads(two_hosts.hostler("status", "--json").stdout)["services"]
    gateway = next(service for service in shown if service["name"] == "gateway")
    assert (gateway["state"], gateway["where"]) == ("ready", f"127.0.0.1:{ports['gateway']}")


def test_a_killed_gateway_costs_a_retry(two_hosts: Installation):
    """S-7: what is asked for while it is away is done when it is back, on both hosts, and no worker begins anew."""
    vms = [create(two_hosts, host) for host in hosts_of(two_hosts)]
    workers = {name: two_hosts.process(name) for name in ("host", "host-2")}
    old = two_hosts.process("gateway")
    two_hosts.kill("gateway")
    for vm in vms:
        assert two_hosts.call("POST", f"/v1/vms/{vm['id']}/restart")[0] == 202
    two_hosts.await_new_process("gateway", old)
    for vm in vms:
        two_hosts.ready(vm["id"])
    assert {name: two_hosts.process(name) for name in workers} == workers
    for vm in vms:
        assert two_hosts.call("DELETE", f"/v1/vms/{vm['id']}?now=true")[0] == 202
        two_hosts.until_gone(vm["id"])


def test_a_hosts_credential_moves_nothing_of_another(two_hosts: Installation):
    """S-7, S-45: polls, completes, starts, reads and terminates with host A's credential; B's VM goes on untouched."""
    _, theirs = hosts_of(two_hosts)
    vm = create(two_hosts, theirs)
    own = read_credentials(two_hosts.home / "host" / "credentials.json")
    assert own.host_id != theirs["id"]
    asyncio.run(trespass(own, vm["id"], host_queue(theirs["id"], theirs["instance_id"])))
    assert two_hosts.call("POST", f"/v1/vms/{vm['id']}/restart")[0] == 202
    again = two_hosts.ready(vm["id"])
    assert again["setbacks"] == 0
    two_hosts.call("DELETE", f"/v1/vms/{vm['id']}?now=true")
    two_hosts.until_gone(vm["id"])


async def trespass(own: Credentials, vm_id: str, queue: str) -> None:
    client = await connect_gateway(
        own.temporal_address,
        namespace=own.namespace,
        credential=own.credential.get_secret_value(),
        converter=data_converter(None),
        identity="thief",
    )
    service, name = client.workflow_service, {"namespace": own.namespace}
    polls = api.PollActivityTaskQueueRequest(**name)
    polls.task_queue.name = queue
    runs = client.get_workflow_handle(vm_workflow_id(vm_id))
    forged = api.RespondActivityTaskCompletedRequest(**name, task_token=b"forged")
    by_id = api.RespondActivityTaskCompletedByIdRequest(**name, workflow_id=vm_workflow_id(vm_id), activity_id="1")
    for call in (
        service.poll_activity_task_queue(polls, retry=False, timeout=SHORT),
        service.respond_activity_task_completed(forged, retry=False, timeout=SHORT),
        service.respond_activity_task_completed_by_id(by_id, retry=False, timeout=SHORT),
        start(client, vm_id),
        runs.describe(rpc_timeout=SHORT),
        runs.fetch_history(rpc_timeout=SHORT),
        runs.signal("look_again", rpc_timeout=SHORT),
        runs.terminate(rpc_timeout=SHORT),
    ):
        await assert_refused(call)


async def start(client: Client, vm_id: str) -> None:
    await client.start_workflow("ReapVm", id=vm_workflow_id(vm_id), task_queue=CONTROL_QUEUE, rpc_timeout=SHORT)


async def assert_refused(call: Awaitable[object]) -> None:
    with pytest.raises(RPCError) as error:
        await call
    assert error.value.status == RPCStatusCode.PERMISSION_DENIED
