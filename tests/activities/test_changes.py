"""What a change comes to on a real host: the guest's next boot has it, or keeps what it had (L-V8)."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.host import prepare
from drivers.hypervisor.qemu_arguments import build_arguments
from drivers.hypervisor.qemu_limits import find_limits
from model.record import View
from model.vm import PowerState
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.processes import SleepingGuests

OTHER = "e" * 64


@pytest.fixture
async def world(tmp_path, netns):
    world = HostWorld(tmp_path, netns, lambda names, boot_id: SleepingGuests(names, tmp_path / "monitors", boot_id))
    world.add("vm1")
    await world.restart()
    yield world
    await world.close()


async def stop_then_start_with(world: HostWorld, **changed: Any) -> View:
    await world.run_pass(make_row("vm1", power_state=PowerState.STOPPED))
    world.add("vm1", digest=OTHER, **changed)
    return await world.run_pass(make_row("vm1", created=True, generation=2, input_digest=OTHER))


def started_with(world: HostWorld) -> tuple[str, int, int]:
    """Return what QEMU is told of processors and memory, and the CPU quota in millicores."""
    records = world.host.parts.records
    guest = world.host.parts.guest(records.config("vm1"), records.status("vm1"))
    told = build_arguments(guest)
    limits = find_limits(guest)
    return told[told.index("-smp") + 1], int(told[told.index("-m") + 1].rstrip("M")), limits.cpu_millicores


async def test_the_next_boot_has_other_processors_and_memory(world: HostWorld) -> None:
    """L-V8: as many vCPUs as whole cores hold the millicores, and a quota of exactly those."""
    view = await stop_then_start_with(world, cpu_millicores=1500, memory_mib=320)
    assert view.observed.power_state is PowerState.RUNNING
    assert view.record.applied_generation == 2
    assert started_with(world) == ("2", 320, 1500)


async def test_what_the_host_does_not_have_is_refused_and_the_guest_keeps_what_it_has(
    world: HostWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L-V8: it boots with what it had; the record says why not and does not count the change as applied."""
    view = await stop_then_start_with(world, memory_mib=1 << 40)
    assert view.observed.power_state is PowerState.RUNNING
    assert f"{1 << 40} MiB" in view.record.refused.reason
    assert view.record.applied_generation == 1
    assert started_with(world) == ("1", 256, 1000)
    world.add("vm1")
    view = await world.run_pass(make_row("vm1", created=True, generation=3))
    assert view.record.applied_generation == 3, "what it had is wanted again"
    monkeypatch.setattr(prepare, "total_memory_mib", lambda: 2 << 40)
    world.add("vm1", digest=OTHER, memory_mib=1 << 40)
    view = await world.run_pass(make_row("vm1", created=True, generation=4, input_digest=OTHER))
    assert view.record.applied_generation < 4, "asked again only after the host's next boot"
    world.boot_id = "boot-2"
    view = await world.run_pass(make_row("vm1", created=True, generation=4, input_digest=OTHER))
    assert (view.record.applied_generation, view.record.refused) == (4, None)
