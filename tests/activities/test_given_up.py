"""What a host does that was given up while it was away (L-R10, cases L5, L6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from model.errors import Fenced
from model.vm import PowerState
from tests.activities.test_simulated import effects
from tests.fixtures.host import HostWorld, make_row

FORGOTTEN_PASS = 900


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HostWorld]:
    """A host with two guests that run, whose worker has just started again."""
    world = HostWorld(tmp_path)
    for vm_id in ("vm1", "vm2"):
        world.add(vm_id)
    await world.restart()
    for vm_id in ("vm1", "vm2"):
        await world.run_pass(make_row(vm_id))
    await world.stop()
    await world.restart()
    yield world
    await world.close()


async def test_all_it_runs_is_stopped_and_kept_and_no_older_order_boots_it(world: HostWorld) -> None:
    """L5, L6, L-G5: under the fence that was recorded when it was given up; nothing is destroyed."""
    await world.host.given_up.run(1, FORGOTTEN_PASS)
    for report in world.host.parts.seen.since(0):
        assert report.observed.power_state is PowerState.STOPPED
        assert report.quarantined_at is not None
    assert (effects(world)["boot"], effects(world)["kill"]) == (1, 1)
    with pytest.raises(Fenced):
        await world.run_pass(make_row("vm1", created=True))
    await world.host.given_up.run(1, FORGOTTEN_PASS)
    assert effects(world)["kill"] == 1
    assert world.host.parts.paths.disk("vm1", "disk").exists()


async def test_after_a_reboot_nothing_boots_before_it_is_quarantined(world: HostWorld) -> None:
    """L5: the machine came back with everything it was to run."""
    await world.stop()
    world.boot_id = "boot-2"
    await world.restart()
    await world.host.given_up.run(1, FORGOTTEN_PASS)
    assert effects(world)["boot"] == effects(world, "vm2")["boot"] == 1
    assert all(report.quarantined_at for report in world.host.parts.seen.since(0))


async def test_one_that_cannot_be_stopped_leaves_the_others_to_it(world: HostWorld) -> None:
    """L-R10: and it is tried again, as the next answer says it again."""
    (world.home / "fences" / "vm1.json").write_text("{")
    await world.stop()
    await world.restart()
    await world.host.given_up.run(1, FORGOTTEN_PASS)
    quarantined = {report.vm_id: report.quarantined_at is not None for report in world.host.parts.seen.since(0)}
    assert quarantined == {"vm1": False, "vm2": True}
