"""Freeze and unfreeze: what is held, what goes on, and who is told (H-R3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from model.passes import ClaimRequest, PassRef
from store.passes import PassStore
from tests.api.conftest import IMAGE, World

HOUR = timedelta(hours=1)


async def freeze(world: World, verb: str = "freeze", **body: Any) -> Any:
    answer = await world.call("POST", f"/v1/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def deadlines(world: World) -> dict[str, Any]:
    return {each["id"]: each["destroy_at"] for each in await world.pool.fetch("select id, destroy_at from vms")}


async def pass_of(world: World, vm_id: str) -> PassRef:
    row = await PassStore(world.pool).claim(ClaimRequest(vm_id=vm_id, run_id="run"))
    assert row is not None
    return PassRef(vm_id=vm_id, pass_number=row.status.pass_number)


@pytest.mark.parametrize("where", [{}, {"host": "h1"}])
async def test_nothing_passes_the_point_of_no_return(world: World, where: dict[str, str]) -> None:
    """H-R3, L-R4: in the fleet, or on one host; a delete is accepted, and done after the end."""
    vm = await world.create()
    await freeze(world, **where)
    assert (await world.call("DELETE", f"/v1/vms/{vm['id']}?now=true")).status_code == 202
    ref = await pass_of(world, vm["id"])
    row = await PassStore(world.pool).mark_destroying(ref)
    assert row is not None
    assert (row.frozen, row.status.destroying) == (True, False)
    await freeze(world, "unfreeze", **where)
    row = await PassStore(world.pool).mark_destroying(ref)
    assert row is not None
    assert (row.frozen, row.status.destroying) == (False, True)


async def test_another_hosts_freeze_holds_nothing_here(world: World) -> None:
    """H-R3."""
    vm = await world.create()
    await world.add_host(name="h2")
    await freeze(world, host="h2")
    row = await PassStore(world.pool).read(await pass_of(world, vm["id"]))
    assert row is not None
    assert not row.frozen


async def test_deadlines_stand_still(world: World) -> None:
    """H-R3, L-R3: each once, though the fleet and its host were frozen over the same time; for what was deleted in
    between, from then on.
    """
    early, late = await world.create(), await world.create()
    await world.call("DELETE", f"/v1/vms/{early['id']}?grace=10h")
    await world.pool.execute(
        """update vms set quarantine_since = now() - interval '6 hours', destroy_at = now() + interval '4 hours'
        where deleted"""
    )
    await freeze(world)
    await freeze(world, host="h1")
    await world.call("DELETE", f"/v1/vms/{late['id']}?grace=10h")
    await world.pool.execute("update freezes set since = now() - interval '5 hours' where host_id is null")
    await world.pool.execute("update freezes set since = now() - interval '3 hours' where host_id is not null")
    await world.pool.execute("update vms set quarantine_since = now() - interval '1 hour' where id = $1", late["id"])
    before = await deadlines(world)
    await freeze(world, "unfreeze")
    await freeze(world, "unfreeze", host="h1")
    after = await deadlines(world)
    moved = {vm_id: round((after[vm_id] - before[vm_id]) / HOUR, 1) for vm_id in after}
    assert moved == {early["id"]: 5, late["id"]: 1}


async def test_what_waited_goes_on_and_every_answer_says_who_froze(world: World) -> None:
    """H-R3: also a refusal, and to a project without its hosts' names."""
    vm = await world.create(project="p1")
    made = await freeze(world, host="h1")
    again = await freeze(world, host="h1")
    assert (again["since"], made["holds"]) == (made["since"], "everything destructive")
    for path in ("/v1/vms", "/v1/vms/none-such"):
        told = (await world.call("GET", path, project="p1")).headers["hostler-notice"]
        assert told == f"nothing is destroyed: some hosts are frozen by {made['made_by']} since {made['since'][:19]}Z"
    await world.pool.execute(
        "update vms set waiting_for = 'frozen', due_at = null, deleted = true, "
        "quarantine_kind = 'tombstone', quarantine_since = now(), quarantine_grace = '1h', "
        "destroy_at = now()"
    )
    await freeze(world, "unfreeze", host="h1")
    assert await world.pool.fetchval("select due_at is not null and wake > 1 from vms where id = $1", vm["id"])
    assert "hostler-notice" not in (await world.call("GET", "/v1/vms")).headers
    assert (await world.call("GET", "/v1/freezes")).json()["items"] == []
    refused = await world.call("POST", "/v1/unfreeze", json={"host": "h1"})
    assert refused.status_code == 409
    assert refused.json()["detail"] == (
        "what destroys is not frozen on this host: `hostler freeze --show` lists what is"
    )
    trail = await world.pool.fetch("select action from audit where action like '%freeze' order by number")
    assert [entry["action"] for entry in trail] == ["host.freeze", "host.unfreeze"]


@pytest.mark.parametrize("where", [{}, {"host": "h1"}])
async def test_new_vms_alone_are_held(world: World, where: dict[str, str]) -> None:
    """H-R3, H-P5: refused with who did it, named or not; what is there is destroyed as ever."""
    vm = await world.create()
    made = await freeze(world, creates=True, **where)
    for body in ({"host": "h1"}, {}):
        refused = await world.call("POST", "/v1/vms", json={"name": "a", "image": IMAGE, **body})
        assert refused.status_code == 409
        wanted = f"takes no new VM: they are frozen by {made['made_by']} since {made['since'][:19]}Z"
        assert wanted in refused.json()["detail"], refused.text
    await world.call("DELETE", f"/v1/vms/{vm['id']}?now=true")
    row = await PassStore(world.pool).mark_destroying(await pass_of(world, vm["id"]))
    assert row is not None
    assert row.status.destroying
    await freeze(world, "unfreeze", creates=True, **where)
    assert (await world.call("POST", "/v1/vms", json={"name": "a", "image": IMAGE})).status_code == 201
