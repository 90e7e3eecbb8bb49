"""`hostler restore`: what it lists, how several are settled, what it says next (H-R1)."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Runner
from tests.cli.fleet import HOST_ID, Fleet


def item(vm_id: str, kind: str, choices: list[str], **changed: Any) -> dict[str, Any]:
    plain = {"vm_id": vm_id, "host_id": HOST_ID, "host_name": "host-1", "name": vm_id, "kind": kind, "choice": None}
    return {**plain, "choices": choices, "differs": ["it was changed since"], **changed}


def restoring(*items: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    told = {"behind": True, "since": None, "why": "it was copied", "epoch": 1, "unheard": [], "items": list(items)}
    return 200, told


def test_what_has_to_be_settled_is_listed_with_its_choices(fleet: Fleet, hostler: Runner) -> None:
    fleet.answers["GET", "/v1/restore"] = restoring(item("web-1", "changed", ["row", "host"]))
    found = hostler("restore")
    assert found.code == 0
    assert "it was copied" in found.out
    assert "(row|host)" in found.out
    assert "1 of 1 VMs" in found.out
    assert "row: make it what the restored row says" in found.err
    fleet.answers["GET", "/v1/restore"] = restoring(item("web-1", "changed", ["row", "host"], choice="row"))
    assert "`hostler restore --finish` goes on from here" in hostler("restore").err
    fleet.answers["GET", "/v1/restore"] = (200, {"behind": False, "epoch": 7, "items": []})
    assert hostler("restore").err == "nothing is being restored; the epoch is 7\n"


def test_one_or_all_of_a_kind_are_settled(fleet: Fleet, hostler: Runner) -> None:
    items = [
        item("a", "changed", ["row"]),
        item("b", "changed", ["row"]),
        item("c", "missing", ["leave"]),
        item("d", "changed", ["row"], choice="host"),
    ]
    fleet.answers["GET", "/v1/restore"] = restoring(*items)
    for each in items:
        fleet.answers["POST", f"/v1/restore/vms/{each['vm_id']}"] = (200, each)
    assert hostler("restore", "--settle", "changed=row", "--settle", "c=leave").code == 0
    posted = [(asked.path, asked.body) for asked in fleet.asked if asked.method == "POST"]
    assert posted == [
        ("/v1/restore/vms/a", {"choice": "row", "host": HOST_ID}),
        ("/v1/restore/vms/b", {"choice": "row", "host": HOST_ID}),
        ("/v1/restore/vms/c", {"choice": "leave", "host": HOST_ID}),
    ]
    for wrong in ("a", "a=eat", "nobody=row"):
        assert hostler("restore", "--settle", wrong).code == 2


def test_begin_and_finish(fleet: Fleet, hostler: Runner) -> None:
    fleet.answers["POST", "/v1/restore/begin"] = fleet.answers["GET", "/v1/restore"] = restoring()
    fleet.answers["POST", "/v1/restore/finish"] = (200, {"behind": False, "epoch": 2, "items": []})
    assert "nothing has to be settled" in hostler("restore", "--begin").err
    assert "the epoch is 2" in hostler("restore", "--finish").err
