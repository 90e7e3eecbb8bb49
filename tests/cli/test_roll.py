"""`hostler roll …`, as people see it (H-D3)."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Runner
from tests.cli.fleet import Fleet

PATH = "/v1/rolls/r1"


def roll(**changed: Any) -> dict[str, Any]:
    told = {"id": "r1", "kind": "roll", "state": "running", "total": 3, "done": 0, "todo": 3, "failed": 0}
    return {**told, "failures": [], "created_at": "2026-01-01T00:00:00Z", **changed}


def test_it_is_followed_to_its_end(fleet: Fleet, hostler: Runner) -> None:
    """H-D3."""
    fleet.answers["POST", "/v1/rolls"] = (202, roll())
    fleet.answers["GET", PATH] = (200, roll(state="done", done=2, todo=0, left=1))
    found = hostler("roll", "start", "--selector", "role=web", "--batch", "2")
    assert found.code == 0, found.err
    assert found.err.strip().endswith("rolling restart r1 is done: restarted 2 of 3, 1 passed over")


def test_one_that_paused_names_what_failed(fleet: Fleet, hostler: Runner) -> None:
    """H-D3: and the command fails."""
    failures = [{"vm_id": "v1", "name": "web", "why": "no memory"}]
    fleet.answers["GET", PATH] = (200, roll(state="paused", paused_by="itself", todo=2, failed=1, failures=failures))
    found = hostler("roll", "wait", "r1")
    assert (found.code, "web (v1): no memory" in found.err, "1 failed, paused by itself" in found.err) == (
        1,
        True,
        True,
    )
    for verb in ("pause", "resume", "cancel"):
        fleet.answers["POST", f"{PATH}/{verb}"] = (200, roll(state=f"{verb}d"))
        assert f"rolling restart r1 is {verb}d: restarted 0 of 3" in hostler("roll", verb, "r1").err
