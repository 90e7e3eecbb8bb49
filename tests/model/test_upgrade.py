"""What is in the way of an upgrade, in its order (H-D4)."""

from __future__ import annotations

from typing import Any

import pytest

from model.upgrade import HostRelease, Installed, find_obstacles

NOW = {"release": "0.3.0", "migrations": (24, 24), "build": "0.3.0+abc"}
NEWER = "runs 0.4.0, newer than its control plane: it would refuse to start again"


def host(name: str, version: str | None, **changed: Any) -> HostRelease:
    return HostRelease(name=name, version=version, **changed)


@pytest.mark.parametrize(
    ("changed", "what", "found", "advice"),
    [
        ({"migrations": (20, 24)}, "schema", "lacks 4 of 24 migrations", "start the API anew: it brings the schema"),
        ({"migrations": (25, 24)}, "schema", "has migration 25, the API's release knows 24", "of the newer release"),
        ({"behind": "host h2 has seen pass 9"}, "database", "host h2 has seen pass 9", "hostler restore"),
        ({"told": False, "build": None}, "control workers", "Temporal does not tell", "hostler status"),
        ({"build": None}, "control workers", "no build is the one that passes begin on", "workers of 0.3.0"),
        ({"build": "0.2.0+abc"}, "control workers", "the older build 0.2.0+abc", "start control workers of 0.3.0"),
        ({"build": "0.4.0+abc"}, "control workers", "newer than the API's release 0.3.0", "start the API of that"),
        ({"runs": {"0.2.0+x": 1}}, "open runs", "1 pass is open on the build 0.2.0+x", "keep a control worker of it"),
        ({"runs": {"0.3.0+x": 7}}, "open runs", "7 passes are open on the build 0.3.0+x", "keep a control worker"),
        ({"hosts": (host("h2", "0.2.9"),)}, "host h2", "runs 0.2.9", "upgrade it to 0.3.0"),
        ({"hosts": (host("h2", "0.2.9", silent=True),)}, "host h2", "runs 0.2.9, and is silent", "upgrade it"),
        ({"hosts": (host("h2", "0.4.0"),)}, "host h2", NEWER, "upgrade the control plane first"),
        ({"hosts": (host("h2", None),)}, "host h2", "never said what it runs", "hostler host show"),
        ({"floor": "0.4.0"}, "floor", "is 0.4.0, above the control plane's release 0.3.0", "lower it"),
    ],
)
def test_each_thing_that_is_in_the_way_is_named(changed: dict[str, Any], what: str, found: str, advice: str) -> None:
    """H-D4."""
    (obstacle,) = find_obstacles(Installed(**(NOW | changed)))
    assert (obstacle.what, found in obstacle.found, advice in obstacle.advice) == (what, True, True), obstacle


def test_nothing_is_in_the_way_where_all_is_of_one_release() -> None:
    """H-D4: another build of the release, its last host and a floor that all of them reach are no obstacles."""
    hosts = (host("h1", "0.3.0.dev7"), host("h2", "0.3.0"))
    there = Installed(**NOW, hosts=hosts, runs={"0.3.0+abc": 40}, floor="0.2.0")
    assert find_obstacles(there.model_copy(update={"hosts": hosts[1:]})) == ()
    (below,) = find_obstacles(there)
    assert (below.what, "h1 runs 0.3.0.dev7 and acts on no VM" in below.found) == ("floor", True)


def test_the_order_is_that_of_the_upgrade() -> None:
    """H-D4: schema, control workers, runs, hosts, floor."""
    changed = {"migrations": (20, 24), "build": "0.2.0+a", "runs": {"0.1.0+a": 1}, "floor": "0.2.0"}
    found = find_obstacles(Installed(**(NOW | changed), hosts=(host("h1", "0.1.0"),)))
    assert [each.what for each in found] == ["schema", "control workers", "open runs", "host h1", "floor"]


@pytest.mark.parametrize(
    ("to", "floor", "what"),
    [("0.4.0", None, []), ("0.5.0", None, ["release"]), ("1.0.0", None, []), ("2.0.0", None, ["release"])],
)
def test_one_release_after_the_other(to: str, floor: str | None, what: list[str]) -> None:
    """H-D4: a control plane works with hosts and records of its own and the previous release."""
    assert [each.what for each in find_obstacles(Installed(**NOW, floor=floor), to)] == what


def test_a_floor_that_was_raised_is_in_the_way_of_going_back() -> None:
    """H-D4."""
    (obstacle,) = find_obstacles(Installed(**NOW, floor="0.3.0"), "0.2.4")
    assert (obstacle.what, obstacle.advice) == ("floor", "lower it before you go back: `hostler floor`")
    assert find_obstacles(Installed(**NOW, floor="0.2.0"), "0.2.4") == ()
