"""What of a VM may be changed, when, and when it applies (L-V8, L-N2)."""

from __future__ import annotations

import pytest

from tests.api.conftest import KEY, World

SIZES = {"cpu_millicores": 1500, "memory_mib": 640}


async def stopped(world: World) -> str:
    """Make a VM that is stopped, as its host has told; return its path."""
    vm = await world.create(power_state="stopped")
    await world.pool.execute(
        """update vms set phase = 'ready', first_ready_at = now(), observed_generation = 1, due_at = null,
        observed_power_state = 'stopped', observed_instance = 'i', observed_revision = 1"""
    )
    return f"/v1/vms/{vm['id']}"


async def test_a_stopped_guest_gets_other_sizes(world: World) -> None:
    """L-V8, L-N2: also with its start in the same request."""
    path = await stopped(world)
    changed = (await world.call("PATCH", path, json={**SIZES, "power_state": "running"})).json()
    assert {name: changed[name] for name in SIZES} == SIZES
    assert (changed["generation"], changed["spec_generation"], changed["rebuild_generation"]) == (2, 2, 0)
    assert (changed["desired_power_state"], changed["settled"]) == ("running", False)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("power_state = 'running', observed_power_state = 'running'", "stop it first"),
        ("power_state = 'running'", "stop it first"),
        ("observed_power_state = 'running'", "is running still"),
        ("observed_power_state = 'paused'", "is paused still"),
        ("observed_power_state = null", "its host has not told"),
        ("observed_instance = null", "its host has not told"),
        ("unreadable = 'status.json is cut'", "its host has not told"),
    ],
)
async def test_any_other_guest_is_refused_with_the_reason(world: World, state: str, words: str) -> None:
    """L-V8: judged by what was seen last, in the same transaction; nothing of the request is taken."""
    path = await stopped(world)
    await world.pool.execute(f"update vms set {state}")
    for name, value in SIZES.items():
        refused = await world.call("PATCH", path, json={name: value, "labels": {"a": "b"}})
        assert (refused.status_code, words in refused.json()["detail"]) == (409, True), refused.text
    shown = (await world.call("GET", path)).json()
    assert (shown["generation"], shown["labels"]) == (1, {})
    assert (await world.call("PATCH", path, json={"memory_mib": 512})).status_code == 200, "nothing changes"


async def test_of_a_silent_hosts_guest_nobody_can_tell(world: World) -> None:
    """L-V8."""
    path = await stopped(world)
    await world.pool.execute("update hosts set last_report_at = now() - interval '1 hour'")
    await world.pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 hour'")
    refused = await world.call("PATCH", path, json=SIZES)
    assert (refused.status_code, "its host is silent" in refused.json()["detail"]) == (409, True)


async def test_a_create_that_rests_is_given_less(world: World) -> None:
    """L-C4: sizes are what it is given; one that goes on is waited for."""
    path = f"/v1/vms/{(await world.create(memory_mib=4 << 20))['id']}"
    assert (await world.call("PATCH", path, json={"memory_mib": 64})).status_code == 409
    await world.pool.execute("update vms set phase = 'failed', resting = true, create_attempts = 5, last_error = 'x'")
    changed = await world.call("PATCH", path, json={"memory_mib": 64})
    assert (changed.status_code, changed.json()["create_attempts"], changed.json()["last_error"]) == (200, 0, None)


async def test_keys_and_metadata_say_when_they_apply(world: World) -> None:
    """L-V8, L-N2: into the seed at once, read at the next boot; they are no size."""
    vm = await world.create()
    body = {"ssh_authorized_keys": [KEY], "metadata": {"a": "b"}, "labels": {"c": "d"}}
    changed = (await world.call("PATCH", f"/v1/vms/{vm['id']}", json=body)).json()
    assert sorted(changed["at_next_boot"]) == ["metadata", "ssh_authorized_keys"]
    assert (changed["generation"], changed["spec_generation"]) == (2, 1)
    again = (await world.call("PATCH", f"/v1/vms/{vm['id']}", json=body)).json()
    assert (again["at_next_boot"], again["generation"]) == ([], 2)


async def test_how_a_guest_is_stopped_and_booted_is_changed_at_any_time(world: World) -> None:
    """L-V8, L-N2: the pass and the host's reports act by the row's own columns."""
    vm = await world.create()
    body = {"stop_timeout_seconds": 7, "on_guest_poweroff": "stop", "boot_priority": 3}
    changed = (await world.call("PATCH", f"/v1/vms/{vm['id']}", json=body)).json()
    assert {name: changed[name] for name in body} == body
    assert (changed["generation"], changed["spec_generation"]) == (2, 1)
    row = await world.pool.fetchrow("select stop_timeout_seconds, on_guest_poweroff from vms")
    assert tuple(row) == (7, "stop")
