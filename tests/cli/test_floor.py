"""`hostler floor`: the least release of a host worker (H-S5)."""

from __future__ import annotations

from tests.cli.conftest import Runner
from tests.cli.fleet import Fleet


def test_the_floor_is_shown_and_set(fleet: Fleet, hostler: Runner) -> None:
    """H-S5: the hosts that it leaves behind are named."""
    floor = {"min_worker_version": "1.4.0", "below": [{"name": "h1", "worker_version": "1.2.0"}]}
    fleet.answers["PUT", "/v1/floor"] = (200, floor)
    found = hostler("floor", "1.4.0")
    assert (found.code, fleet.asked[-1].body) == (0, {"min_worker_version": "1.4.0"})
    assert "must be 1.4.0 or newer" in found.err
    assert "h1 is below it: it runs 1.2.0" in found.err
    fleet.answers["PUT", "/v1/floor"] = (200, {"min_worker_version": None, "below": []})
    assert "of any release" in hostler("floor", "--none").err
    assert fleet.asked[-1].body == {"min_worker_version": None}
    fleet.answers["GET", "/v1/floor"] = (200, floor)
    assert "must be 1.4.0 or newer" in hostler("floor").err
    assert hostler("floor", "1.4.0", "--none").code == 2
