"""Volumes through the API: life, attach and detach, placement, and every refusal as a whole sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from model.capacity import Caps
from model.report import HostReport, ReportAnswer
from model.volume import VolumeReport
from store.host_report import store_report
from tests.api.conftest import IMAGE, World
from tests.fixtures.rows import add_host

GIB = 1 << 30


async def make(world: World, name: str, size_gib: int = 1, **more: Any) -> dict[str, Any]:
    answer = await world.call("POST", "/v1/volumes", json={"name": name, "size_gib": size_gib, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def h1(world: World) -> str:
    """The id of the host that is there."""
    found: str = await world.pool.fetchval("select id from hosts where name = 'h1'")
    return found


async def make_vm(world: World, name: str, *volumes: str, project: str | None = None, **more: Any) -> Any:
    body = {"name": name, "image": IMAGE, "disk_gib": 1, **({"volumes": list(volumes)} if volumes else {}), **more}
    return await world.call("POST", "/v1/vms", json=body, project=project)


async def refused(call: Awaitable[Any], status: int = 409) -> str:
    answer = await call
    assert answer.status_code == status, answer.text
    return answer.json()["detail"]


async def tell(world: World, host_id: str, **more: Any) -> ReportAnswer:
    """Report as a host does."""
    host = await world.pool.fetchrow("select * from hosts where id = $1", host_id)
    assert host is not None
    plain = {
        "number": host["report_number"] + 1,
        "instance_id": host["instance_id"],
        "machine_id": "m",
        "boot_id": "b",
        "worker_version": "1.0.0",
        "clock": host["last_report_at"],
        "whole": False,
        "activity_names": tuple(host["activity_names"]),
    }
    return (await store_report(world.pool, host_id, HostReport(**{**plain, **more}))).answer


async def test_a_volume_has_a_life_of_its_own(world: World) -> None:
    """H-V1, H-V4: made, listed, found by name and id, grown, never shrunk; names are one per project."""
    made = await make(world, "data")
    assert (made["size_gib"], made["host"], made["vm"], made["made_bytes"]) == (1, None, None, None)
    for ref in ("data", made["id"]):
        assert (await world.call("GET", f"/v1/volumes/{ref}")).json()["id"] == made["id"]
    told = await refused(world.call("POST", "/v1/volumes", json={"name": "data", "size_gib": 2}))
    assert told == f"the name data is held by the volume {made['id']}; choose another one"
    grown = await world.call("PATCH", "/v1/volumes/data", json={"size_gib": 4})
    assert grown.json()["size_gib"] == 4
    told = await refused(world.call("PATCH", "/v1/volumes/data", json={"size_gib": 3}))
    assert told == "a volume only grows: data has 4 GiB, 3 GiB was asked for"
    assert [each["name"] for each in (await world.call("GET", "/v1/volumes")).json()["items"]] == ["data"]
    told = await refused(world.call("GET", "/v1/volumes/nothing"), 404)
    assert told == "there is no volume nothing; `hostler volume ls` lists those that are there"


async def test_a_vm_goes_where_its_volumes_are(world: World) -> None:
    """H-P1, H-P5, H-V1, case G9: a new volume goes to its VM's host, and draws later VMs there."""
    other = await add_host(world.pool, name="h2")
    await make(world, "data", host="h2")
    await make(world, "logs")
    vm = (await make_vm(world, "one", "data", "logs")).json()
    assert vm["host"]["name"] == "h2"
    assert [(each["name"], each["size_gib"]) for each in vm["volumes"]] == [("data", 1), ("logs", 1)]
    assert (await world.call("GET", "/v1/volumes/logs")).json()["host"]["id"] == other
    await make(world, "elsewhere", host=await h1(world))
    await make(world, "here", host="h2")
    here = "h1"
    told = await refused(make_vm(world, "two", "here", "elsewhere"))
    assert "the volumes are on different hosts (" in told
    assert f"elsewhere on the host {here}" in told
    told = await refused(make_vm(world, "two", "here", host=await h1(world)))
    assert told == (
        "the volume here is on the host h2, the VM is to be on another: a VM goes where its volumes are; leave the "
        "host out"
    )
    told = await refused(world.call("PUT", f"/v1/vms/{vm['id']}/volumes/elsewhere"))
    assert told == (
        f"the volume elsewhere is on the host {here}, the VM one is on another: a volume is attached on its own host "
        "only"
    )
    await world.pool.execute("update hosts set status = 'cordoned' where id = $1", other)
    told = await refused(make_vm(world, "two", "here"))
    elsewhere = f"h1 ({await h1(world)}) is not where the VM's volumes are"
    assert told == f"no host takes this VM: {elsewhere}; h2 ({other}) is cordoned and takes no new VM"
    told = await refused(make_vm(world, "two", "logs", project="blue"), 422)
    assert (await make_vm(world, "free")).json()["host"]["name"] == "h1", "case G9: who asks for none goes anywhere"
    assert (await world.call("GET", "/v1/volumes/here")).json()["vm"] is None, "a refused create leaves nothing"


