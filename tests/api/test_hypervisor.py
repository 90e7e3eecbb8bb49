"""A hypervisor that a host does not have is refused when it is asked for (X-1)."""

from __future__ import annotations

from typing import Any

from tests.api.conftest import Answer, World, report_of, vm_body

QEMU = {"name": "qemu", "available": True, "why": "a probe guest ran"}
ALLOWED = {"name": "simulated", "available": True, "why": "only told of"}
REFUSED = {"name": "simulated", "available": False, "why": "the host's settings do not allow simulated guests"}


async def add_reporting(world: World, name: str, *hypervisors: dict[str, Any]) -> str:
    host_id, credential = await world.add_host(name=name, instance_id=None)
    report = report_of(1, hypervisors=list(hypervisors), instance_id=name)
    answer = await world.as_host(credential, "POST", "/v1/host/report", json=report)
    assert answer.status_code == 200, answer.text
    return host_id


async def ask(world: World, hypervisor: str, **changed: Any) -> Answer:
    return await world.call("POST", "/v1/vms", json=vm_body(hypervisor=hypervisor, **changed))


async def test_a_named_host_refuses_what_it_said_it_cannot(world: World) -> None:
    """X-1: 409 with the host's own reason, and nothing is made."""
    await add_reporting(world, "plain", QEMU, REFUSED)
    answer = await ask(world, "simulated", host="plain")
    assert answer.status_code == 409
    assert REFUSED["why"] in answer.json()["detail"]
    assert (await world.call("GET", "/v1/vms")).json()["items"] == []
    await add_reporting(world, "both", QEMU, ALLOWED)
    assert (await ask(world, "simulated", host="both")).status_code == 201
    await add_reporting(world, "told", ALLOWED)
    for hypervisor in ("auto", "qemu"):
        assert (await ask(world, hypervisor, host="told")).status_code == 409
    assert (await ask(world, "simulated", host="told")).status_code == 201


async def test_a_host_is_chosen_that_runs_what_was_named(world: World) -> None:
    """X-1, X-4: `auto` goes to no host of simulated guests only; a named one to a host that said it runs them."""
    await world.pool.execute("update hosts set status = 'draining'")
    told = await add_reporting(world, "told", ALLOWED)
    assert (await ask(world, "auto")).status_code == 409
    await add_reporting(world, "plain", QEMU, REFUSED)
    for _ in range(3):
        assert (await ask(world, "auto")).json()["host"]["name"] == "plain"
        assert (await ask(world, "simulated")).json()["host"]["name"] == "told"
    await world.pool.execute("update hosts set status = 'draining' where id = $1", told)
    answer = await ask(world, "simulated")
    assert answer.status_code == 409
    assert "does not run simulated guests" in answer.json()["detail"]
