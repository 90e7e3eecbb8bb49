"""`hostler upgrade check`: what runs where, what is in the way, and the exit code (H-D4)."""

from __future__ import annotations

from model.versions import VERSION
from tests.cli.conftest import Runner
from tests.cli.fleet import Fleet

THERE = {
    "release": VERSION,
    "migrations": 24,
    "floor": None,
    "build": f"{VERSION}+abc",
    "runs": {f"{VERSION}+abc": 3},
    "hosts": [{"name": "h1", "version": VERSION, "silent": False}, {"name": "h2", "version": None, "silent": True}],
    "obstacles": [],
}
OLD_HOST = {"what": "host h2", "found": "never said what it runs", "advice": "let it report"}


def test_what_is_in_the_way_is_a_table_and_an_exit_code(fleet: Fleet, hostler: Runner) -> None:
    """H-D4."""
    fleet.answers["GET", "/v1/upgrade"] = (200, THERE)
    found = hostler("upgrade", "check")
    assert (found.code, f"nothing is in the way of {VERSION}" in found.err) == (0, True)
    assert f"{VERSION}: 1, unknown: 1" in found.out
    fleet.answers["GET", "/v1/upgrade"] = (200, {**THERE, "obstacles": [OLD_HOST]})
    found = hostler("upgrade", "check", "--to", "9.0.0")
    assert (found.code, "1 thing is in the way of 9.0.0" in found.err) == (1, True)
    assert all(word in found.out for word in OLD_HOST.values())
    assert hostler("upgrade", "check", "--json").code == 1


def test_a_control_plane_that_cannot_tell(fleet: Fleet, hostler: Runner) -> None:
    """H-D4: the first release's."""
    fleet.answers["GET", "/v1/upgrade"] = (404, {"title": "Not Found", "status": 404, "detail": "no such path"})
    found = hostler("upgrade", "check")
    assert (found.code, "of release 0.1" in found.err) == (1, True)
