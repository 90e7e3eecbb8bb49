"""The floor: a host whose worker is older acts on no VM, and every row there says so (H-S5)."""

from __future__ import annotations

from typing import Any

import pytest

from model.waiting import Waiting
from store.floor import set_floor
from tests.api.conftest import ACTOR, World, report_of, vm_report

SENTENCE = "needs worker 1.4.0 or newer, this host runs 1.2.0: upgrade it"


async def ready(world: World, **changed: Any) -> str:
    """A VM on h1 that runs, as far as was seen."""
    vm_id = (await world.create(**{"project": "red", "host": None, **changed}))["id"]
    await world.pool.execute(
        """update vms set phase = 'ready', first_ready_at = now(), observed_power_state = 'running', due_at = null,
            observed_at = now(), observed_generation = generation where id = $1""",
        vm_id,
    )
    return vm_id


async def runs(world: World, version: str | None) -> None:
    await world.pool.execute("update hosts set worker_version = $1, last_report_at = now()", version)


async def row(world: World, vm_id: str, **how: Any) -> dict[str, Any]:
    return (await world.call("GET", f"/v1/vms/{vm_id}", **how)).json()


async def test_every_row_of_a_host_below_the_floor_says_so(world: World) -> None:
    """H-S5: failed, power empty because nobody looked, what to do; a deleted one is as ever, and nothing is written."""
    await runs(world, "1.2.0")
    vms = [await ready(world) for _ in range(2)]
    deleted = await ready(world)
    await world.call("DELETE", f"/v1/vms/{deleted}")
    before = await world.pool.fetch("select * from vms order by id")
    await set_floor(world.pool, "1.4.0", ACTOR)
    for vm_id in vms:
        for who in ({}, {"role": "viewer", "project": "red"}):
            shown = await row(world, vm_id, **who)
            assert (shown["phase"], shown["power_state"], shown["last_error"]) == ("failed", None, SENTENCE)
            assert (shown["last_known"]["phase"], shown["last_known"]["power_state"]) == ("ready", "running")
            assert SENTENCE in shown["why"]["sentence"]
            assert shown["why"]["waits_for"] == Waiting.HOST_BELOW_FLOOR
    listed = (await world.call("GET", "/v1/vms?phase=failed")).json()["items"]
    assert sorted(each["id"] for each in listed) == sorted(vms)
    shown = await row(world, deleted)
    assert (shown["phase"], shown["last_error"]) == ("quarantined", None)
    assert await world.pool.fetch("select * from vms order by id") == before
    await set_floor(world.pool, None, ACTOR)
    assert (await row(world, vms[0]))["phase"] == "ready"


@pytest.mark.parametrize(
    ("version", "floor", "floored"),
    [
        ("1.4.0", "1.4.0", False),
        ("1.9.0", "1.10.0", True),
        ("1.10.0", "1.9", False),
        ("dev", "1.4.0", False),
        (None, "1.4.0", False),
    ],
)
async def test_versions_compare_as_versions_in_rows(
    world: World, version: str | None, floor: str, floored: bool
) -> None:
    """H-S5: this control plane is in development, so a worker that is, too, is not below; one never heard is silent."""
    vm_id = await ready(world)
    await runs(world, version)
    await set_floor(world.pool, floor, ACTOR)
    assert ((await row(world, vm_id))["phase"] == "failed") is floored


async def test_a_silent_host_is_unknown_first(world: World) -> None:
    """H-S10, H-S5: it may have been upgraded meanwhile."""
    vm_id = await ready(world)
    await runs(world, "1.2.0")
    await set_floor(world.pool, "1.4.0", ACTOR)
    await world.pool.execute("update hosts set last_report_at = now() - interval '1 hour'")
    await world.pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 day'")
    shown = await row(world, vm_id)
    assert (shown["phase"], shown["last_error"]) == ("unknown", None)


async def test_an_operator_sets_the_floor(world: World) -> None:
    """H-S5, S-37: it names the hosts that it leaves behind, and `host show` says it as a condition."""
    await runs(world, "0.1.0")
    answer = await world.call("PUT", "/v1/floor", json={"min_worker_version": "0.2.0"})
    assert answer.json() == {"min_worker_version": "0.2.0", "below": [{"name": "h1", "worker_version": "0.1.0"}]}
    (condition,) = (await world.call("GET", "/v1/hosts/h1")).json()["conditions"]
    assert (condition["condition"], condition["what"]) == (
        "host_floored",
        SENTENCE.replace("1.4", "0.2").replace("1.2", "0.1"),
    )
    entry = await world.pool.fetchrow("select * from audit order by number desc limit 1")
    assert (entry["action"], entry["before"], entry["after"]) == (
        "fleet.floor",
        {"min_worker_version": None},
        {"min_worker_version": "0.2.0"},
    )
    assert (await world.call("PUT", "/v1/floor", json={"min_worker_version": None})).json()["below"] == []
    for wrong in ("1", "dev", "0.2.0\n", "-1.0", "99.0.0"):
        assert (await world.call("PUT", "/v1/floor", json={"min_worker_version": wrong})).status_code == 422


@pytest.mark.parametrize("how", ["the host is upgraded", "the floor is lowered"])
async def test_what_waits_for_an_upgrade_is_looked_at_once_it_came(world: World, how: str) -> None:
    """H-S5: at once after the host's own, over half a minute after the floor's change (H-S12)."""
    host_id, credential = await world.add_host(name="h2", instance_id=None, last_report_at=None)
    vm_id = (await world.create(host="h2"))["id"]
    report = report_of(1, [vm_report(vm_id)], worker_version="1.2.0")
    await world.as_host(credential, "POST", "/v1/host/report", json=report)
    await set_floor(world.pool, "1.4.0", ACTOR)
    waiting = "waiting_for = 'host_below_floor', due_at = now() + interval '1 hour', wake = 0"
    await world.pool.execute(f"update vms set {waiting} where host_id = $1", host_id)
    if how == "the floor is lowered":
        await set_floor(world.pool, "1.2.0", ACTOR)
    else:
        report = report_of(2, whole=False, worker_version="1.4.1")
        await world.as_host(credential, "POST", "/v1/host/report", json=report)
    found = await world.pool.fetchrow("select wake, due_at - now() < interval '31 seconds' as soon from vms")
    assert (found["wake"], found["soon"]) == (1, True)


@pytest.mark.parametrize(("version", "told"), [("1.2.0", "1.4.0"), ("dev", None)])
async def test_a_host_is_told_the_floor_that_holds_for_it(world: World, version: str, told: str | None) -> None:
    """H-S5: with the epoch, which it takes over in any case."""
    _, credential = await world.add_host(name="h2", instance_id=None, last_report_at=None)
    await set_floor(world.pool, "1.4.0", ACTOR)
    answer = await world.as_host(credential, "POST", "/v1/host/report", json=report_of(1, worker_version=version))
    assert (answer.json()["min_worker_version"], answer.json()["epoch"]) == (told, 1)
