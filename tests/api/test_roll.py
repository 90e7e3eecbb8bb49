"""Rolling restarts by the API: whom they are for, and what is refused (H-D3)."""

from __future__ import annotations

from typing import Any

from store.campaign import CampaignStore
from store.operation import OperationStore
from store.roll import RollStore
from tests.api.conftest import World


async def begin(world: World, **body: Any) -> Any:
    answer = await world.call("POST", "/v1/rolls", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def test_whom_it_is_for(world: World) -> None:
    """H-D3: those that are wanted running then, by labels and host; nobody is no rolling restart."""
    await world.add_host(name="h2")
    web = await world.create(host="h1", labels={"role": "web"})
    await world.create(host="h1", labels={"role": "web"}, power_state="stopped")
    await world.create(host="h2", labels={"role": "web"})
    roll = await begin(world, labels={"role": "web"}, host="h1", batch_size=3)
    assert (roll["total"], roll["todo"], roll["batch_size"], roll["most_failures"]) == (1, 1, 3, 0)
    assert (await begin(world))["total"] == 2
    refused = await world.call("POST", "/v1/rolls", json={"labels": {"role": "db"}})
    assert (refused.status_code, "no VM that is wanted running" in refused.json()["detail"]) == (409, True)
    assert len((await world.call("GET", "/v1/rolls")).json()["items"]) == 2
    assert web["id"] == await world.pool.fetchval("select vm_id from campaign_vms where campaign_id = $1", roll["id"])


async def test_each_restart_is_an_operation_of_who_began_it_and_comes_once(world: World) -> None:
    """H-D3, L-N3, S-37: however often its step is repeated."""
    vm = await world.create()
    roll, rolls = await begin(world), RollStore(world.pool)
    for _ in range(3):
        await rolls.restart(roll["id"], (vm["id"],))
    assert await world.pool.fetchval("select restart_generation from vms") == 1
    actors = await world.pool.fetch("select actor from audit where action in ('roll.begin', 'vm.restart')")
    assert {each["actor"] for each in actors} == {roll["made_by"]}
    (operation, _) = await OperationStore(world.pool).list_of(None, vm["id"])
    assert operation.kind == "restart"
    await world.pool.execute("update operations set ended_at = now(), result = 'settled' where kind = 'restart'")
    await CampaignStore(world.pool).note_done(roll["id"])
    shown = (await world.call("GET", f"/v1/rolls/{roll['id']}")).json()
    assert (shown["state"], shown["done"]) == ("done", 1)


async def test_pause_resume_and_cancel(world: World) -> None:
    """H-D3: a drain's id is no rolling restart; one that is over is not cancelled."""
    await world.create()
    roll = await begin(world)
    for verb, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled"), ("cancel", "cancelled")):
        answer = await world.call("POST", f"/v1/rolls/{roll['id']}/{verb}")
        assert (answer.status_code, answer.json()["state"]) == (200, state)
    refused = await world.call("POST", f"/v1/rolls/{roll['id']}/resume")
    assert refused.json()["detail"] == "the rolling restart is cancelled: there is nothing to be resumed"
    drain = (await world.call("POST", "/v1/hosts/h1/drain", json={})).json()["drain"]
    assert (await world.call("GET", f"/v1/rolls/{drain['id']}")).status_code == 404
