"""What is printed: text of others is data in every table, and `--json` is JSON and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.output import moment, plain
from tests.cli.conftest import Runner
from tests.cli.fleet import HOST_ID, VM_ID, Fleet, vm

HOSTILE = "\x1b[2J[bold red]x[/] [link=http://evil]y[/link] :smile: \x9b31m\r\n\u202egnp \x1b]8;;http://evil\x07z"
SHOWN = "\\x1b[2J[bold red]x[/] [link=http://evil]y[/link] :smile: \\x9b31m\\r\\n\\u202egnp \\x1b]8;;http://evil\\x07z"


def hostile(document: Any) -> Any:
    """Put hostile text into every string of a document but ids and what commands go by."""
    if isinstance(document, dict):
        kept = ("id", "ssh_host_key")
        return {key: value if key in kept else hostile(value) for key, value in document.items()}
    if isinstance(document, list):
        return [hostile(each) for each in document]
    return HOSTILE if isinstance(document, str) else document


HOST = {
    "id": HOST_ID,
    "name": "host-1",
    "labels": {"a": "b"},
    "status": "ready",
    "silent": False,
    "last_report_at": "2026-01-01T00:00:00+00:00",
    "vms": 1,
    "capacity": {"cpu_millicores_total": 2000, "cpu_millicores_committed": 500, "memory_mib_available": None},
    "hypervisors": [{"name": "qemu", "available": True, "why": "it ran", "accelerator": "tcg", "version": "7.2"}],
}
IMAGE = {
    "id": "i",
    "project": "public",
    "name": "demo",
    "format": "qcow2",
    "firmware": "bios",
    "rootfs": {"url": "https://images.test/root", "sha256": "a" * 64},
    "created_at": "2026-01-01T00:00:00+00:00",
}
SETS = {
    "image_policies": ["public/demo"],
    "privileged_addresses": ["10.84.0.9"],
    "wireguard_peers": [{"public_key": "key", "endpoint": "a:1", "allowed_networks": ["10.9.0.0/24"]}],
    "gateway_routes": [{"destination": "10.8.0.0/16", "gateway": "10.9.0.1"}],
    "revision": 4,
    "acknowledged": 3,
    "pending": True,
    "states": {"image_policies": "applied", "wireguard_peers": "off"},
    "synced_at": "2026-01-01T00:00:00+00:00",
    "fenced": [2, 9],
    "why": "no_answer",
    "error": "because",
}
COMMANDS = [
    ("vm", "ls"),
    ("vm", "show", VM_ID),
    ("vm", "wait", VM_ID),
    ("vm", "start", VM_ID),
    ("host", "ls"),
    ("host", "show", "host-1"),
    ("host", "policy", "host-1"),
    ("host", "sets", "host-1"),
    ("image", "ls"),
]


@pytest.fixture
def full(fleet: Fleet) -> Fleet:
    operation = {"id": "o", "kind": "create", "result": None, "attempts": 1, "error": "because", "link": "http://ui"}
    fleet.states = [vm(operations=[operation], labels={"team": "a"}, status_detail="x", last_error="y")]
    fleet.listed = [*fleet.states]
    fleet.hosts, fleet.images = [HOST], [IMAGE]
    fleet.answers["GET", "/v1/hosts/host-1"] = (200, HOST)
    fleet.answers["GET", f"/v1/hosts/{HOST_ID}/quarantined"] = (200, {"items": [vm()], "next_cursor": None})
    fleet.answers["GET", f"/v1/hosts/{HOST_ID}/forgotten"] = (200, {"items": [], "next_cursor": None})
    fleet.answers["GET", f"/v1/hosts/{HOST_ID}/sets"] = (200, SETS)
    fleet.answers["GET", "/v1/hosts/host-1/sets"] = (200, SETS)
    fleet.answers["GET", f"/v1/hosts/{HOST_ID}/foreign"] = (200, {"items": [{"vm_id": "stray"}], "next_cursor": None})
    return fleet


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_hostile_text_is_data(full: Fleet, hostler: Runner, words: tuple[str, ...]) -> None:
    """S-17: no escape sequence, no markup, no link and no emoji of others is ever obeyed."""
    full.states = [{**hostile(state), "settled": True} for state in full.states]
    full.listed = hostile(full.listed)
    full.hosts, full.images = hostile(full.hosts), hostile(full.images)
    full.answers = {key: (status, hostile(document)) for key, (status, document) in full.answers.items()}
    found = hostler(*words)
    assert found.code == 0
    assert SHOWN in found.out
    for text in (found.out, found.err):
        assert not {c for c in text if c != "\n" and not c.isprintable()}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_json_is_json_and_nothing_else(full: Fleet, hostler: Runner, words: tuple[str, ...]) -> None:
    full.states = [vm(name=HOSTILE)]
    found = hostler(*words, "--json")
    assert (found.code, found.err) == (0, "")
    document = json.loads(found.out)
    assert isinstance(document, dict)
    if words[0] == "vm" and words[1] != "ls":
        assert document["name"] == HOSTILE


def test_nothing_is_cut_where_no_terminal_reads(full: Fleet, hostler: Runner) -> None:
    full.listed = [vm(last_error="e" * 3000)]
    assert "e" * 3000 in hostler("vm", "ls").out


def test_lists_are_read_page_by_page(fleet: Fleet, hostler: Runner) -> None:
    pages = {None: ([vm(name="a")], "c1"), "c1": ([vm(name="b")], None)}

    def answer(asked: Any) -> tuple[int, Any]:
        items, cursor = pages[asked.query.get("cursor")]
        return 200, {"items": items, "next_cursor": cursor}

    fleet.answer = answer  # type: ignore[method-assign]
    assert [each["name"] for each in json.loads(hostler("vm", "ls", "--json").out)["items"]] == ["a", "b"]
    found = json.loads(hostler("vm", "ls", "--json", "--limit", "1").out)
    assert ([each["name"] for each in found["items"]], found["next_cursor"]) == (["a"], "c1")


def test_filters_go_to_the_api(fleet: Fleet, hostler: Runner) -> None:
    words = ("--host", "h", "--phase", "ready", "--power-state", "running", "--label", "a=b", "--image", "i")
    assert hostler("vm", "ls", *words).code == 0
    asked = {**fleet.asked[0].query}
    asked.pop("limit")
    assert asked == {"host": "h", "phase": "ready", "power_state": "running", "label": "a=b", "image": "i"}


def test_an_empty_list_says_so_beside_the_output(fleet: Fleet, hostler: Runner) -> None:
    fleet.listed = []
    found = hostler("vm", "ls")
    assert (found.code, found.out) == (0, "")
    assert "no VMs" in found.err


def test_what_nobody_can_tell_is_not_shown_as_known(fleet: Fleet, hostler: Runner) -> None:
    """H-S10: of a silent host's VM only what was seen last is shown, as that."""
    fleet.listed = [vm(phase="unknown", power_state=None)]
    out = hostler("vm", "ls").out
    assert "its host is silent; was ready" in out
    assert "running" not in out


def test_the_console_is_raw(fleet: Fleet, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """S-17: a console that was asked for is the guest's own bytes."""
    from cli.main import run

    fleet.answers["GET", f"/v1/vms/{VM_ID}/console"] = (200, {"data": "G1szMW1oaQD/"})
    assert run(["vm", "console", VM_ID]) == 0
    assert capfdbinary.readouterr().out == b"\x1b[31mhi\x00\xff"


def test_plain_words() -> None:
    assert [plain(each) for each in (None, True, [], {"a": [1, "b\n"]}, "")] == ["-", "yes", "-", "a=1, b\\n", "-"]
    assert moment("not a time") == "not a time"
    assert moment(None) is None
