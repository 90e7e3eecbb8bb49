"""What hosts tell and ask: reports that wake, inputs for the row's host, errands in time (H-S6, H-S11, S-5)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from api.errands import Errands
from model.credential import new_credential
from model.errors import Unavailable
from model.ids import new_id
from model.join import JoinString
from runtime.keys import MasterKeys
from tests.api.conftest import World, report_of, until, vm_report


@pytest.fixture
async def host(world: World) -> tuple[str, str]:
    """A host that has not reported yet: its id, its credential."""
    return await world.add_host(name="h2", status="joining", instance_id=None, last_report_at=None)


async def wakes(world: World) -> dict[str, int]:
    return {row["id"]: row["wake"] for row in await world.pool.fetch("select id, wake from vms")}


async def joined(world: World, join: str) -> tuple[dict[str, Any], str]:
    """Trade a join string as a host does; return the answer, and the host's own credential."""
    text, credential = new_credential("hsh")
    body = {"credential_digest": credential.digest.hex(), "machine_id": "m1"}
    answer = await world.as_host(JoinString.parse(join).token, "POST", "/v1/host/join", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json(), text


async def test_an_enrolled_host_can_report_at_once(world: World) -> None:
    """H-E1, H-E2: the answer holds all it needs, once; its first report makes it ready."""
    added = await world.call("POST", "/v1/hosts", json={"name": "new"})
    assert added.status_code == 201
    given, credential = await joined(world, added.json()["join"])
    assert base64.b64decode(given["sealing_key"]) == world.parts.keys.host_key(given["host_id"])
    assert (given["fleet_id"], given["name"]) == (world.parts.fleet_id, "new")
    assert (await world.call("GET", "/v1/hosts/new")).json()["status"] == "joining"
    taken = await world.as_host(credential, "POST", "/v1/host/report", json=report_of(1))
    assert (taken.json()["acknowledged"], taken.json()["epoch"]) == (1, 1)
    shown = (await world.call("GET", f"/v1/hosts/{given['host_id']}")).json()
    assert (shown["status"], shown["silent"], shown["instance_id"]) == ("ready", False, "i1")


async def test_a_report_wakes_what_moved_and_nothing_else(world: World, host: tuple[str, str]) -> None:
    """H-S11, S-6: news of its own VMs; another host's and unknown ones are only shown as foreign."""
    _, credential = host
    mine, quiet = [(await world.create(host="h2"))["id"] for _ in range(2)]
    other = (await world.create(host="h1"))["id"]
    await world.pool.execute(
        "update vms set phase = 'ready', observed_power_state = 'running', due_at = null, wake = 1"
    )
    unknown = new_id()
    news = [vm_report(vm_id, power_state=p) for vm_id, p in ((mine, "stopped"), (quiet, "running"), (other, "stopped"))]
    report = report_of(1, [*news, vm_report(unknown)])
    await world.pool.execute("update hosts set status = 'ready', instance_id = 'i1', last_report_at = now()")
    answer = await world.as_host(credential, "POST", "/v1/host/report", json=report)
    assert answer.status_code == 200
    assert await wakes(world) == {mine: 2, quiet: 1, other: 1}
    assert (await world.call("GET", f"/v1/vms/{mine}")).json()["power_state"] == "stopped"
    assert (await world.call("GET", f"/v1/vms/{other}")).json()["power_state"] == "running"
    foreign = (await world.call("GET", "/v1/hosts/h2/foreign")).json()["items"]
    assert {item["vm_id"] for item in foreign} == {other, unknown}
    again = await world.as_host(credential, "POST", "/v1/host/report", json=report)
    assert (again.json()["acknowledged"], await wakes(world)) == (1, {mine: 2, quiet: 1, other: 1})


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"number": 1 << 63}, "/number"),
        ({"number": "x"}, "/number"),
        ({"clock": "0001-01-01T00:00:00Z"}, "/clock"),
        ({"clock": "yesterday"}, "/clock"),
        ({"vms": [vm_report("a", observed={"revision": 1 << 63})]}, "/vms/0/observed/revision"),
        ({"vms": [vm_report("a", observed={"restart_count": 1 << 31})]}, "/vms/0/observed/restart_count"),
        ({"vms": [vm_report("a", observed={"seen_at": "9999-12-31T23:59:59-14:00"})]}, "/vms/0/observed/seen_at"),
        ({"vms": {}}, "/vms"),
    ],
)
async def test_a_report_of_what_cannot_be(
    world: World, host: tuple[str, str], changed: dict[str, Any], pointer: str
) -> None:
    """S-1: refused with its place; nothing of it is stored."""
    answer = await world.as_host(host[1], "POST", "/v1/host/report", json={**report_of(1), **changed})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert (await world.call("GET", "/v1/hosts/h2")).json()["last_report_at"] is None


async def test_a_report_of_a_newer_release_is_understood(world: World, host: tuple[str, str]) -> None:
    """I7: fields that are not known yet are no error."""
    report = report_of(1, [vm_report("a", later=1)], later={"x": 1})
    assert (await world.as_host(host[1], "POST", "/v1/host/report", json=report)).status_code == 200


