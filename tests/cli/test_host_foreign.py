"""What a host holds without a row, on the command line: listed with why, adopted, quarantined, left (H-R2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Runner
from tests.cli.fleet import Fleet, vm

VM = "0190a0a0-0000-7000-8000-000000000001"
PATH = "/v1/hosts/host-1/foreign"


def held(**changed: Any) -> dict[str, Any]:
    plain = dict.fromkeys(("placed_on", "unreadable", "choice", "named_since", "quarantined_at"))
    return {
        "vm_id": VM,
        "power_state": "running",
        "seen_at": "2026-01-01T00:00:00Z",
        "is_gone": False,
        **plain,
        **changed,
    }


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, "stopped and kept once a second whole report names it: adopt or leave it before"),
        ({"choice": "braked"}, "too many have no row: adopt, quarantine or leave it"),
        ({"choice": "left", "placed_on": "h2"}, "left as it is"),
        ({"placed_on": "h2"}, "its row names the host h2: stopped once a second whole report names it"),
        ({"placed_on": "h2", "choice": "stopped"}, "its row names the host h2: stopped and kept"),
        ({"is_gone": True}, "it was destroyed within the last 30 days, and is left alone"),
        ({"unreadable": "status.json is cut"}, "its record cannot be read, so it is left alone: status.json is cut"),
    ],
)
def test_each_is_listed_with_why_it_is_as_it_is(
    fleet: Fleet, hostler: Runner, changed: dict[str, Any], why: str
) -> None:
    """H-R2, L-R1."""
    fleet.answers["GET", PATH] = (200, {"items": [held(**changed)], "next_cursor": None})
    found = hostler("host", "foreign", "host-1")
    assert found.code == 0, found.err
    assert found.out.splitlines()[-1].split(maxsplit=2) == [VM, "running", why]


def test_each_choice_asks_for_what_it_says(fleet: Fleet, hostler: Runner) -> None:
    """H-R2: in one line what becomes of it."""
    calls: list[tuple[tuple[str, ...], dict[str, Any], Any, str]] = [
        (("adopt", "--project", "p", "--rename", "w"), vm(name="w"), {"project": "p", "name": "w"}, "w is adopted"),
        (("quarantine",), held(choice="stopped"), {}, f"{VM} is stopped and kept; `hostler host adopt host-1 {VM}`"),
        (("quarantine",), held(placed_on="h2"), {}, "whose row names the host h2, is stopped and kept"),
        (("leave",), held(choice="left"), None, "is left as it is"),
    ]
    for (verb, *more), answered, body, told in calls:
        fleet.answers["POST", f"{PATH}/{VM}/{verb}"] = (202, answered)
        found = hostler("host", verb, "host-1", VM, *more)
        assert found.code == 0, found.err
        assert told in found.err
        assert fleet.asked[-1].body == body
