"""`hostler host drain` and `undrain`, as people see them (H-D1, H-D2)."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Runner
from tests.cli.fleet import HOST_ID, Fleet

DRAIN = {"kind": "drain", "state": "running", "total": 3, "done": 1, "working": 2, "failed": 0, "failures": []}


def host(status: str, **drain: Any) -> dict[str, Any]:
    return {"id": HOST_ID, "name": "host-1", "status": status, "drain": {**DRAIN, **drain} if drain else None}


def test_a_drain_is_followed_to_its_end(fleet: Fleet, hostler: Runner) -> None:
    """H-D1: n of m, then what the host is."""
    fleet.answers["POST", "/v1/hosts/host-1/drain"] = (202, host("draining", done=1))
    fleet.answers["GET", f"/v1/hosts/{HOST_ID}"] = (200, host("drained", state="done", done=3, working=0))
    found = hostler("host", "drain", "host-1")
    assert found.code == 0, found.err
    assert "stopped 1 of 3" in found.err
    assert found.err.strip().endswith("host-1 is drained: stopped 3 of 3")


def test_whom_it_could_not_stop_is_named_and_the_command_fails(fleet: Fleet, hostler: Runner) -> None:
    """H-D1, case L2: the others are stopped, the host is not drained."""
    failures = [{"vm_id": "v1", "name": "web", "why": "the guest does not end"}]
    failing = host("draining", done=2, working=0, failed=1, failures=failures)
    fleet.answers["POST", "/v1/hosts/host-1/drain"] = (202, failing)
    fleet.answers["GET", f"/v1/hosts/{HOST_ID}"] = (200, failing)
    found = hostler("host", "drain", "host-1")
    assert found.code == 1
    assert "host-1 is draining: stopped 2 of 3, 1 failed" in found.err
    assert "web (v1): the guest does not end" in found.err


def test_a_drain_is_paused_resumed_and_cancelled(fleet: Fleet, hostler: Runner) -> None:
    """H-D1, H-D2: one at a time."""
    fleet.answers["POST", "/v1/hosts/host-1/drain/pause"] = (200, host("draining", state="paused", paused_by="me"))
    found = hostler("host", "drain", "host-1", "--pause")
    assert (found.code, found.err.strip()) == (0, "host-1 is draining: stopped 1 of 3, paused by me")
    fleet.answers["POST", "/v1/hosts/host-1/undrain"] = (202, host("ready"))
    for words in (("drain", "host-1", "--cancel"), ("undrain", "host-1")):
        found = hostler("host", *words)
        assert (found.code, found.err.strip()) == (0, "host-1 is ready")
    assert hostler("host", "drain", "host-1", "--pause", "--resume").code == 2