async def test_an_input_is_for_its_host_and_digest(world: World, host: tuple[str, str]) -> None:
    """S-5: none for another digest; without its key it is nobody's fault that would use up an attempt."""
    vm = await world.create(host="h2", user_data="x")
    digest = await world.pool.fetchval("select input_digest from vms")
    where = f"/v1/host/vms/{vm['id']}/input"
    assert (await world.as_host(host[1], "GET", f"{where}?digest={digest}")).status_code == 200
    assert (await world.as_host(host[1], "GET", f"{where}?digest={'0' * 64}")).status_code == 409
    assert (await world.as_host(host[1], "GET", where)).status_code == 422
    unknown = f"/v1/host/vms/{new_id()}/input?digest={digest}"
    assert (await world.as_host(host[1], "GET", unknown)).status_code == 404
    world.parts.keys = MasterKeys(b"x" * 32)
    assert (await world.as_host(host[1], "GET", f"{where}?digest={digest}")).status_code == 503


async def test_a_console_is_asked_of_the_vms_host(world: World, host: tuple[str, str]) -> None:
    """A-2, H-E4: the host comes for the question; its answer is shown as it is, cut to what was asked for."""
    await world.pool.execute("update hosts set status = 'ready', instance_id = 'i1', last_report_at = now()")
    vm = await world.create(host="h2")
    _, other = await world.add_host(name="h3")
    taking = asyncio.create_task(world.as_host(host[1], "GET", "/v1/host/errands"))
    asking = asyncio.create_task(world.call("GET", f"/v1/vms/{vm['id']}/console?bytes=6"))
    (errand,) = (await taking).json()["items"]
    assert errand == {"id": errand["id"], "kind": "console", "vm_id": vm["id"], "limit_bytes": 6}
    where = f"/v1/host/errands/{errand['id']}"
    forged = await world.as_host(other, "POST", where, content=b"forged")
    assert forged.json() == {"taken": False}
    assert (await world.as_host(other, "GET", "/v1/host/errands?wait_seconds=0")).json() == {"items": []}
    assert not asking.done()
    raw = b"login: \x1b[0m\xff\x00"
    assert (await world.as_host(host[1], "POST", where, content=raw)).json() == {"taken": True}
    assert base64.b64decode((await asking).json()["data"]) == raw[-6:]
    assert (await world.as_host(host[1], "POST", where, content=raw)).json() == {"taken": False}
    assert (await world.call("GET", f"/v1/vms/{vm['id']}/console", role="viewer")).status_code == 403


async def test_a_console_that_nobody_answers_is_503(world: World) -> None:
    """A-1: in time, and at once where the host is silent; what is asked no more is handed to no one."""
    world.parts.errands = Errands(wait_seconds=0.2)
    vm = await world.create(host="h1")
    answer = await world.call("GET", f"/v1/vms/{vm['id']}/console")
    assert (answer.status_code, answer.json()["retryable"]) == (503, True)
    host_id = await world.pool.fetchval("select id from hosts")
    assert await world.parts.errands.take(host_id, 0) == []
    await world.pool.execute("update hosts set last_report_at = now() - interval '1 hour'")
    await world.pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 hour'")
    world.parts.errands = Errands(wait_seconds=60)
    answer = await world.call("GET", f"/v1/vms/{vm['id']}/console")
    assert (answer.status_code, "silent" in answer.json()["detail"]) == (503, True)


async def test_a_worker_that_hung_up_takes_no_errand(world: World, url: str) -> None:
    """H-E5: the worker that comes after it does."""
    _, credential = await world.add_host(name="h2")
    vm = await world.create(host="h2")
    _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    host = f"Host: 127.0.0.1:{urlsplit(url).port}"
    head = ["GET /v1/host/errands?wait_seconds=30 HTTP/1.1", host, f"Authorization: Bearer {credential}", "", ""]
    writer.write("\r\n".join(head).encode())
    await writer.drain()
    host_id = vm["host"]["id"]
    waiting = world.parts.errands
    await until(lambda: asyncio.sleep(0, host_id in waiting._hosts))
    writer.close()
    await writer.wait_closed()
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        # The server sees the end of one connection before it reads what comes later on another.
        await client.get("/healthz")
        await asyncio.sleep(0.1)
        asking = asyncio.create_task(world.call("GET", f"/v1/vms/{vm['id']}/console"))
        taken = await client.get("/v1/host/errands", headers={"authorization": f"Bearer {credential}"})
        (errand,) = taken.json()["items"]
        await client.post(
            f"/v1/host/errands/{errand['id']}", headers={"authorization": f"Bearer {credential}"}, content=b"here"
        )
    assert base64.b64decode((await asking).json()["data"]) == b"here"


async def test_errands_are_bounded() -> None:
    """S-44: a host that does not come for them is asked no more."""
    errands = Errands(wait_seconds=60)
    asking = [asyncio.create_task(errands.ask("h", "console", "v", 1)) for _ in range(64)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="too many"):
        await errands.ask("h", "console", "v", 1)
    other = asyncio.create_task(errands.ask("other", "console", "v", 1))
    await asyncio.sleep(0)
    assert len(await errands.take("other", 0)) == 1
    for task in (*asking, other):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert await errands.take("h", 0) == []
