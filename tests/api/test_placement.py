"""Room and refusals as callers see them (H-P4, H-P5, H-P7, S-32)."""

from __future__ import annotations

from typing import Any

from tests.api.conftest import World, report_of, vm_body

CAPS = {"max_memory_mib": 1024}


async def add_capped(world: World, name: str, **caps: Any) -> str:
    """Take the fixture's own host out, and add one that has reported its caps."""
    await world.pool.execute("update hosts set status = 'draining' where report is null")
    host_id, credential = await world.add_host(name=name, instance_id=None)
    report = report_of(1, caps=caps or CAPS, held={}, instance_id=name)
    assert (await world.as_host(credential, "POST", "/v1/host/report", json=report)).status_code == 200
    return host_id


async def test_a_refusal_tells_operators_all_and_a_project_its_own_wish(world: World) -> None:
    """H-P4, H-P5, S-32: 409, not to be retried; the project reads no host, no cap and nothing of others."""
    host_id = await add_capped(world, "rack-1")
    await world.create(memory_mib=768)
    answer = await world.call("POST", "/v1/vms", json=vm_body(memory_mib=512, host="rack-1"))
    assert (answer.status_code, answer.json()["retryable"]) == (409, False)
    assert answer.json()["detail"] == (
        f"host rack-1 ({host_id}) refuses: memory: needs 512 MiB, holds 768 of 1024 MiB; its operator set that limit: "
        "ask for less, delete a VM there, or go elsewhere"
    )
    chosen = await world.call("POST", "/v1/vms", json=vm_body(memory_mib=512))
    assert chosen.status_code == 409
    assert f"rack-1 ({host_id}) refuses: memory" in chosen.json()["detail"]
    assert "is draining" in chosen.json()["detail"]
    told = (await world.call("POST", "/v1/vms", project="p", json=vm_body(memory_mib=512))).json()
    assert told["detail"].endswith("no room: 1); memory: needs 512 MiB")
    assert not any(word in told["detail"] for word in ("rack-1", host_id, "768", "1024"))
    assert len((await world.call("GET", "/v1/vms")).json()["items"]) == 1
    assert (await world.call("POST", "/v1/vms", project="p", json=vm_body(memory_mib=256))).status_code == 201


async def test_a_host_shows_what_is_held_and_by_how_much_it_is_over(world: World) -> None:
    """H-P7: unreported is null, and a cap lowered below what is held touches no VM."""
    await add_capped(world, "rack-1", max_memory_mib=1024)
    vm = await world.create(memory_mib=768)
    shown = (await world.call("GET", "/v1/hosts/rack-1")).json()
    assert shown["held"]["live"]["memory_mib"] == 768
    assert (shown["caps"]["max_memory_mib"], shown["over_by"]) == (1024, None)
    await world.pool.execute("""update hosts set report = report || '{"caps": {"max_memory_mib": 512}}'""")
    await world.pool.execute("update vms set ssh_host_key = 'key'")
    assert (await world.call("DELETE", f"/v1/vms/{vm['id']}")).status_code == 202
    shown = (await world.call("GET", "/v1/hosts/rack-1")).json()
    assert shown["over_by"]["memory_mib"] == 256
    assert (shown["held"]["leaving"]["memory_mib"], shown["held"]["leaving_vms"]) == (768, 1)
    await world.add_host(name="new", last_report_at=None, instance_id=None, status="joining")
    assert (await world.call("GET", "/v1/hosts/new")).json()["caps"] is None


async def test_cordon_and_uncordon(world: World) -> None:
    """H-P1, H-E2: an operator of the fleet may, a project may not."""
    await add_capped(world, "rack-1")
    for role, project, status in (("viewer", None, 403), ("operator", "p", 403), ("operator", None, 200)):
        answer = await world.call("POST", "/v1/hosts/rack-1/cordon", role=role, project=project)
        assert answer.status_code == status
    assert answer.json()["status"] == "cordoned"
    refused = await world.call("POST", "/v1/vms", json=vm_body(host="rack-1"))
    assert (refused.status_code, "is cordoned" in refused.json()["detail"]) == (409, True)
    assert (await world.call("POST", "/v1/hosts/rack-1/uncordon")).json()["status"] == "ready"
    assert (await world.call("POST", "/v1/vms", json=vm_body(host="rack-1"))).status_code == 201


async def test_a_vm_goes_to_a_host_that_is_labelled_as_it_asks(world: World) -> None:
    """H-P1: an operator of the fleet labels hosts; who asks for a label that none has is told of each host."""
    await add_capped(world, "rack-1")
    await add_capped(world, "rack-2")
    labels = {"labels": {"disk": "nvme"}}
    for role, project, status in (("viewer", None, 403), ("operator", "p", 403), ("operator", None, 200)):
        answer = await world.call("PATCH", "/v1/hosts/rack-2", json=labels, role=role, project=project)
        assert answer.status_code == status
    assert answer.json()["labels"] == labels["labels"]
    made = await world.call("POST", "/v1/vms", json=vm_body(host_labels={"disk": "nvme"}, anti_affinity_group="db"))
    vm = made.json()
    assert (made.status_code, vm["host"]["name"], vm["anti_affinity_group"]) == (201, "rack-2", "db")
    assert vm["host_labels"] == {"disk": "nvme"}
    again = await world.call("PUT", f"/v1/vms/{vm['id']}", json=vm_body(name=vm["name"], anti_affinity_group="web"))
    assert again.status_code == 409, "another group is another wish (L-N4)"
    refused = (await world.call("POST", "/v1/vms", json=vm_body(host_labels={"disk": "tape"}))).json()["detail"]
    assert refused.count("is not labelled disk=tape") == 2
