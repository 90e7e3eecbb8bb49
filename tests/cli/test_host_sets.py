"""`hostler host policy` and `sets`: what is wanted of a host besides its VMs, applied or pending (H-S1, D-5)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.set_bodies import ImagesBody, PeersBody
from tests.cli.conftest import Runner
from tests.cli.fleet import Fleet
from tests.cli.test_output import SETS

PATH = "/v1/hosts/host-1/sets"


def test_images_are_set_all_at_once(fleet: Fleet, hostler: Runner) -> None:
    """D-5: those that are named, or none; without either they are shown."""
    fleet.answers["GET", PATH] = (200, {**SETS, "pending": False, "fenced": None, "why": None, "error": None})
    fleet.answers["PUT", f"{PATH}/image-policies"] = (200, SETS)
    for words, items in ((("public/demo", "red/web"), ["public/demo", "red/web"]), (("--none",), [])):
        assert hostler("host", "policy", "host-1", *words).code == 0
        assert ImagesBody.model_validate(fleet.asked[-1].body).items == items
    found = hostler("host", "policy", "host-1")
    assert (found.code, fleet.asked[-1].method) == (0, "GET")
    assert "public/demo" in found.out
    assert "applied: revision 4" in found.out
    assert hostler("host", "policy", "host-1", "public/demo", "--none").code == 2


def test_a_set_is_replaced_by_the_whole_of_a_file(fleet: Fleet, hostler: Runner, tmp_path: Path) -> None:
    """H-S1."""
    file = tmp_path / "peers.json"
    peer = {"public_key": "A" * 43 + "=", "endpoint": "192.0.2.1:51820", "allowed_networks": ["10.9.0.0/24"]}
    file.write_text(json.dumps([peer]))
    fleet.answers["PUT", f"{PATH}/wireguard-peers"] = (200, SETS)
    assert hostler("host", "sets", "host-1", "wireguard-peers", str(file)).code == 0
    assert len(PeersBody.model_validate(fleet.asked[-1].body).items) == 1
    asked = len(fleet.asked)
    for words in (("wireguard-peers",), ("wireguard-peers", str(tmp_path / "none")), ("volumes", str(file))):
        assert hostler("host", "sets", "host-1", *words).code == 2
    file.write_text("{}")
    assert hostler("host", "sets", "host-1", "wireguard-peers", str(file)).code == 2
    assert len(fleet.asked) == asked, "nothing was sent"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "pending: revision 4, the host has 3"),
        ({"acknowledged": None}, "the host has none yet"),
        ({}, "image policies: applied, wireguard peers: off"),
        ({}, "the host has seen epoch 2, number 9"),
        ({"why": "host_below_floor"}, "older than the fleet allows: upgrade it"),
        ({}, "because"),
    ],
)
def test_what_is_applied_and_what_is_pending(
    fleet: Fleet, hostler: Runner, changed: dict[str, object], said: str
) -> None:
    """H-S1, H-S4: as `host show` says it, too."""
    fleet.answers["GET", PATH] = (200, {**SETS, **changed})
    assert said in " ".join(hostler("host", "sets", "host-1").out.split())
