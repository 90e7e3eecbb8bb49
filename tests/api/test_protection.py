"""Termination protection: who may not be deleted, and what the last accepted verb leads to (L-R9)."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import pytest

from tests.api.conftest import World, vm_body

VERBS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "protect": ("PATCH", "", {"json": {"termination_protection": True}}),
    "unprotect": ("PATCH", "", {"json": {"termination_protection": False}}),
    "delete": ("DELETE", "", {}),
    "undelete": ("POST", "/undelete", {}),
}


async def call(world: World, vm_id: str, verb: str) -> int:
    method, path, more = VERBS[verb]
    return (await world.call(method, f"/v1/vms/{vm_id}{path}", **more)).status_code


async def state(world: World, vm_id: str) -> tuple[bool, bool]:
    shown = (await world.call("GET", f"/v1/vms/{vm_id}")).json()
    return shown["termination_protection"], shown["quarantine"] is not None


def judge(verb: str, protected: bool, deleted: bool) -> tuple[bool, bool, bool]:
    """Say whether a verb is accepted, and what is so afterwards."""
    if verb in ("protect", "unprotect"):
        return (False, protected, deleted) if deleted else (True, verb == "protect", deleted)
    if verb == "delete":
        return (False, protected, deleted) if protected else (True, protected, True)
    return True, protected, False


@pytest.mark.parametrize("verbs", list(permutations(VERBS)), ids=" ".join)
async def test_f8_the_last_accepted_verb_wins_in_every_order(world: World, verbs: tuple[str, ...]) -> None:
    """Case F8: each verb twice over, so that each also meets what it brought about; every refusal is a 409."""
    vm_id = (await world.create())["id"]
    protected = deleted = False
    for verb in (*verbs, *verbs):
        accepted, protected, deleted = judge(verb, protected, deleted)
        answer = await call(world, vm_id, verb)
        assert (answer < 300) is accepted, (verb, answer)
        assert accepted or answer == 409
        assert await state(world, vm_id) == (protected, deleted)


async def test_f8_at_once_no_verb_is_lost_and_none_leaves_it_stuck(world: World) -> None:
    """Case F8: whatever won, it is never protected and deleted at once, and can still be deleted and brought back."""
    vm_id = (await world.create())["id"]
    for _ in range(4):
        answers = await asyncio.gather(*(call(world, vm_id, verb) for verb in (*VERBS, *VERBS)))
        assert {answer for answer in answers if answer >= 300} <= {409}
        assert await state(world, vm_id) != (True, True)
    await call(world, vm_id, "undelete")
    for verb in ("unprotect", "delete", "undelete", "protect"):
        assert await call(world, vm_id, verb) < 300
    assert await state(world, vm_id) == (True, False)


async def test_f10_a_protected_vm_is_not_deleted(world: World) -> None:
    """Case F10, L-R9: at create or later; 409 names the flag and says how to clear it, also for one without grace."""
    vm = (await world.call("POST", "/v1/vms", json=vm_body(termination_protection=True))).json()
    path = f"/v1/vms/{vm['id']}"
    assert vm["termination_protection"]
    for query in ("", "?now=true", "?grace=2h"):
        refused = await world.call("DELETE", path + query)
        assert refused.status_code == 409
        assert "termination_protection" in refused.json()["detail"]
        assert f"hostler vm unprotect {vm['name']}" in refused.json()["detail"]
    assert (await world.call("GET", path)).json()["generation"] == 1
    cleared = (await world.call("PATCH", path, json={"termination_protection": False})).json()
    assert (cleared["generation"], cleared["spec_generation"]) == (2, 1)
    assert (await world.call("DELETE", path)).status_code == 202
    back = (await world.call("POST", f"{path}/undelete")).json()
    assert (back["id"], back["mac"], back["quarantine"]) == (vm["id"], vm["mac"], None)
    await world.call("DELETE", f"{path}?now=true")
    await world.pool.execute("update vms set destroying = true")
    assert (await world.call("POST", f"{path}/undelete")).status_code == 410


async def test_protection_keeps_a_grace_from_being_shortened(world: World) -> None:
    """L-R9: a second delete is a delete."""
    vm_id = (await world.create())["id"]
    await world.call("DELETE", f"/v1/vms/{vm_id}")
    await world.pool.execute("update vms set termination_protection = true")
    before = await world.pool.fetchval("select destroy_at from vms")
    assert (await world.call("DELETE", f"/v1/vms/{vm_id}?now=true")).status_code == 409
    assert await world.pool.fetchval("select destroy_at from vms") == before