async def test_case_k11_one_of_two_vms_gets_a_volume(world: World) -> None:
    """H-V1, case K11: in parallel exactly one attach succeeds, beside a create that names it; again is as good."""
    await make(world, "data")
    one, two = [(await make_vm(world, name)).json() for name in ("one", "two")]
    calls = [world.call("PUT", f"/v1/vms/{vm['id']}/volumes/data") for vm in (one, two)]
    answers = await asyncio.gather(*calls, make_vm(world, "three", "data"))
    won = [answer.json() for answer in answers if answer.status_code in (201, 202)]
    assert len(won) == 1
    lost = [answer for answer in answers if answer.status_code not in (201, 202)]
    expected = (
        f"the volume data is attached to the VM {won[0]['id']}, and to one VM at a time only: detach it there first"
    )
    assert [answer.json()["detail"] for answer in lost] == [expected] * 2
    again = (await world.call("PUT", f"/v1/vms/{won[0]['id']}/volumes/data")).json()
    assert again["generation"] == won[0]["generation"], "what it has already moves nothing"
    assert len(again["volumes"]) == 1


async def test_attach_detach_and_grow_are_changes_of_the_vm(world: World) -> None:
    """L-N1, L-N2: each raises generation and spec_generation; neither changes what the VM is made of."""
    await make(world, "data")
    vm = (await make_vm(world, "one")).json()
    path, digest = f"/v1/vms/{vm['id']}", "select input_digest from vms"
    before = await world.pool.fetchval(digest)
    for number, call in enumerate(
        (
            world.call("PUT", f"{path}/volumes/data"),
            world.call("PATCH", "/v1/volumes/data", json={"size_gib": 2}),
            world.call("DELETE", f"{path}/volumes/data"),
            world.call("PATCH", path, json={"volumes": ["data"]}),
            world.call("PATCH", path, json={"volumes": []}),
        ),
        2,
    ):
        assert (await call).status_code in (200, 202)
        now = (await world.call("GET", path)).json()
        assert (now["generation"], now["spec_generation"]) == (number, number)
    assert await world.pool.fetchval(digest) == before
    told = await refused(world.call("DELETE", f"{path}/volumes/data"), 404)
    assert told == f"the volume data is not attached to the VM {vm['id']}"
    answer = await world.call("PATCH", path, json={"volumes": ["data", "data"]})
    assert answer.status_code == 422
    assert "named twice" in answer.text
    actions = [each["action"] for each in await world.pool.fetch("select action from audit order by number")]
    assert [each for each in actions if each.startswith("volume.")] == ["volume.create", "volume.grow"]


