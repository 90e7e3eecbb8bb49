"""Rebuilds on a real host: the disk that is replaced is kept, comes back, and goes when its time is over (L-V10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from drivers.host.storage import describe_seed
from model.errors import Permanent, StepFailed
from model.record import View
from model.vm import DISK_NAMES, PowerState
from tests.activities.test_vm import NONE, ONE, inventory, processes
from tests.fixtures.host import HostWorld, make_image, make_row
from tests.fixtures.processes import SleepingGuests

KEPT = ONE | {"files": ["vm1/config.json", "vm1/disk", "vm1/disk-2", "vm1/seed.iso", "vm1/status.json"]}


@pytest.fixture
async def world(tmp_path, netns):
    world = HostWorld(tmp_path, netns, lambda names, boot_id: SleepingGuests(names, tmp_path / "monitors", boot_id))
    await world.restart()
    yield world
    await world.close()


def row(**changed: Any) -> Any:
    return make_row("vm1", created=True, **changed)


@dataclass(frozen=True)
class Places:
    """Which files are in use and kept, by their numbers on the filesystem, and what else there is of the VM."""

    in_use: int
    kept: int | None
    applied: int
    processes: int


def look_at(world: HostWorld, vm_id: str = "vm1") -> Places:
    """Look at a VM's files as its record names them; no other disk may be there."""
    record, paths = world.host.parts.records.status(vm_id).record, world.host.parts.paths
    named = {record.disk, record.kept.name} if record.kept else {record.disk}
    assert {name for name in DISK_NAMES if paths.disk(vm_id, name).exists()} == named
    return Places(
        in_use=paths.disk(vm_id, record.disk).stat().st_ino,
        kept=paths.disk(vm_id, record.kept.name).stat().st_ino if record.kept else None,
        applied=record.applied_rebuild_generation,
        processes=len(world.simulation.inventory(paths.machines).processes.get(vm_id, ())),
    )


def disk_in_use(world: HostWorld) -> Path:
    record = world.host.parts.records.status("vm1").record
    return world.host.parts.paths.disk("vm1", record.disk)


def told_the_guest(world: HostWorld) -> dict[str, object]:
    """Return all that a guest is given: the hypervisor's order, the seed, its place on the network."""
    parts = world.host.parts
    config, status = parts.records.config("vm1"), parts.records.status("vm1")
    guest = parts.guest(config, status)
    plain = {name: value for name, value in vars(guest).items() if name != "disk"}
    return {**plain, "seed_input": describe_seed(config), "network": parts.attachment(config)}


async def test_a_rebuild_makes_a_new_disk_and_an_undo_brings_the_old_one_back(world: HostWorld) -> None:
    """L-V10, L-N3: one disk in use and one kept, until the row says that its time is over."""
    world.add("vm1")
    await world.run_pass(make_row("vm1"))
    old, (pid,) = disk_in_use(world).stat().st_ino, processes(world)
    view = await world.run_pass(row(rebuild_generation=1, generation=2))
    new = disk_in_use(world).stat().st_ino
    assert (view.record.applied_rebuild_generation, view.record.applied_generation) == (1, 2)
    assert new != old
    assert processes(world) != [pid]
    assert await inventory(world) == KEPT
    view = await world.run_pass(row(rebuild_generation=2, undo_of=1, generation=3))
    assert (view.record.applied_rebuild_generation, disk_in_use(world).stat().st_ino) == (2, old)
    view = await world.run_pass(row(rebuild_generation=3, undo_of=2, generation=4))
    assert disk_in_use(world).stat().st_ino == new
    assert await inventory(world) == KEPT
    over = datetime.now(UTC) - timedelta(seconds=1)
    view = await world.run_pass(row(rebuild_generation=3, undo_of=2, generation=4, old_disk_until=over))
    assert view.record.kept is None
    assert disk_in_use(world).stat().st_ino == new
    assert (await inventory(world))["files"] == [name for name in KEPT["files"] if name != "vm1/disk"]
    await world.run_pass(row(deleted=True, destroying=True))
    assert await inventory(world) == NONE


async def test_i8_a_rebuild_gives_the_guest_all_that_the_create_gave_it(world: HostWorld) -> None:
    """Case I8: for a VM that uses every option; same MAC, address, host key, rules."""
    world.add(
        "vm1",
        cpu_millicores=1500,
        memory_mib=320,
        ssh_authorized_keys=("ssh-ed25519 AAAA me",),
        metadata={"a": "b"},
        stop_timeout_seconds=7,
        boot_priority=3,
        on_guest_poweroff="stop",
    )
    await world.run_pass(make_row("vm1"))
    given = told_the_guest(world)
    rules = await world.host.parts.network.inventory()
    await world.run_pass(row(rebuild_generation=1, generation=2))
    assert told_the_guest(world) == given
    assert await world.host.parts.network.inventory() == rules


