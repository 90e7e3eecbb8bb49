"""A host whose filesystem has not one block left: what ends VMs works, in the room that the reserve gives up (D-12)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from drivers.host.cache import make_room
from drivers.reserve import Reserve
from model.errors import OutOfSpace
from model.vm import PowerState
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.processes import SleepingGuests

SIZE_BYTES = 96 << 20
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small filesystem")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A small filesystem where a host's state goes."""
    home = tmp_path / "host"
    home.mkdir(mode=0o700)
    options = f"size={SIZE_BYTES},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "hostler-test", home], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", home], check=True)


@pytest.fixture
async def world(small: Path, netns: str) -> AsyncIterator[HostWorld]:
    """A host on a filesystem of its own, with one VM that runs."""
    world = HostWorld(small, netns, lambda names, boot_id: SleepingGuests(names, small / "monitors", boot_id))
    world.add("vm1")
    await world.restart()
    await world.run_pass(make_row("vm1"))
    yield world
    await world.close()


def fill(world: HostWorld) -> Path:
    """Take every block that is left, as guests that write do."""
    filler = world.home / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    assert os.statvfs(world.home).f_bfree == 0
    return filler


async def test_on_a_full_host_guests_are_stopped_and_vms_destroyed(world: HostWorld) -> None:
    """D-12: stop, delete and destroy; each step's record is durable, in room that nobody else could take."""
    held = world.host.parts.reserve.held_bytes()
    fill(world)
    view = await world.run_pass(make_row("vm1", created=True, generation=2, power_state=PowerState.STOPPED))
    assert view.record is not None
    assert (view.observed.power_state, view.record.stop_intended) == (PowerState.STOPPED, True)
    stored = json.loads((world.home / "machines" / "vm1" / "status.json").read_bytes())
    assert stored["record"]["stop_intended"], "what was recorded is what the disk says"
    world.pass_number += 1
    view = await world.vm.ensure_quarantined(world.order("vm1", make_row("vm1", created=True, deleted=True), 1))
    assert view.record is not None
    assert view.record.quarantined_at is not None
    view = await world.run_pass(make_row("vm1", created=True, deleted=True, destroying=True))
    assert view.observed.nothing
    assert world.host.parts.reserve.held_bytes() < held


async def test_the_reserve_is_filled_up_again_once_there_is_room(world: HostWorld) -> None:
    """D-12: and not before: it takes nothing that others need."""
    reserve = world.host.parts.reserve
    filler = fill(world)
    reserve.write(world.home / "record", b"a record")
    assert reserve.held_bytes() == 0
    reserve.keep()
    assert reserve.held_bytes() == 0
    filler.unlink()
    reserve.keep()
    assert reserve.held_bytes() == reserve.wanted_bytes()
    assert world.host.parts.space.available_bytes() <= SIZE_BYTES - reserve.wanted_bytes()


async def test_without_a_reserve_a_record_is_refused_and_the_old_one_stays(world: HostWorld) -> None:
    """D-12, D-7: the reserve is no promise without end."""
    reserve = Reserve(world.home, wanted_bytes=0)
    (world.home / "reserve").unlink()
    record = world.home / "record"
    record.write_bytes(b"old")
    fill(world)
    with pytest.raises(OutOfSpace):
        reserve.write(record, b"new")
    assert record.read_bytes() == b"old"


async def test_unused_images_go_when_no_vm_may_be_made(world: HostWorld) -> None:
    """D-12, D-5, D-4: those that a VM depends on stay, and all of them while a record cannot be read."""
    parts = world.host.parts
    (used,) = parts.images.list_files()
    unused = parts.paths.images / f"{'0' * 32}-{'1' * 64}-rootfs.qcow2"
    unused.write_bytes(b"x")
    await make_room(parts, world.host.policies)
    assert unused.exists(), "there is room"
    filler = fill(world)
    status = world.home / "machines" / "vm1" / "status.json"
    whole = status.read_bytes()
    status.write_bytes(b"{")
    await world.restart()
    await make_room(world.host.parts, world.host.policies)
    assert unused.exists(), "nobody can tell what the VM depends on"
    filler.unlink()
    status.write_bytes(whole)
    fill(world)
    await world.restart()
    await make_room(world.host.parts, world.host.policies)
    assert [stored.name for stored in world.host.parts.images.list_files()] == [used.name]
    assert not unused.exists()