async def test_an_attached_volume_is_not_deleted_and_a_deleted_one_not_attached(world: World) -> None:
    """H-V3: 409 while a VM has it, a quarantined one, too; kept for 7 days, and undeleted."""
    await make(world, "data")
    vm = (await make_vm(world, "one", "data")).json()
    told = await refused(world.call("DELETE", "/v1/volumes/data"))
    assert told == (
        f"the volume data is attached to the VM one ({vm['id']}): detach it first, or wait until that VM is gone"
    )
    await world.call("DELETE", f"/v1/vms/{vm['id']}")
    assert "is attached to the VM one" in await refused(world.call("DELETE", "/v1/volumes/data"))
    assert "undelete that one, or wait until then" in await refused(make_vm(world, "two", "data"))
    await world.call("POST", f"/v1/vms/{vm['id']}/undelete")
    await world.call("DELETE", f"/v1/vms/{vm['id']}/volumes/data")
    gone = (await world.call("DELETE", "/v1/volumes/data")).json()
    assert gone["deleted"]
    days = await world.pool.fetchval("select extract(day from destroy_at - deleted_at)::int from volumes")
    assert days == 7
    told = await refused(make_vm(world, "two", "data"))
    assert told == "the volume data was deleted; undelete it first"
    assert "is kept until" in await refused(world.call("POST", "/v1/volumes", json={"name": "data", "size_gib": 1}))
    assert not (await world.call("POST", "/v1/volumes/data/undelete")).json()["deleted"]
    assert (await make_vm(world, "two", "data")).status_code == 201


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_volume_that_no_host_will_tell_of_is_gone_at_once(world: World, given_up: bool) -> None:
    """H-V3, L-R10: it was never placed, or its host was given up; there is nothing to wait for."""
    await make(world, "data", **({"host": "h1"} if given_up else {}))
    if given_up:
        await world.pool.execute("update hosts set status = 'forgotten'")
    assert (await world.call("DELETE", "/v1/volumes/data")).json()["destroying"]
    assert (await world.call("GET", "/v1/volumes/data")).status_code == 404


@pytest.mark.parametrize("why", ["fenced", "floored", "silent about it", "frozen", "another host", "before its time"])
async def test_a_row_goes_only_when_its_host_confirmed_it(world: World, why: str) -> None:
    """H-V3: never because of a fenced, floored, failed or incomplete report; undelete is 410 once it was told."""
    made = await make(world, "data", host=await h1(world))
    host_id, gone = await h1(world), {"volumes_gone": (made["id"],)}
    await world.call("DELETE", "/v1/volumes/data?grace=1h" if why == "before its time" else "/v1/volumes/data?now=true")
    if why == "before its time":
        answer = await tell(world, host_id, **gone)
        assert answer.remove_volumes == ()
        assert (await world.call("POST", "/v1/volumes/data/undelete")).status_code == 202
        return
    assert (await tell(world, host_id)).remove_volumes == (made["id"],)
    assert (await world.call("POST", "/v1/volumes/data/undelete")).status_code == 410
    number = await world.pool.fetchval("select report_number from hosts where id = $1", host_id)
    if why == "fenced":
        await tell(world, host_id, number=number, **gone)
    elif why == "floored":
        await world.pool.execute("update fleet set min_worker_version = '2.0.0'")
        assert (await tell(world, host_id, **gone)).remove_volumes == ()
        await world.pool.execute("update fleet set min_worker_version = null")
    elif why == "silent about it":
        await tell(world, host_id, whole=True, volumes=())
    elif why == "frozen":
        await world.pool.execute("update fleet set frozen = true")
        await tell(world, host_id, **gone)
        await world.pool.execute("update fleet set frozen = false")
    else:
        await tell(world, await add_host(world.pool), **gone)
    assert (await world.call("GET", "/v1/volumes/data")).json()["destroying"]
    assert (await tell(world, host_id)).remove_volumes == (made["id"],), "told again"
    await tell(world, host_id, **gone)
    assert (await world.call("GET", "/v1/volumes/data")).status_code == 404
    last = await world.pool.fetchrow("select actor, action from audit order by number desc limit 1")
    assert last is not None
    assert tuple(last) == ("host", "volume.gone")


