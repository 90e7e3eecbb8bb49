"""A VM's firewall as callers give it, and as its host gets it (N-5)."""

from __future__ import annotations

from typing import Any

import pytest

from model.firewall import Firewall, network_digest
from store.database import reading
from store.rows import read_row
from tests.api.conftest import World, vm_body

ALL = {"protocol": "any", "ports": None, "prefixes": ["0.0.0.0/0"]}
SSH = {"protocol": "tcp", "ports": "22", "prefixes": ["192.0.2.0/24", "2001:db8::/32"]}
RANGE = {"protocol": "udp", "ports": "8000-8080", "prefixes": ["198.51.100.7/32"]}
NONE = {"enabled": False, "inbound": [], "outbound": []}
GIVEN = {"enabled": True, "inbound": [SSH, RANGE], "outbound": [ALL]}


def many(number: int) -> list[str]:
    return [f"10.0.{n}.0/24" for n in range(number)]


async def test_it_is_made_shown_changed_and_taken_back(world: World) -> None:
    """N-5, L-N1: a change of its own; what is the same moves nothing; the guest's own input stays the same."""
    vm = await world.create(firewall=GIVEN)
    path = f"/v1/vms/{vm['id']}"
    assert vm["firewall"] == GIVEN
    assert (await world.create())["firewall"] == NONE

    async def digests() -> tuple[str | None, str]:
        async with reading(world.pool) as connection:
            row = await read_row(connection, vm["id"], 0)
        assert row is not None
        return row.desired.network_digest, row.desired.input_digest

    made = await digests()
    assert made[0] == network_digest(Firewall.model_validate(GIVEN))
    same = (await world.call("PATCH", path, json={"firewall": GIVEN})).json()
    assert same["generation"] == 1
    off = (await world.call("PATCH", path, json={"firewall": {**GIVEN, "enabled": False}})).json()
    assert (off["generation"], off["spec_generation"], off["firewall"]) == (2, 1, {**GIVEN, "enabled": False})
    assert (off["settled"], off["at_next_boot"]) == (False, [])
    kept = await digests()
    assert (kept[0] != made[0], kept[1]) == (True, made[1])
    assert (await world.call("PATCH", path, json={"firewall": NONE})).json()["firewall"] == NONE
    assert await digests() == (None, made[1]), "as of a VM that never had one"
    audit = (await world.call("GET", "/v1/audit")).json()["items"]
    shown = next(each for each in audit if (each.get("after") or {}).get("firewall") == {**GIVEN, "enabled": False})
    assert shown["before"]["firewall"] == GIVEN


async def test_the_same_request_again_is_the_same_vm(world: World) -> None:
    """L-N4: with another firewall it is another request."""
    path, body = "/v1/vms/vm-of-mine", vm_body(firewall=GIVEN)
    assert (await world.call("PUT", path, json=body)).status_code == 201
    assert (await world.call("PUT", path, json=body)).status_code == 200
    other = {**body, "firewall": {**GIVEN, "outbound": []}}
    assert (await world.call("PUT", path, json=other)).status_code == 409


