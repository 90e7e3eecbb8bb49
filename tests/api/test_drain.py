"""Drain and undrain by the API: what is accepted, refused, told and written down (H-D1, H-D2)."""

from __future__ import annotations

from typing import Any

import pytest

from store.campaign import CampaignStore
from tests.api.conftest import World


async def call(world: World, verb: str, body: dict[str, Any] | None = None, host: str = "h1") -> tuple[int, Any]:
    answer = await world.call("POST", f"/v1/hosts/{host}/{verb}", **({} if body is None else {"json": body}))
    return answer.status_code, answer.json()


async def begin(world: World, **body: Any) -> Any:
    code, host = await call(world, "drain", body)
    assert code == 202, host
    return host


async def test_a_draining_host_takes_nothing_new_by_any_way(world: World) -> None:
    """H-P1, H-D1, case L2: named or chosen; and the answer says how far the drain is."""
    vm = await world.create()
    host = await begin(world)
    assert (host["status"], host["drain"]["policy"], host["drain"]["creating"]) == ("draining", "stop", 1)
    assert host["drain"]["workflow_id"] == f"host/{host['id']}/drain/{host['drain']['id']}"
    named = await world.call("POST", "/v1/vms", json={"name": "a", "image": vm_image(), "host": "h1"})
    assert (named.status_code, "is draining and takes no new VM" in named.json()["detail"]) == (409, True)
    chosen = await world.call("POST", "/v1/vms", json={"name": "a", "image": vm_image()})
    assert (chosen.status_code, "is draining and takes no new VM" in chosen.json()["detail"]) == (409, True)
    assert (await world.call("GET", f"/v1/vms/{vm['id']}")).json()["held_by"] is None
    listed = (await world.call("GET", "/v1/hosts")).json()["items"][0]
    assert listed["drain"] == (await world.call("GET", "/v1/hosts/h1")).json()["drain"] == host["drain"]


async def test_a_repeat_is_the_same_drain_and_another_policy_is_refused(world: World) -> None:
    """H-D1: in whole sentences; moving comes with migration."""
    first = await begin(world, policy="leave")
    assert (await begin(world, policy="leave"))["drain"]["id"] == first["drain"]["id"]
    code, refused = await call(world, "drain", {"policy": "stop"})
    assert code == 409
    assert refused["detail"] == (
        "the host h1 is draining by the policy leave; undrain it first (`hostler host undrain h1`)"
    )
    code, refused = await call(world, "drain", {"policy": "move"})
    assert (code, refused["detail"].startswith("VMs cannot be moved to another host yet: drain it")) == (409, True)
    code, refused = await call(world, "cordon")
    assert (code, refused["detail"]) == (409, "the host h1 is draining: end that first")


@pytest.mark.parametrize("before", ["ready", "cordoned"])
async def test_an_undrained_host_is_what_it_was_and_the_trail_tells_it(world: World, before: str) -> None:
    """H-D2, S-37."""
    await world.pool.execute("update hosts set status = $1", before)
    await begin(world)
    code, host = await call(world, "undrain")
    assert (code, host["status"], host["drain"]) == (202, before, None)
    trail = await world.pool.fetch(
        "select action, before ->> 'status' as was, after ->> 'status' as is from audit "
        "where object = $1 order by number",
        f"host/{host['id']}",
    )
    assert [tuple(entry) for entry in trail] == [
        ("host.drain", before, "draining"),
        ("host.undrain", "draining", before),
    ]
    code, refused = await call(world, "undrain")
    assert (code, refused["detail"]) == (409, f"the host h1 is {before}: there is no drain to be undone")


async def test_pause_and_resume(world: World) -> None:
    """H-D1: each a second time changes nothing; without a drain there is nothing to be paused."""
    code, refused = await call(world, "drain/pause")
    assert (code, refused["detail"]) == (409, "the host h1 is ready: there is no drain to be paused or resumed")
    await begin(world)
    for verb, state in (("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("resume", "running")):
        code, host = await call(world, f"drain/{verb}")
        assert (code, host["drain"]["state"], host["status"]) == (200, state, "draining")
    trail = await world.pool.fetch("select action from audit where action like 'host.drain.%' order by number")
    assert [entry["action"] for entry in trail] == ["host.drain.pause", "host.drain.resume"]


async def test_a_change_of_a_held_vm_is_refused_by_the_drain_without_its_host(world: World) -> None:
    """H-D1, L-G12, S-32: and an undrain lets go of it in its own transaction."""
    vm = await world.create(project="p1")
    await world.pool.execute("update vms set first_ready_at = now(), phase = 'ready'")
    drain_id = (await begin(world))["drain"]["id"]
    await CampaignStore(world.pool).hold(drain_id, (vm["id"],))
    path = f"/v1/vms/{vm['id']}"
    refused = await world.call("PATCH", path, project="p1", json={"power_state": "stopped"})
    assert refused.status_code == 409
    assert refused.json()["detail"] == f"the VM {vm['id']} is held by a drain of its host; wait for its end"
    await call(world, "undrain")
    assert (await world.call("PATCH", path, project="p1", json={"power_state": "stopped"})).status_code == 200


async def test_what_a_run_writes_late_changes_nothing_after_an_undrain(world: World) -> None:
    """H-D2, case L3: a hold that was under way when the drain was undone holds nobody."""
    vm = await world.create()
    await world.pool.execute("update vms set first_ready_at = now(), phase = 'ready'")
    store, drain_id = CampaignStore(world.pool), (await begin(world))["drain"]["id"]
    await call(world, "undrain")
    assert await store.hold(drain_id, (vm["id"],)) == ()
    await store.note_done(drain_id)
    assert await world.pool.fetchval("select held from vms") is False
    assert await world.pool.fetchval("select status from hosts") == "ready"


def vm_image() -> dict[str, str]:
    return {"url": "https://images.test/root.qcow2", "sha256": "a" * 64}
