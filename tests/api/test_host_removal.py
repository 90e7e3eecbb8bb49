"""A host is removed only when it is drained, and empty by its own report (H-D5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import World, report_of, vm_report


@pytest.fixture
async def host(world: World) -> str:
    """The credential of `rack-1`, which has reported."""
    _, credential = await world.add_host(name="rack-1", instance_id=None, last_report_at=None)
    await report(world, credential, 1)
    return credential


async def report(world: World, credential: str, number: int, *vms: dict[str, Any], **changed: Any) -> Any:
    body = report_of(number, list(vms), **changed)
    answer = await world.as_host(credential, "POST", "/v1/host/report", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refusal(world: World) -> str:
    answer = await world.call("DELETE", "/v1/hosts/rack-1")
    assert answer.status_code == 409, answer.text
    detail: str = answer.json()["detail"]
    assert detail.startswith("the host rack-1 is not removed: ")
    return detail.removeprefix("the host rack-1 is not removed: ")


async def drained(world: World) -> None:
    await world.call("POST", "/v1/hosts/rack-1/drain", json={"policy": "leave"})
    await world.pool.execute("update hosts set status = 'drained' where name = 'rack-1'")
    await world.pool.execute("update campaigns set state = 'done', ended_at = now()")


async def test_one_that_is_drained_and_empty_goes(world: World, host: str) -> None:
    """H-D5, S-37: after a whole report that is newer than its drain; name and credential are free and over."""
    assert await refusal(world) == "it is ready; drain it first (`hostler host drain rack-1`)"
    await drained(world)
    assert "it has not told all that it holds since it was emptied" in await refusal(world)
    await report(world, host, 2, whole=False)
    assert "it has not told all that it holds since it was emptied" in await refusal(world)
    await report(world, host, 3)
    assert (await world.call("DELETE", "/v1/hosts/rack-1")).status_code == 200
    assert (await world.call("GET", "/v1/hosts/rack-1")).status_code == 404
    late = await world.as_host(host, "POST", "/v1/host/report", json=report_of(4))
    assert late.status_code == 401
    assert await world.pool.fetchval("select before ->> 'name' from audit where action = 'host.rm'") == "rack-1"
    await world.add_host(name="rack-1")


async def test_a_drained_host_is_asked_for_all_that_it_holds(world: World, host: str) -> None:
    """H-D5: so that nobody waits for the whole report of every ten minutes."""
    await drained(world)
    await world.pool.execute("update hosts set last_whole_at = now() - interval '2 minutes' where name = 'rack-1'")
    assert (await report(world, host, 2, whole=False))["want_whole"]
    assert not (await report(world, host, 3))["want_whole"]
    assert not (await report(world, host, 4, whole=False))["want_whole"]


async def test_what_is_there_keeps_it(world: World, host: str) -> None:
    """H-D5: VMs, those in quarantine, volumes, and what no row knows; each in a whole sentence."""
    vm = await world.create(host="rack-1")
    await drained(world)
    await report(world, host, 2)
    assert await refusal(world) == "1 VM is on it; delete them, or undrain it to have them back"
    deleted = (await world.call("DELETE", f"/v1/vms/{vm['id']}")).json()
    until = deleted["quarantine"]["destroy_at"][:19]
    assert await refusal(world) == f"1 deleted VM is kept on it, the last until {until}Z; wait"
    await world.pool.execute("delete from vms")
    await world.pool.execute(
        """insert into volumes (id, project, name, size_gib, host_id)
        select 'v1', 'default', 'data', 1, id from hosts where name = 'rack-1'"""
    )
    assert await refusal(world) == "1 volume is on it; delete them, and wait out their grace"
    await world.pool.execute("delete from volumes")
    await report(world, host, 3, vm_report("stranger"))
    told = "it reports 1 VM that no row knows (`hostler host show rack-1`); settle them first"
    assert await refusal(world) == told
    await report(world, host, 4, unmanaged=1)
    assert await refusal(world) == told
    await world.pool.execute("update hosts set last_report_at = now() - interval '1 hour' where name = 'rack-1'")
    await world.pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '2 hours'")
    assert (await refusal(world)).startswith("it is silent, so nobody knows whether it is empty")


async def test_a_volume_that_no_row_knows_keeps_it(world: World, host: str) -> None:
    """H-D5, H-R1: as after a restore; its data would be lost with nobody knowing."""
    await drained(world)
    await report(world, host, 2, volumes=[{"volume_id": "data", "size_bytes": 1 << 30}])
    assert await refusal(world) == (
        "it reports 1 volume that no row knows (`hostler volume foreign rack-1`); adopt and delete them first"
    )
    await report(world, host, 3, volumes=[])
    assert (await world.call("DELETE", "/v1/hosts/rack-1")).status_code == 200
