"""The commands for volumes: what they ask of the API, and what they tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import Runner
from tests.cli.fleet import HOST_ID, VM_ID, Fleet, problem, vm

ID = "01890a5d-ac96-774b-bcce-b302099a8100"


def volume(**changes: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "name": "data",
        "size_gib": 10,
        "made_bytes": None,
        "serial": "vabcdefghijkl",
        "host": {"id": HOST_ID, "name": "host-1"},
        "vm": None,
        "deleted": False,
        "destroying": False,
        "destroy_at": None,
        "created_at": "2026-01-01T00:00:00+00:00",
        **changes,
    }


def test_each_command_asks_for_what_it_says(fleet: Fleet, hostler: Runner) -> None:
    """H-V1 to H-V4: make, grow, delete, bring back; in one line what it is now."""
    has = {"id": VM_ID, "name": "web-1"}
    gone = {"deleted": True, "destroying": True}
    calls: list[tuple[tuple[str, ...], str, str, dict[str, Any], Any, str]] = [
        (("create", "data", "--size", "10"), "POST", "", volume(), {"name": "data", "size_gib": 10}, "has 10 GiB"),
        (("resize", "data", "--size", "20G"), "PATCH", "/data", volume(vm=has), {"size_gib": 20}, "web-1 gets it now"),
        (("rm", "data", "--now"), "DELETE", "/data", volume(**gone), None, "being removed by its host"),
        (("undelete", "data"), "POST", "/data/undelete", volume(), None, "data is back"),
    ]
    for words, method, path, answered, body, told in calls:
        fleet.answers[method, f"/v1/volumes{path}"] = (200, answered)
        found = hostler("volume", *words)
        assert found.code == 0, found.err
        assert told in found.err
        assert (fleet.asked[-1].method, fleet.asked[-1].body) == (method, body)


def test_a_volume_without_a_row_is_listed_and_adopted(fleet: Fleet, hostler: Runner) -> None:
    """H-R1."""
    path = "/v1/hosts/host-1/foreign-volumes"
    items = [{"volume_id": ID, "size_bytes": 1 << 30, "vm_id": VM_ID}]
    fleet.answers["GET", path] = (200, {"items": items, "next_cursor": None})
    fleet.answers["POST", f"{path}/{ID}/adopt"] = (201, volume())
    assert ID in hostler("volume", "foreign", "host-1").out
    assert hostler("volume", "adopt", "host-1", ID, "data").code == 0
    assert fleet.asked[-1].body == {"name": "data"}


def test_lists_and_shows(fleet: Fleet, hostler: Runner) -> None:
    items = [volume(), volume(name="logs", made_bytes=1 << 30, vm={"id": VM_ID, "name": "web-1"})]
    fleet.answers["GET", "/v1/volumes"] = (200, {"items": items, "next_cursor": None})
    fleet.answers["GET", "/v1/volumes/data"] = (200, volume())
    found = hostler("volume", "ls", "--vm", "web-1")
    assert "not made yet" in found.out
    assert "web-1" in found.out
    assert fleet.asked[-1].query["vm"] == VM_ID
    assert "vabcdefghijkl" in hostler("volume", "show", "data").out
    assert json.loads(hostler("volume", "show", "data", "--json").out)["id"] == ID


@pytest.mark.parametrize(("verb", "method"), [("attach", "PUT"), ("detach", "DELETE")])
def test_attach_and_detach_tell_a_refusal_whole(fleet: Fleet, hostler: Runner, verb: str, method: str) -> None:
    """H-V1, A-1."""
    fleet.answers[method, f"/v1/vms/{VM_ID}/volumes/data"] = (202, vm())
    assert hostler("vm", verb, "web-1", "data").code == 0
    fleet.answers[method, f"/v1/vms/{VM_ID}/volumes/data"] = (409, problem(409, "the volume data is on another host"))
    found = hostler("vm", verb, "web-1", "data")
    assert (found.code, "the volume data is on another host" in found.err) == (1, True)


def test_a_vm_is_made_with_its_volumes(fleet: Fleet, hostler: Runner) -> None:
    """L-C11: in the order given."""
    hostler("vm", "create", "web-1", "--image", "demo", "--volume", "logs", "--volume", "data", "--no-wait")
    assert next(each.body for each in fleet.asked if each.method == "POST")["volumes"] == ["logs", "data"]
