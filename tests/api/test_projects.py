"""How much a project may have, whatever it asks for and however many ask at once (S-36)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.api.conftest import IMAGE, World, vm_body


async def limit(world: World, project: str = "blue", **limits: int | None) -> Any:
    answer = await world.call("PATCH", f"/v1/projects/{project}", json=limits)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def create(world: World, name: str, **changed: Any) -> Any:
    return await world.call("POST", "/v1/vms", project="blue", json=vm_body(name=name, **changed))


@pytest.mark.parametrize(
    ("limits", "wish", "told"),
    [
        ({"max_vms": 1}, {}, "VMs: may have 1, and would have 2"),
        ({"max_vcpus": 3}, {"cpu_millicores": 2500}, "cpu: may have 3 vCPUs, and would have 3.5"),
        ({"max_memory_mib": 1024}, {"memory_mib": 600}, "memory: may have 1024 MiB, and would have 1112"),
        ({"max_disk_gib": 20}, {"disk_gib": 11}, "disk: may have 20 GiB, and would have 21"),
    ],
)
async def test_a_project_gets_no_more_than_it_may_have(
    world: World, limits: dict[str, int], wish: dict[str, int], told: str
) -> None:
    """S-36, S-32: refused with dimension and numbers of its own, and nothing of it is left; exactly full fits."""
    assert (await create(world, "one", disk_gib=10)).status_code == 201
    await limit(world, **limits)
    refused = await create(world, "two", **wish)
    assert refused.status_code == 409
    assert refused.json()["detail"] == (
        f"the project blue is at its limit: {told}; delete what it does not need, or ask an operator for more"
    )
    held = (await world.call("GET", "/v1/projects/blue", project="blue")).json()["held"]
    assert held == {"vms": 1, "cpu_millicores": 1000, "memory_mib": 512, "disk_gib": 10, "images": 0}
    await limit(world, max_vms=2, max_vcpus=4, max_memory_mib=1112, max_disk_gib=21)
    assert (await create(world, "two", **wish)).status_code == 201


async def test_forty_at_once_get_what_there_is(world: World) -> None:
    """S-36: neither more nor fewer than the limit, whoever comes first, and no deadlock."""
    await limit(world, max_vms=7, max_disk_gib=5)
    await world.token("operator", "blue")
    body = [{"name": f"v-{number}", "size_gib": 1} for number in range(40)]
    volumes = (world.call("POST", "/v1/volumes", project="blue", json=each) for each in body)
    vms = (create(world, f"vm-{number}") for number in range(20))
    answers = await asyncio.gather(*volumes, *vms)
    assert sorted(answer.status_code for answer in answers[:40]) == [201] * 5 + [409] * 35
    assert sorted(answer.status_code for answer in answers[40:]) == [201] * 7 + [409] * 13


async def test_one_waits_for_the_end_of_another_that_may_take_the_last(world: World) -> None:
    """S-36: of two that fit only one by one the second is judged when the first has ended, not beside it."""
    await limit(world, max_disk_gib=1)
    await world.token("operator", "blue")
    async with world.pool.acquire() as connection, connection.transaction():
        await connection.execute("insert into volumes (id, project, name, size_gib) values ('v-1', 'blue', 'first', 1)")
        await connection.execute("set constraints all immediate")
        body = {"name": "second", "size_gib": 1}
        second = asyncio.create_task(world.call("POST", "/v1/volumes", project="blue", json=body))
        await asyncio.sleep(0.5)
        assert not second.done()
    assert (await second).status_code == 409


async def test_what_grows_is_judged_and_what_is_there_stays(world: World) -> None:
    """S-36: a resize, a volume, an image; a limit below what is held touches nothing, and undelete is never refused."""
    vm = (await create(world, "one", disk_gib=10, power_state="stopped")).json()
    await world.pool.execute(
        """update vms set phase = 'ready', first_ready_at = now(), observed_generation = 1, due_at = null,
        observed_power_state = 'stopped', observed_instance = 'i', observed_revision = 1"""
    )
    volume = await world.call("POST", "/v1/volumes", project="blue", json={"name": "v", "size_gib": 5})
    await limit(world, max_vms=0, max_vcpus=1, max_memory_mib=100, max_disk_gib=15, max_images=0)
    for path, body in (
        (f"/v1/vms/{vm['id']}", {"disk_gib": 11}),
        (f"/v1/vms/{vm['id']}", {"cpu_millicores": 1100}),
        (f"/v1/volumes/{volume.json()['id']}", {"size_gib": 6}),
    ):
        refused = await world.call("PATCH", path, project="blue", json=body)
        assert (refused.status_code, "is at its limit" in refused.json()["detail"]) == (409, True), refused.text
    await limit(world, max_disk_gib=20)
    grown = await world.call("PATCH", f"/v1/volumes/{volume.json()['id']}", project="blue", json={"size_gib": 6})
    assert grown.status_code == 200, "what does not rise is not judged"
    image = await world.call("POST", "/v1/images", project="blue", json={"name": "own", "rootfs": IMAGE})
    assert image.json()["detail"].startswith("the project blue is at its limit: images: may have 0")
    shown = (await world.call("GET", f"/v1/vms/{vm['id']}", project="blue")).json()
    assert (shown["disk_gib"], shown["cpu_millicores"], shown["generation"]) == (10, 1000, 1)
    smaller = await world.call("PATCH", f"/v1/vms/{vm['id']}", project="blue", json={"labels": {"a": "b"}})
    assert smaller.status_code == 200
    assert (await world.call("DELETE", f"/v1/vms/{vm['id']}", project="blue")).status_code == 202
    held = (await world.call("GET", "/v1/projects/blue")).json()["held"]
    assert (held["vms"], held["memory_mib"], held["disk_gib"]) == (0, 0, 16), "it can be undeleted: its disk is there"
    assert (await world.call("POST", f"/v1/vms/{vm['id']}/undelete", project="blue")).status_code < 300


async def test_limits_are_finite_unless_said_otherwise(world: World) -> None:
    """S-36, S-31, S-37: of every project but the operators' own; who sets them is written down."""
    shown = (await world.call("GET", "/v1/projects/green", project="green")).json()
    assert all(shown["limits"].values())
    assert set((await world.call("GET", "/v1/projects/default")).json()["limits"].values()) == {None}
    assert (await world.call("GET", "/v1/projects/blue", project="green")).status_code == 404
    await world.call("PATCH", "/v1/projects", json={"max_vms": 3})
    own = await limit(world, "green", max_vcpus=None)
    assert (own["limits"]["max_vms"], own["limits"]["max_vcpus"]) == (3, None)
    await world.call("PATCH", "/v1/projects", json={"max_vms": 4})
    listed = {
        each["name"]: each["limits"]["max_vms"] for each in (await world.call("GET", "/v1/projects")).json()["items"]
    }
    assert listed == {"default": None, "green": 3}
    entry = (await world.call("GET", "/v1/audit?object=project/green")).json()["items"][0]
    assert (entry["action"], entry["after"]) == ("project.limit", {"max_vcpus": None})