async def test_its_host_gets_it_with_the_input(world: World) -> None:
    """S-5, N-5: whatever the input's digest, the firewall that is wanted now."""
    host_id, credential = await world.add_host()
    vm = await world.create(host=host_id, firewall=NONE)
    await world.call("PATCH", f"/v1/vms/{vm['id']}", json={"firewall": GIVEN})
    digest = await world.pool.fetchval("select input_digest from vms where id = $1", vm["id"])
    answer = await world.as_host(credential, "GET", f"/v1/host/vms/{vm['id']}/input", params={"digest": digest})
    assert answer.json()["firewall"] == GIVEN


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"inbound": []}, "/enabled", "is missing"),
    ({"enabled": "yes"}, "/enabled", "must be true or false"),
    ({"enabled": True, "both": []}, "/both", "unknown field"),
    ({"enabled": True, "inbound": {}}, "/inbound", "must be a list"),
    ({"enabled": True, "inbound": [{**ALL, "prefixes": []}]}, "/inbound/0/prefixes", "at least 1"),
    ({"enabled": True, "inbound": [{"protocol": "any"}]}, "/inbound/0/prefixes", "is missing"),
    ({"enabled": True, "outbound": [ALL, {**ALL, "protocol": "gre"}]}, "/outbound/1/protocol", "must be"),
    ({"enabled": True, "outbound": [{**ALL, "ports": "22"}]}, "/outbound/0/ports", "only tcp and udp have ports"),
    ({"enabled": True, "inbound": [{"ports": "22", "prefixes": ["0.0.0.0/0"]}]}, "/inbound/0/ports", "only tcp"),
    ({"enabled": True, "inbound": [{**SSH, "protocol": "icmp"}]}, "/inbound/0/ports", "only tcp and udp"),
    ({"enabled": True, "inbound": [SSH, {**ALL, "comment": "x"}]}, "/inbound/1/comment", "unknown field"),
    *(
        ({"enabled": True, "inbound": [{**SSH, "ports": ports}]}, "/inbound/0/ports", words)
        for ports, words in [
            ("65536", "at most 65535"),
            ("80-79", "ascends"),
            ("80-80", "ascends"),
            ("080", "must be a port"),
            ("22\n", "must be a port"),
            ("\u0662\u0662", "must be a port"),
            ("-22", "must be a port"),
            ("22,80", "must be a port"),
            ("", "must be a port"),
            (22, "must be text"),
        ]
    ),
    *(
        ({"enabled": True, "outbound": [{**ALL, "prefixes": ["0.0.0.0/0", prefix]}]}, "/outbound/0/prefixes/1", words)
        for prefix, words in [
            ("192.0.2.1/24", "canonical way: 192.0.2.0/24"),
            ("192.0.2.1", "canonical way: 192.0.2.1/32"),
            ("192.0.2.0/255.255.255.0", "canonical way: 192.0.2.0/24"),
            ("2001:DB8::/32", "canonical way: 2001:db8::/32"),
            ("192.0.2.0/33", "must be a prefix"),
            ("everyone", "must be a prefix"),
            ("192.0.2.0/24\n", "must be"),
            (7, "must be text"),
        ]
    ),
    (
        {"enabled": True, "inbound": [{**ALL, "prefixes": many(25)}], "outbound": [{**ALL, "prefixes": many(26)}]},
        "",
        "at most 50 prefixes in all its rules; these are 51",
    ),
    ({"enabled": False, "inbound": [{**ALL, "prefixes": many(51)}]}, "/inbound/0/prefixes", "at most 50"),
]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_what_cannot_be_is_refused_with_its_place(world: World, method: str) -> None:
    """N-5, A-1: each field by its pointer; nothing is taken."""
    vm = await world.create()
    path = "/v1/vms" if method == "POST" else f"/v1/vms/{vm['id']}"
    for given, pointer, words in BAD:
        body = vm_body(firewall=given) if method == "POST" else {"firewall": given}
        answer = await world.call(method, path, json=body)
        assert answer.status_code == 422, (given, answer.text)
        (error,) = answer.json()["errors"]
        assert error["pointer"] == f"/firewall{pointer}", (given, error)
        assert words in error["detail"], (given, error)
    assert (await world.call("PATCH", f"/v1/vms/{vm['id']}", json={"firewall": None})).status_code == 422
    assert await world.pool.fetchval("select count(*) from vms") == 1


async def test_fifty_prefixes_are_taken(world: World) -> None:
    """N-5."""
    given = {"enabled": True, "inbound": [{**ALL, "prefixes": many(25)}], "outbound": [{**ALL, "prefixes": many(25)}]}
    assert (await world.create(firewall=given))["firewall"] == given
