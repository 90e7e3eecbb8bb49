"""The commands for a VM's firewall: what they send, and what they show (N-5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Runner
from tests.cli.fleet import VM_ID, Fleet, vm

SSH = {"protocol": "tcp", "ports": "22", "prefixes": ["192.0.2.0/24", "198.51.100.7/32"]}
ALL = {"protocol": "any", "prefixes": ["0.0.0.0/0"]}
THERE = {"enabled": False, "inbound": [SSH], "outbound": [ALL]}
SSH_WORDS, ALL_WORDS = "tcp:22@192.0.2.0/24,198.51.100.7/32", "any@0.0.0.0/0"


@pytest.fixture
def there(fleet: Fleet) -> Fleet:
    row = vm(firewall=THERE)
    fleet.answers["GET", f"/v1/vms/{VM_ID}"] = (200, row)
    fleet.answers["GET", "/v1/vms"] = (200, {"items": [row], "next_cursor": None})
    fleet.answers["PATCH", f"/v1/vms/{VM_ID}"] = (200, row)
    return fleet


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (("--enable",), {**THERE, "enabled": True}),
        (("--disable",), THERE),
        (("--inbound", ALL_WORDS), {"enabled": True, "inbound": [ALL], "outbound": [ALL]}),
        (("--outbound", SSH_WORDS, "--outbound", ALL_WORDS), {**THERE, "enabled": True, "outbound": [SSH, ALL]}),
        (("--outbound", SSH_WORDS, "--disable"), {**THERE, "outbound": [SSH]}),
        ((json.dumps({"enabled": True, "inbound": [ALL]}),), {"enabled": True, "inbound": [ALL]}),
        ((json.dumps({"inbound": [ALL]}), "--enable"), {"enabled": True, "inbound": [ALL]}),
    ],
)
def test_what_is_given_is_sent_and_the_rest_kept(
    there: Fleet, hostler: Runner, words: tuple[str, ...], sent: dict[str, Any]
) -> None:
    found = hostler("vm", "firewall", "web-1", *words)
    assert found.code == 0, found.err
    (asked,) = [each for each in there.asked if each.method == "PATCH"]
    assert asked.body == {"firewall": sent}


def test_it_shows_the_rules(there: Fleet, hostler: Runner) -> None:
    found = hostler("vm", "firewall", "web-1")
    assert [line.split() for line in found.out.splitlines()[1:]] == [
        ["inbound", "tcp", "22", "192.0.2.0/24,", "198.51.100.7/32"],
        ["outbound", "any", "all", "0.0.0.0/0"],
    ]
    assert "disabled: everything is let through" in found.err
    assert json.loads(hostler("vm", "firewall", "web-1", "--json").out) == THERE
    assert "disabled; rules: 1 inbound, 1 outbound" in hostler("vm", "show", "web-1").out
    assert not [each for each in there.asked if each.method != "GET"]


def test_a_new_vm_has_the_firewall_of_a_file(fleet: Fleet, hostler: Runner, tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(THERE))
    for given in (str(file), json.dumps(THERE)):
        assert hostler("vm", "create", "web-1", "--image", "demo", "--firewall", given, "--no-wait").code == 0
        assert fleet.asked[-1].body["firewall"] == THERE


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--enable", "--disable"), "one of --enable and --disable"),
        (("{}", "--inbound", ALL_WORDS), "or by --inbound and --outbound"),
        (("--inbound", "tcp:22"), "PROTOCOL[:PORTS]@PREFIX"),
        (("--inbound", "@0.0.0.0/0"), "PROTOCOL[:PORTS]@PREFIX"),
        (("{'enabled'}",), "this is no JSON"),
        (("no-such-file",), "there is no file"),
    ],
)
def test_what_cannot_be_read_is_a_mistake_of_use(
    fleet: Fleet, hostler: Runner, words: tuple[str, ...], told: str
) -> None:
    found = hostler("vm", "firewall", "web-1", *words)
    assert (found.code, told in found.err) == (2, True), found.err
    assert fleet.asked == []
