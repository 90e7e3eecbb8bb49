"""VMs through the API: made once, changed under a generation, deleted with a grace, brought back (L-N4, A-4, L-R3)."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model.ids import new_id
from tests.api.conftest import IMAGE, KEY, World, vm_body


async def destroy_at(world: World, vm_id: str) -> timedelta:
    shown = (await world.call("GET", f"/v1/vms/{vm_id}")).json()
    return datetime.fromisoformat(shown["quarantine"]["destroy_at"]) - datetime.now(UTC)


async def test_a_create_answers_with_row_and_operation(world: World) -> None:
    """A-6."""
    answer = await world.call("POST", "/v1/vms", json=vm_body(name="web", labels={"a": "b"}, metadata={"k": "ä"}))
    vm = answer.json()
    assert answer.status_code == 201
    assert (answer.headers["location"], answer.headers["etag"]) == (f"/v1/vms/{vm['id']}", '"1"')
    assert (vm["phase"], vm["desired_power_state"], vm["settled"], vm["generation"]) == (
        "creating",
        "running",
        False,
        1,
    )
    assert (vm["labels"], vm["metadata"], vm["project"], vm["disk_gib"]) == ({"a": "b"}, {"k": "ä"}, "default", None)
    assert (vm["operation"]["kind"], vm["operation"]["result"]) == ("create", None)
    shown = (await world.call("GET", f"/v1/operations/{vm['operation']['id']}")).json()
    assert shown == vm["operation"]


async def test_case_c3_fifty_at_once_have_fifty_ids(world: World) -> None:
    """Case C3."""
    await world.token()
    answers = await asyncio.gather(*(world.call("POST", "/v1/vms", json=vm_body()) for _ in range(50)))
    assert [answer.status_code for answer in answers] == [201] * 50
    assert len({answer.json()["id"] for answer in answers}) == 50
    assert len({answer.json()["mac"] for answer in answers}) == 50


async def test_a_put_makes_one_vm_however_often(world: World) -> None:
    """L-N4: ten at once, one row, one operation; one 201."""
    vm_id = new_id()
    body = vm_body(ssh_authorized_keys=[KEY])
    answers = await asyncio.gather(*(world.call("PUT", f"/v1/vms/{vm_id}", json=body) for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    assert {answer.json()["id"] for answer in answers} == {vm_id}
    assert await world.pool.fetchval("select count(*) from operations") == 1
    assert await world.pool.fetchval("select wake from vms") == 1


async def test_a_put_is_the_same_however_the_host_is_named(world: World) -> None:
    """L-N4: by id or by name; and it is returned also when no host would take it now."""
    vm_id, body = new_id(), vm_body(host="h1")
    vm = (await world.call("PUT", f"/v1/vms/{vm_id}", json=body)).json()
    other = (await world.call("PUT", f"/v1/vms/{new_id()}", json=(unplaced := vm_body()))).json()
    await world.pool.execute("update hosts set status = 'cordoned', last_report_at = now() - interval '1 hour'")
    await world.pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 hour'")
    for where, again in ((vm_id, body), (vm_id, {**body, "host": vm["host"]["id"]}), (other["id"], unplaced)):
        answer = await world.call("PUT", f"/v1/vms/{where}", json=again)
        assert answer.status_code == 200, answer.text


async def test_a_put_with_another_specification_is_409(world: World) -> None:
    """L-N4: which says which; later changes do not alter the fingerprint."""
    vm_id, body = new_id(), vm_body()
    await world.call("PUT", f"/v1/vms/{vm_id}", json=body)
    await world.call("PATCH", f"/v1/vms/{vm_id}", json={"labels": {"a": "b"}, "power_state": "stopped"})
    assert (await world.call("PUT", f"/v1/vms/{vm_id}", json=body)).status_code == 200
    for changed in ({"memory_mib": 1024}, {"name": "other"}, {"user_data": "x"}, {"labels": {"a": "b"}}):
        answer = await world.call("PUT", f"/v1/vms/{vm_id}", json={**body, **changed})
        assert answer.status_code == 409
        assert "another specification" in answer.json()["detail"]
    await world.call("DELETE", f"/v1/vms/{vm_id}")
    answer = await world.call("PUT", f"/v1/vms/{vm_id}", json=body)
    assert (answer.status_code, "being destroyed" in answer.json()["detail"]) == (409, True)


async def test_a_refreshed_url_reaches_the_host(world: World) -> None:
    """L-N4: the same VM, the same digest, the new signature."""
    _, credential = await world.add_host(name="h2")
    vm_id = new_id()
    body = vm_body(host="h2", user_data="#!/bin/sh")
    for number in (1, 2):
        image = {**IMAGE, "url": f"https://images.test/root.qcow2?sig={number}"}
        assert (await world.call("PUT", f"/v1/vms/{vm_id}", json={**body, "image": image})).is_success
        row = await world.pool.fetchrow("select input_digest, wake from vms")
        where = f"/v1/host/vms/{vm_id}/input?digest={row['input_digest']}"
        given = (await world.as_host(credential, "GET", where)).json()
        assert given["image"]["rootfs"]["url"] == image["url"]
        assert (given["digest"], row["wake"]) == (row["input_digest"], number)
    unsigned = {**IMAGE, "url": "https://images.test/other.qcow2"}
    answer = await world.call("PUT", f"/v1/vms/{vm_id}", json={**body, "image": unsigned})
    assert answer.status_code == 409


async def test_a_name_clash_says_who_holds_it(world: World) -> None:
    """A-7: live, quarantined, being torn down."""
    vm = await world.create(name="web")
    for sql, words in (
        ("select 1", "live"),
        ("", "quarantined"),
        ("update vms set destroying = true", "torn down"),
    ):
        if sql:
            await world.pool.execute(sql)
        else:
            await world.call("DELETE", f"/v1/vms/{vm['id']}")
        answer = await world.call("POST", "/v1/vms", json=vm_body(name="web"))
        assert (answer.status_code, words in answer.json()["detail"]) == (409, True), answer.text
    assert (await world.call("POST", "/v1/vms", project="p1", json=vm_body(name="web"))).status_code == 201


async def test_a_change_under_a_generation(world: World) -> None:
    """A-4, L-N1: an identical request moves nothing; a generation that moved is 412."""
    vm = await world.create(disk_gib=2)
    path = f"/v1/vms/{vm['id']}"
    same = await world.call("PATCH", path, json={"power_state": "running", "disk_gib": 2})
    assert (same.status_code, same.headers["etag"], same.json()["operation"]) == (200, '"1"', None)
    changed = await world.call("PATCH", path, json={"disk_gib": 3}, headers={"if-match": same.headers["etag"]})
    assert (changed.headers["etag"], changed.json()["spec_generation"]) == ('"2"', 2)
    assert changed.json()["operation"]["kind"] == "change"
    for if_match in ('"1"', "1", '"3"', '"999999999999999999"'):
        answer = await world.call("PATCH", path, json={"disk_gib": 4}, headers={"if-match": if_match})
        assert answer.status_code == 412
        assert (await world.call("DELETE", path, headers={"if-match": if_match})).status_code == 412
        assert (await world.call("POST", f"{path}/restart", headers={"if-match": if_match})).status_code == 412
    assert (await world.call("PATCH", path, json={"disk_gib": 4}, headers={"if-match": "*"})).status_code == 200
    shrink = await world.call("PATCH", path, json={"disk_gib": 1})
    assert (shrink.status_code, "only grows" in shrink.json()["detail"]) == (409, True)


async def test_verbs(world: World) -> None:
    """L-N3, L-C4."""
    vm = await world.create()
    path = f"/v1/vms/{vm['id']}"
    restarted = await world.call("POST", f"{path}/restart")
    assert (restarted.status_code, restarted.json()["restart_generation"]) == (202, 1)
    await world.pool.execute("update vms set phase = 'failed', last_error = 'x', create_attempts = 5, resting = true")
    retried = (await world.call("POST", f"{path}/retry")).json()
    assert (retried["last_error"], retried["create_attempts"], retried["operation"]["kind"]) == (None, 0, "retry")
    await world.call("PATCH", path, json={"power_state": "stopped"})
    refused = await world.call("POST", f"{path}/restart")
    assert (refused.status_code, "wanted stopped" in refused.json()["detail"]) == (409, True)
    kinds = [o["kind"] for o in (await world.call("GET", path)).json()["operations"]]
    assert kinds == ["power", "retry", "restart", "create"]


async def test_delete_and_undelete(world: World) -> None:
    """L-R3, L-R4, L-R7, A-7: listed with its time, changed by nothing, brought back whole."""
    vm = await world.create(power_state="stopped")
    path = f"/v1/vms/{vm['id']}"
    deleted = await world.call("DELETE", path)
    assert (deleted.status_code, deleted.json()["phase"]) == (202, "quarantined")
    assert deleted.json()["operation"]["kind"] == "delete"
    assert abs(await destroy_at(world, vm["id"]) - timedelta(hours=24)) < timedelta(minutes=1)
    items = (await world.call("GET", "/v1/hosts/h1/quarantined")).json()["items"]
    assert [(item["id"], item["quarantine"]["kind"]) for item in items] == [(vm["id"], "tombstone")]
    for method, where, body in (("PATCH", path, {"json": {"disk_gib": 9}}), ("POST", f"{path}/restart", {})):
        refused = await world.call(method, where, **body)
        assert (refused.status_code, "undelete it first" in refused.json()["detail"]) == (409, True)
    again = await world.call("DELETE", path)
    assert (again.status_code, again.json()["operation"]) == (202, None)
    back = (await world.call("POST", f"{path}/undelete")).json()
    assert (back["quarantine"], back["phase"], back["desired_power_state"]) == (None, "creating", "stopped")
    assert back["generation"] == 3
    assert (await world.call("POST", f"{path}/undelete")).json()["generation"] == 3


@pytest.mark.parametrize(
    ("query", "grace"), [("grace=0s", 0), ("now=true", 0), ("grace=30d", 720), ("grace=1h30m", 1.5)]
)
async def test_a_grace_of_ones_own(world: World, query: str, grace: float) -> None:
    """L-R3: also for a VM already in quarantine, where it counts from now on."""
    for before in ("", "?grace=2h"):
        vm = await world.create()
        if before:
            await world.call("DELETE", f"/v1/vms/{vm['id']}{before}")
        await world.call("DELETE", f"/v1/vms/{vm['id']}?{query}")
        assert abs(await destroy_at(world, vm["id"]) - timedelta(hours=grace)) < timedelta(minutes=1)


async def test_past_its_grace_it_is_410(world: World) -> None:
    """L-R4, A-7: being destroyed, then gone for 30 days, then never heard of; the id is 409 meanwhile."""
    vm = await world.create()
    path = f"/v1/vms/{vm['id']}"
    await world.call("DELETE", f"{path}?now=true")
    await world.pool.execute("update vms set destroying = true")
    assert (await world.call("GET", path)).json()["phase"] == "destroying"
    for method, where in (("POST", f"{path}/undelete"), ("POST", f"{path}/restart")):
        assert (await world.call(method, where)).status_code == 410
    assert (await world.call("DELETE", path)).status_code == 202
    await world.pool.execute(
        """with v as (delete from vms returning *)
        insert into gone (vm_id, project, name, host_id, pass_number) select id, project, name, host_id, 1 from v"""
    )
    calls: list[tuple[str, str, Any]] = [
        ("GET", path, None),
        ("PATCH", path, {"disk_gib": 4}),
        ("DELETE", path, None),
        ("POST", f"{path}/undelete", None),
        ("GET", f"{path}/console", None),
    ]
    for method, where, body in calls:
        answer = await world.call(method, where, **({"json": body} if body else {}))
        assert (answer.status_code, "destroyed at" in answer.json()["detail"]) == (410, True), where
        assert (await world.call(method, where, project="p1", **({"json": body} if body else {}))).status_code == 404
    assert (await world.call("GET", f"{path}/operations")).json()["items"][0]["kind"] == "delete"
    answer = await world.call("PUT", path, json=vm_body())
    assert (answer.status_code, "30 days" in answer.json()["detail"]) == (409, True)
    await world.pool.execute("update gone set at = now() - interval '31 days'")
    assert (await world.call("GET", path)).status_code == 404
    assert (await world.call("PUT", path, json=vm_body())).status_code == 201


async def test_a_wait_ends_when_it_is_settled(world: World) -> None:
    """A-6: not before, not long after, and with the row as it is then."""
    vm = await world.create()
    began = time.monotonic()
    answer = await world.call("GET", f"/v1/vms/{vm['id']}?wait=1s")
    assert (answer.json()["settled"], time.monotonic() - began >= 1) == (False, True)
    waiting = asyncio.create_task(world.call("GET", f"/v1/vms/{vm['id']}?wait=30s"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await world.pool.execute("update vms set phase = 'ready', due_at = null, generation = 7")
    async with asyncio.timeout(5):
        answer = await waiting
    assert (answer.json()["settled"], answer.json()["phase"], answer.headers["etag"]) == (True, "ready", '"7"')


async def test_a_delete_that_is_waited_for_ends_well(world: World) -> None:
    """A-6: gone is what was asked for, no error; the row is as it was seen last, its operation as it ended."""
    vm = await world.create()
    waiting = asyncio.create_task(world.call("DELETE", f"/v1/vms/{vm['id']}?now=true&wait=30s"))
    await asyncio.sleep(0.2)
    await world.pool.execute("update operations set result = 'gone', ended_at = now() where kind = 'delete'")
    await world.pool.execute(
        """with v as (delete from vms returning *)
        insert into gone (vm_id, project, name, host_id, pass_number) select id, project, name, host_id, 1 from v"""
    )
    async with asyncio.timeout(5):
        answer = await waiting
    assert (answer.status_code, answer.json()["operation"]["result"]) == (202, "gone")


async def test_images_mean_one_thing_for_ever(world: World) -> None:
    """D-1: the same content again is fine, other content is 409; a project's own name comes before the operators'."""
    body = {"name": "demo", "rootfs": {**IMAGE, "format": "raw"}}
    first = await world.call("POST", "/v1/images", json=body)
    again = await world.call("POST", "/v1/images", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    for changed in ({"rootfs": {**IMAGE, "sha256": "b" * 64}}, {"firmware": "uefi"}, {"kernel": IMAGE}):
        assert (await world.call("POST", "/v1/images", json={**body, **changed})).status_code == 409
    own = await world.call("POST", "/v1/images", project="p1", json={"name": "demo", "rootfs": IMAGE})
    assert own.status_code == 201
    digests = {}
    for project, name in (("p1", "demo"), ("p1", "public/demo"), ("p2", "demo"), (None, "public/demo")):
        vm = await world.create(project, image=name)
        assert vm["image"] == name
        spec = await world.pool.fetchval("select spec from vms where id = $1", vm["id"])
        digests[project, name] = spec["image"]["owner"]
    assert list(digests.values()) == ["p1", "public", "public", "public"]
    assert (await world.call("GET", f"/v1/images/{own.json()['id']}", project="p2")).status_code == 404