async def test_i6_what_was_seen_of_the_old_guest_is_not_the_new_ones(world: HostWorld) -> None:
    """Case I6: its exits and restarts start empty."""
    world.add("vm1")
    await world.run_pass(make_row("vm1"))
    view = await world.run_pass(row(restart_generation=1))
    assert view.observed.restart_count == 1
    assert view.observed.last_exit is not None
    revision = view.observed.revision
    view = await world.run_pass(row(restart_generation=1, rebuild_generation=1))
    assert (view.observed.restart_count, view.observed.last_exit, view.observed.guest_ended) == (0, None, None)
    assert view.observed.revision > revision


async def test_a_vm_wanted_stopped_is_rebuilt_and_not_booted(world: HostWorld) -> None:
    """L-V10."""
    world.add("vm1")
    await world.run_pass(make_row("vm1"))
    boots = len(world.host.parts.hypervisor.boots)
    view: View = await world.run_pass(row(power_state=PowerState.STOPPED, rebuild_generation=1))
    assert (view.observed.process, view.record.applied_rebuild_generation) == (None, 1)
    assert len(world.host.parts.hypervisor.boots) == boots


async def test_a_kept_disk_that_is_missing_is_not_made_anew(world: HostWorld) -> None:
    """L-V10: an undo never hands out an empty disk for the old one."""
    world.add("vm1")
    await world.run_pass(make_row("vm1"))
    await world.run_pass(row(rebuild_generation=1))
    kept = world.host.parts.records.status("vm1").record.kept
    world.host.parts.paths.disk("vm1", kept.name).unlink()
    with pytest.raises(StepFailed, match="missing"):
        await world.run_pass(row(rebuild_generation=2, undo_of=1))


async def test_a_rebuild_is_the_restart_that_was_asked_for_before(world: HostWorld) -> None:
    """L-N3, L-V7, L-V10: one boot for both."""
    world.add("vm1")
    await world.run_pass(make_row("vm1"))
    view = await world.run_pass(row(rebuild_generation=1, restart_generation=1))
    assert (view.record.applied_rebuild_generation, view.record.applied_restart_generation) == (1, 1)
    assert world.host.parts.hypervisor.boots == ["vm1", "vm1"]


async def test_a_vm_deleted_amid_a_rebuild_goes_without_a_trace(world: HostWorld) -> None:
    """L-V10, L-R8: the disk that was put aside goes with it."""
    world.add("vm1")
    await world.run_pass(make_row("vm1"))
    rebuild = row(rebuild_generation=1)
    world.pass_number += 1
    for number, step in enumerate((world.vm.ensure_stopped, world.vm.ensure_disk_set_aside), 1):
        await step(world.order("vm1", rebuild, number))
    assert world.host.parts.records.status("vm1").record.kept is not None
    await world.run_pass(row(rebuild_generation=1, deleted=True, destroying=True))
    assert await inventory(world) == NONE


async def lose_status(world: HostWorld) -> None:
    await world.stop()
    (world.home / "machines" / "vm1" / "status.json").unlink()
    await world.restart()


async def test_a_disk_whose_record_was_lost_is_put_aside_by_a_rebuild(world: HostWorld) -> None:
    """L-V9, L-V10: nothing is made or removed before; then the guest that still runs is stopped, and its disk kept."""
    world.add("vm1")
    await world.run_pass(make_row("vm1"))
    old, (pid,) = disk_in_use(world).stat().st_ino, processes(world)
    await lose_status(world)
    assert (await world.run_pass(row())).record is None
    assert processes(world) == [pid]
    await world.run_pass(row(rebuild_generation=1, generation=2))
    assert disk_in_use(world).stat().st_ino != old
    assert processes(world) != [pid]
    assert await inventory(world) == KEPT
    await world.run_pass(row(rebuild_generation=2, undo_of=1, generation=3))
    assert disk_in_use(world).stat().st_ino == old
    assert await inventory(world) == KEPT


async def test_disks_that_nobody_can_tell_apart_are_left_alone(world: HostWorld) -> None:
    """L-V9, L-V10: refused, with what to do."""
    world.add("vm1")
    await world.run_pass(make_row("vm1"))
    await world.run_pass(row(rebuild_generation=1))
    await lose_status(world)
    with pytest.raises(StepFailed, match="two root disks"):
        await world.run_pass(row(rebuild_generation=2))
    with pytest.raises(StepFailed, match="none can be brought back"):
        await world.run_pass(row(rebuild_generation=2, undo_of=1))
    folder = world.home / "machines" / "vm1"
    assert all((folder / name).exists() for name in DISK_NAMES)


async def test_a_disk_is_brought_back_only_on_the_image_that_it_was_made_from(world: HostWorld) -> None:
    """L-V10: what the guest reads through to is the very file."""
    world.add("vm1")
    await world.run_pass(make_row("vm1"))
    old = disk_in_use(world).stat().st_ino
    other = make_image(world.served, "other.qcow2", "32M")
    world.add("vm1", image=other, digest="e" * 64)
    await world.run_pass(row(rebuild_generation=1, input_digest="e" * 64))
    with pytest.raises(Permanent, match="another image"):
        await world.run_pass(row(rebuild_generation=2, undo_of=1, input_digest="e" * 64))
    world.add("vm1")
    await world.run_pass(row(rebuild_generation=2, undo_of=1))
    assert disk_in_use(world).stat().st_ino == old
