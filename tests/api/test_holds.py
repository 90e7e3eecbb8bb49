"""While an operation holds a VM, every route that changes it is refused by that operation's name (L-G12)."""

from __future__ import annotations

from typing import Any

import pytest

from model.ids import new_id
from store.hold import HoldStore
from tests.api.conftest import SHA, World, vm_body
from tests.api.test_gate import CALLS, filled

VM = "/v1/vms/{vm_id}"


def body(signature: str) -> dict[str, Any]:
    return vm_body(name="held", image={"url": f"https://images.test/root.qcow2?signature={signature}", "sha256": SHA})


# What each route that changes a VM is sent; None: it is accepted while the VM is held.
CHANGES: dict[tuple[str, str], dict[str, Any] | None] = {
    ("PUT", VM): body("2"),
    ("PATCH", VM): {"labels": {"a": "b"}},
    ("POST", f"{VM}/restart"): {},
    ("POST", f"{VM}/rebuild"): {},
    ("POST", f"{VM}/retry"): {},
    ("PUT", f"{VM}/volumes/{{volume}}"): {},
    ("DELETE", f"{VM}/volumes/{{volume}}"): {},
    ("DELETE", VM): None,
    # It only takes a delete back that waits, before anything came of it.
    ("POST", f"{VM}/undelete"): None,
}


def sent(method: str, path: str) -> dict[str, Any]:
    given = CHANGES[method, path]
    return {"json": given} if given else {}


def test_the_table_knows_every_route_that_changes_a_vm() -> None:
    """L-G12: a new one is refused, or stands there with its reason."""
    assert {call for call in CALLS if call[0] != "GET" and call[1].startswith(VM)} == set(CHANGES)


@pytest.mark.parametrize(("method", "path"), [call for call, given in CHANGES.items() if given is not None])
async def test_a_change_of_a_held_vm_is_refused_by_its_holders_name(world: World, method: str, path: str) -> None:
    """L-G12: 409, nothing moved; once it is released the same request is taken."""
    vm_id, holds = new_id(), HoldStore(world.pool)
    options = {"json": {}} if path.endswith("/rebuild") else sent(method, path)
    made = await world.call("PUT", filled(VM, vm_id), json=body("1"))
    assert made.status_code == 201, made.text
    if "volumes" in path:
        await world.call("POST", "/v1/volumes", json={"name": "data", "size_gib": 1})
        if method == "DELETE":
            await world.call("PUT", filled(path, vm_id))
    await holds.take(vm_id, by="a migration", token="mine")
    before = await world.pool.fetchrow("select * from vms")
    refused = await world.call(method, filled(path, vm_id), **options)
    assert (refused.status_code, "held by a migration" in refused.json()["detail"]) == (409, True), refused.text
    assert await world.pool.fetchrow("select * from vms") == before
    assert (await world.call("GET", "/v1/vms")).json()["items"][0]["held_by"] == "a migration"
    await holds.release(vm_id, token="mine")
    taken = await world.call(method, filled(path, vm_id), **options)
    assert taken.status_code < 300, taken.text


async def test_the_same_request_and_a_delete_are_taken(world: World) -> None:
    """L-G12, L-N4: what changes nothing is no change; a delete waits, and can be taken back."""
    vm_id = new_id()
    await world.call("PUT", filled(VM, vm_id), json=body("1"))
    await HoldStore(world.pool).take(vm_id, by="a migration", token="mine")
    assert (await world.call("PUT", filled(VM, vm_id), json=body("1"))).status_code == 200
    deleted = await world.call("DELETE", filled(VM, vm_id))
    assert (deleted.status_code, deleted.json()["phase"], deleted.json()["settled"]) == (202, "quarantined", False)
    assert (await world.call("GET", filled(VM, vm_id))).json()["why"]["waits_for"] == "hold"
    assert (await world.call("POST", filled(f"{VM}/undelete", vm_id))).status_code == 202
    assert await world.pool.fetchval("select held and not deleted from vms")
