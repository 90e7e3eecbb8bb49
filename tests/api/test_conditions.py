"""What is wrong, found one by one, with what to do; the same as metrics, each with its alert (A-10, S-31, S-34)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from api.conditions import SEVERITIES
from api.documents.base import ConditionName
from cli.doctor import describe
from tests.api.conftest import World, report_of

ALERTS = Path(__file__).parents[2] / "infra" / "alerts.yaml"
HOUR = timedelta(hours=1)
HEARD = "update fleet set heard_at = now(), hearing_since = now() - interval '1 hour'; "
READY = "update vms set phase = 'ready', first_ready_at = now(), observed_generation = 1, due_at = null; "


async def conditions(world: World, **whom: Any) -> list[dict[str, Any]]:
    answer = await world.call("GET", "/v1/conditions", **whom)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def metrics(world: World) -> str:
    headers = {"authorization": f"Bearer {await world.token('viewer')}"}
    answer = await world.client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    return answer.text


async def reported(world: World, **changed: Any) -> None:
    """Let a second host join and report."""
    _, credential = await world.add_host(name="h2", instance_id=None)
    now = datetime.now(UTC).isoformat()
    answer = await world.as_host(credential, "POST", "/v1/host/report", json={**report_of(1), "clock": now, **changed})
    assert answer.status_code == 200, answer.text


# How each comes about: what a host reports, or what rows say.
CASES: dict[str, Any] = {
    "behind": "update fleet set behind = true, behind_since = now(), behind_why = 'it was restored'",
    "temporal_away": "select 1",
    "work_late": READY + "update vms set due_at = now() - interval '5 minutes'",
    "host_silent": HEARD + "update hosts set last_report_at = now() - interval '5 minutes' where name = 'h1'",
    "vm_failed": READY + "update vms set phase = 'failed', last_error = 'no room', waiting_for = 'create_rests'",
    "vm_unreadable": READY + "update vms set unreadable = 'its record is torn'",
    "state_lost": "update hosts set state_lost_at = now()",
    "rolled_back": "update hosts set rolled_back_at = now()",
    "rows_missing": """update hosts set foreign_vms = '[{"vm_id": "v", "choice": "braked"}]'""",
    "misplaced": """update hosts set foreign_vms = '[{"vm_id": "v", "placed_on": "h9"}]'""",
    "sync_fenced": """update hosts set synced = '{"fenced": [2, 7]}'""",
    "sync_failed": """update hosts set synced = '{"error": "no"}'""",
    "host_floored": "update fleet set min_worker_version = '1.4.0'; update hosts set worker_version = '1.2.0'",
    "clock_off": {"clock": "2020-01-01T00:00:00Z"},
    "memory_short": {"capacity": {"memory_mib_total": 1000, "memory_mib_available": 10}},
    "disk_short": {"capacity": {"storage_bytes_total": 1000, "storage_bytes_free": 10}},
    "revoked": "update hosts set credential_revoked_at = now()",
    "unmanaged": {"unmanaged": 2},
    "credential_ends": "update hosts set credential_until = now() + interval '9 days' where name = 'h1'",
    "token_ends": "update tokens set expires_at = now() + interval '2 days', last_used_at = now()",
    "vm_ends_again": READY + "update vms set phase = 'failed', setbacks = 6, waiting_for = 'guest_unsteady'",
    "vm_overdue": READY + "update vms set due_at = now(), expected_by = now() - interval '5 minutes'",
    "vm_soon_destroyed": """update vms set deleted = true, phase = 'quarantined', quarantine_kind = 'tombstone',
        quarantine_since = now(), quarantine_grace = interval '1 day', destroy_at = now() + interval '5 minutes'""",
    "frozen": "freeze",
}


def test_every_condition_has_its_severity_and_its_case() -> None:
    """A-10: one that is added tomorrow, too."""
    assert set(SEVERITIES) == set(get_args(ConditionName)) == set(CASES)


@pytest.mark.parametrize("name", SEVERITIES)
async def test_each_condition_is_told_with_what_to_do_and_fires_its_alert(world: World, name: str) -> None:
    """A-10: and nothing of it is told before."""
    await world.create(name="web")
    for role in ("viewer", "admin"):
        await world.token(role)
    await world.pool.execute(f"{READY}update tokens set expires_at = now() + interval '90 days'")
    cause = CASES[name]
    if name != "temporal_away":  # nothing of Temporal is there in these tests
        assert name not in {each["condition"] for each in await conditions(world)}
        assert not fires(name, await metrics(world))
    if cause == "freeze":
        await world.call("POST", "/v1/freeze", json={})
    elif isinstance(cause, dict):
        await reported(world, **cause)
    else:
        await reported(world)
        await world.pool.execute(cause)
    found = [each for each in await conditions(world) if each["condition"] == name]
    assert found, await conditions(world)
    assert found[0]["severity"] == SEVERITIES[name]
    assert all(found[0][key] for key in ("object", "what", "meanwhile", "advice"))
    assert found[0]["what"] in describe(found[0])
    assert fires(name, await metrics(world))


def fires(name: str, text: str) -> bool:
    """Judge the alert's own expression by the metrics that were read: `series > 0`."""
    alert = re.search(rf"expr: (hostler_conditions\{{condition=\"{name}\"\}}) > 0\n", ALERTS.read_text())
    assert alert is not None, f"{name} has no alert"
    value = re.search(rf"^{re.escape(alert[1])} (\S+)$", text, re.MULTILINE)
    assert value is not None, f"{name} has no series"
    return float(value[1]) > 0


async def test_the_worst_comes_first(world: World) -> None:
    """A-10."""
    await world.create(name="web")
    await world.pool.execute(CASES["vm_failed"])
    await world.call("POST", "/v1/freeze", json={})
    order = [each["severity"] for each in await conditions(world)]
    assert order == sorted(order, key=("critical", "warning", "notice").index)
    assert (order[0], order[-1]) == ("critical", "notice")


async def test_a_project_is_told_of_its_vms_alone(world: World) -> None:
    """S-31, S-32: nothing of the fleet, of hosts or of others."""
    mine = await world.create("blue", name="mine")
    await world.create("red", name="theirs")
    await world.pool.execute(
        "update vms set phase = 'failed', last_error = 'host h1 refuses: memory: needs 1 MiB, holds 2 of 3 MiB'"
    )
    await world.pool.execute("update hosts set credential_revoked_at = now()")
    found = await conditions(world, project="blue")
    assert [each["object"] for each in found] == [f"vm/{mine['id']}"]
    assert "h1" not in str(found)
    assert "holds" not in str(found)


async def test_metrics_count_and_hold_no_users_text(world: World) -> None:
    """S-34: VMs by phase, hosts by state, what is held."""
    await world.create("blue", name="canary-name", labels={"canary": "canary"})
    text = await metrics(world)
    assert 'hostler_vms{phase="creating"} 1.0' in text
    assert 'hostler_hosts{state="ready"} 1.0' in text
    assert 'hostler_host_held_memory_mib{host="h1"} 512.0' in text
    assert "canary" not in text
    assert "blue" not in text
