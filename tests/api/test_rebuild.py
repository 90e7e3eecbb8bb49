"""A rebuild is accepted once, counted, refused where it would lose something, and undone (L-V10, L-R9, L-N2, L-N3)."""

from __future__ import annotations

from tests.api.conftest import IMAGE, World

OTHER = {**IMAGE, "url": "https://images.test/other.qcow2?sig=1", "sha256": "b" * 64}
COUNTERS = ("generation", "spec_generation", "rebuild_generation", "restart_generation")


async def ready(world: World) -> str:
    vm = await world.create(user_data="#!/bin/sh")
    await world.pool.execute("update vms set phase = 'ready', first_ready_at = now(), observed_generation = 1")
    return f"/v1/vms/{vm['id']}"


async def told(world: World) -> None:
    """A pass has told of the last rebuild."""
    await world.pool.execute("update vms set applied_rebuild_generation = rebuild_generation")


async def test_a_rebuild_is_counted_once_and_keeps_the_old_disk(world: World) -> None:
    """L-N2, L-N3, L-V10."""
    path = await ready(world)
    vm = (await world.call("POST", f"{path}/rebuild", json={"image": OTHER})).json()
    assert [vm[name] for name in COUNTERS] == [2, 2, 1, 0]
    assert (vm["operation"]["kind"], vm["image"]) == ("rebuild", "https://images.test/other.qcow2")
    assert vm["old_disk_until"] is not None
    await told(world)
    refused = await world.call("POST", f"{path}/rebuild", json={})
    assert (refused.status_code, "undo" in refused.json()["detail"]) == (409, True)
    undone = (await world.call("POST", f"{path}/rebuild", json={"undo": True})).json()
    assert [undone[name] for name in COUNTERS] == [3, 3, 2, 0]
    assert undone["image"] == IMAGE["url"]
    assert (await world.call("POST", f"{path}/rebuild", json={"undo": True})).status_code == 409, "under way"
    await told(world)
    again = await world.call("POST", f"{path}/rebuild", json={"discard": True})
    assert (again.status_code, again.json()["rebuild_generation"]) == (202, 3)


async def test_a_rebuild_is_refused_under_protection_and_with_a_moved_generation(world: World) -> None:
    """L-R9, A-4."""
    path = await ready(world)
    assert (await world.call("POST", f"{path}/rebuild", json={}, headers={"if-match": '"9"'})).status_code == 412
    assert (await world.call("POST", f"{path}/rebuild", json={"undo": True})).status_code == 409
    assert (await world.call("POST", f"{path}/rebuild", json={"undo": True, "discard": True})).status_code == 422
    await world.call("PATCH", path, json={"termination_protection": True})
    refused = await world.call("POST", f"{path}/rebuild", json={})
    assert (refused.status_code, "termination_protection" in refused.json()["detail"]) == (409, True)


async def test_an_undo_that_cannot_end_is_overtaken_only_where_the_kept_disk_may_be_lost(world: World) -> None:
    """L-V10: which disk is put aside then nobody can tell, so none is offered."""
    path = await ready(world)
    await world.call("POST", f"{path}/rebuild", json={})
    await told(world)
    assert (await world.call("POST", f"{path}/rebuild", json={"undo": True})).status_code == 202
    refused = await world.call("POST", f"{path}/rebuild", json={})
    assert (refused.status_code, "discard" in refused.json()["detail"]) == (409, True)
    assert (await world.call("POST", f"{path}/rebuild", json={"discard": True})).status_code == 202
    assert (await world.call("POST", f"{path}/rebuild", json={"undo": True})).status_code == 409


async def test_a_vm_that_never_was_ready_has_no_disk_to_bring_back(world: World) -> None:
    """L-V10: it is created from the other image."""
    vm = await world.create()
    path = f"/v1/vms/{vm['id']}/rebuild"
    assert (await world.call("POST", path, json={"image": OTHER})).json()["image"] == "https://images.test/other.qcow2"
    assert (await world.call("POST", path, json={"undo": True})).status_code == 409


async def test_a_rebuild_is_refused_where_the_hosts_worker_is_too_old_for_it(world: World) -> None:
    """H-D4, L-V10: a pass would stop the guest first, and could go no further."""
    path = await ready(world)
    await world.pool.execute(
        """update hosts set worker_version = '0.1.0',
            activity_names = array_remove(activity_names, 'ensure_disk_set_aside')"""
    )
    refused = await world.call("POST", f"{path}/rebuild", json={})
    assert (refused.status_code, "upgrade Hostler there" in refused.json()["detail"]) == (409, True)
    assert (await world.call("GET", path)).json()["generation"] == 1