async def test_a_volume_without_a_row_is_kept_listed_and_adopted(world: World) -> None:
    """H-R1: as after a restore to a time before it was made; nothing removes it, and a person gives it its row back."""
    made, host_id = await make(world, "data", 2, host="h1"), await h1(world)
    told = VolumeReport(volume_id=made["id"], size_bytes=2 * GIB)
    await tell(world, host_id, volumes=(told,))
    path = f"/v1/hosts/{host_id}/foreign-volumes"
    assert (await world.call("GET", path)).json()["items"] == []
    await refused(world.call("POST", f"{path}/{made['id']}/adopt", json={"name": "again"}), 404)
    await world.pool.execute("delete from volumes")
    assert (await tell(world, host_id, volumes=(told,))).remove_volumes == ()
    await tell(world, host_id)
    (found,) = (await world.call("GET", path)).json()["items"]
    assert (found["volume_id"], found["size_bytes"]) == (made["id"], 2 * GIB)
    adopted = await world.call("POST", f"{path}/{made['id']}/adopt", json={"name": "again"})
    assert adopted.status_code == 201
    assert (adopted.json()["id"], adopted.json()["size_gib"], adopted.json()["made_bytes"]) == (made["id"], 2, 2 * GIB)
    assert (await world.call("GET", path)).json()["items"] == []
    assert (await make_vm(world, "one", "again")).status_code == 201
    await refused(world.call("GET", path, project="blue"), 403)


async def test_volumes_count_as_disk(world: World) -> None:
    """H-A1, H-P2, H-P4: with the VM that is asked for, when one comes or grows, and for themselves once made."""
    await tell(world, await h1(world), caps=Caps(max_disk_gib=5))
    await make(world, "data", 4)
    await make(world, "large", 5)
    told = await refused(make_vm(world, "one", "large"))
    assert "disk: needs 6 GiB, holds 0 of 5 GiB" in told
    vm = (await make_vm(world, "one", "data")).json()
    held = (await world.call("GET", f"/v1/hosts/{await h1(world)}")).json()["held"]["live"]["disk_gib"]
    assert held == 5
    told = await refused(world.call("PATCH", "/v1/volumes/data", json={"size_gib": 5}))
    assert "disk: needs 5 GiB, holds 1 of 5 GiB" in told
    await make(world, "more")
    assert "disk: needs 1 GiB, holds 5 of 5 GiB" in await refused(world.call("PUT", f"/v1/vms/{vm['id']}/volumes/more"))
    made = (await world.call("GET", "/v1/volumes/data")).json()["id"]
    await tell(
        world, await h1(world), caps=Caps(max_disk_gib=5), volumes=(VolumeReport(volume_id=made, size_bytes=4 * GIB),)
    )
    await world.call("DELETE", f"/v1/vms/{vm['id']}/volumes/data")
    assert (await world.call("GET", "/v1/volumes/data")).json()["made_bytes"] == 4 * GIB
    held = (await world.call("GET", f"/v1/hosts/{await h1(world)}")).json()["held"]["live"]["disk_gib"]
    assert held == 5, "made, it counts by itself"


async def test_a_project_sees_its_own_volumes_and_no_host(world: World) -> None:
    """A-2, S-31, S-32: another project's are not there, and refusals name no host."""
    await make(world, "data", host=await h1(world))
    for call in (
        world.call("GET", "/v1/volumes/data", project="blue"),
        world.call("DELETE", "/v1/volumes/data", project="blue"),
        world.call("PATCH", "/v1/volumes/data", project="blue", json={"size_gib": 2}),
    ):
        await refused(call, 404)
    assert (await world.call("GET", "/v1/volumes", project="blue")).json()["items"] == []
    assert (await make_vm(world, "one", "data", project="blue")).status_code == 422
    body = {"name": "data", "size_gib": 1, "host": await h1(world)}
    await refused(world.call("POST", "/v1/volumes", project="blue", json=body), 403)
    await refused(world.call("DELETE", "/v1/volumes/data?now=true", project="blue"), 403)
