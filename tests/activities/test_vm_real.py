"""The same steps with real guests on QEMU: emulated, the demo image, a network namespace of the test's own."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from drivers.cgroups import Cgroups
from drivers.hypervisor.qemu import Qemu
from drivers.processes import find_processes_of, kill_processes
from model.vm import Image, ImageFile, PowerState
from tests.activities.test_vm import NONE, inventory, processes, until_moved
from tests.fixtures.host import HostWorld, make_row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def serve(world: HostWorld, demo) -> Image:
    def file(path: Path, digest: str) -> ImageFile:
        shutil.copy(path, world.served / path.name)
        return ImageFile(url=f"file://{world.served / path.name}", sha256=digest)

    image = demo.image
    return Image(
        owner="default",
        rootfs=file(demo.root_qcow2, image["rootfs"]["sha256"]),
        format="qcow2",
        kernel=file(demo.vmlinux, image["kernel"]["sha256"]),
        initrd=file(demo.initrd, image["initrd"]["sha256"]),
        command_line=demo.command_line,
    )


@pytest.fixture
async def world(tmp_path, netns, demo_guest):
    world = HostWorld(tmp_path, netns, lambda names, boot_id: Qemu(names, Cgroups.detect(names.cgroup), boot_id))
    world.add("vm1", image=serve(world, demo_guest))
    await world.restart()
    yield world
    await world.close()


async def until_console(world: HostWorld, mark: bytes) -> None:
    log = world.home / "machines" / "vm1" / "console.log"
    async with asyncio.timeout(120):
        while not log.exists() or mark not in log.read_bytes():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.1)


async def test_a_real_guest_lives_its_life(world) -> None:
    """Create, adopt after a worker's restart, pause, resume, stop in good order, start, delete."""
    view = await world.run_pass(make_row("vm1"))
    assert view.observed.power_state is PowerState.RUNNING
    assert view.observed.network
    await until_console(world, b"login:")
    (pid,) = processes(world)

    await world.stop()
    host = await world.restart()
    assert processes(world) == [pid]  # H-E5
    (report,) = host.parts.seen.since(0)
    assert report.observed.power_state is PowerState.RUNNING

    view = await world.run_pass(make_row("vm1", created=True, power_state=PowerState.PAUSED))
    assert view.observed.power_state is PowerState.PAUSED
    view = await world.run_pass(make_row("vm1", created=True))
    assert view.observed.power_state is PowerState.RUNNING

    row = make_row("vm1", created=True, disk_gib=2)
    view = await world.run_pass(row)  # L-V8: live
    assert view.record.disk_bytes == 2 << 30
    assert processes(world) == [pid]

    row = make_row("vm1", created=True, power_state=PowerState.STOPPED, disk_gib=2)
    row = row.model_copy(update={"desired": row.desired.model_copy(update={"stop_timeout_seconds": 60})})
    view = await world.run_pass(row)
    assert view.observed.process is None
    assert view.observed.last_exit.by == "user"

    view = await world.run_pass(make_row("vm1", created=True, disk_gib=2))
    assert view.observed.restart_count == 1
    view = await world.run_pass(make_row("vm1", created=True, deleted=True, destroying=True))
    assert view.observed.nothing
    assert await inventory(world) == NONE


async def test_case_a7_a_real_guest_that_dies_is_seen_at_once_and_booted_again(world) -> None:
    """L-V1, H-S11, case A7."""
    await world.run_pass(make_row("vm1"))
    seen = world.host.parts.seen
    count = seen.count
    kill_processes(find_processes_of(world.names.users, world.boot_id))
    report = await until_moved(seen, count)
    while report.observed.power_state is not PowerState.STOPPED:
        report = await until_moved(seen, seen.count)
    assert report.look
    view = await world.run_pass(make_row("vm1", created=True))
    assert view.observed.power_state is PowerState.RUNNING
    assert view.observed.restart_count == 1
    assert view.observed.last_exit.by == "hypervisor"
