"""`hostler freeze` and `unfreeze`, and what every command tells meanwhile (H-R3)."""

from __future__ import annotations

from tests.cli.conftest import Runner
from tests.cli.fleet import Fleet

FREEZE = {"host_name": None, "holds": "everything destructive", "made_by": "token/a", "since": "2026-01-01T00:00:00Z"}


def test_what_is_frozen_by_whom(fleet: Fleet, hostler: Runner) -> None:
    """H-R3."""
    fleet.answers["POST", "/v1/freeze"] = (200, FREEZE)
    found = hostler("freeze")
    assert (found.code, "the fleet is frozen (everything destructive); frozen by token/a since" in found.err) == (
        0,
        True,
    )
    fleet.answers["POST", "/v1/unfreeze"] = (200, {**FREEZE, "host_name": "h1", "holds": "creates"})
    found = hostler("unfreeze", "--host", "h1", "--creates")
    assert (found.code, "host h1 is not frozen any more (creates)" in found.err) == (0, True)
    fleet.answers["GET", "/v1/freezes"] = (200, {"items": [FREEZE]})
    found = hostler("freeze", "--show")
    assert (found.code, "the fleet" in found.out, "token/a" in found.out) == (0, True, True)
