"""Volumes on a host, without root: records, files, ledger and steps are the real ones, guests are simulated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from model.capacity import Caps
from model.errors import Busy, NoRoom, Permanent, StepFailed, Superseded
from model.record import View
from model.report import ReportAnswer
from model.row import Row
from model.vm import PowerState
from model.volume import WantedVolume, volume_serial
from tests.fixtures.host import HostWorld, make_reports, make_row

GIB = 1 << 30
GONE = {"created": True, "deleted": True, "destroying": True}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HostWorld]:
    world = HostWorld(tmp_path)
    for vm_id in ("vm1", "vm2"):
        world.add(vm_id)
    await world.restart()
    yield world
    await world.close()


def volume(volume_id: str = "data", size_gib: int = 1, *, made: bool = False) -> WantedVolume:
    return WantedVolume(volume_id=volume_id, size_gib=size_gib, made=made)


def row_with(*volumes: WantedVolume, vm_id: str = "vm1", **more: object) -> Row:
    return make_row(vm_id, volumes=volumes, **more)


def file_of(world: HostWorld, volume_id: str = "data") -> Path:
    return world.home / "volumes" / volume_id / "disk"


def plugged(world: HostWorld, vm_id: str = "vm1") -> list[str]:
    (process,) = world.simulation.processes(vm_id)
    return sorted(process.volumes)


def attached(view: View) -> list[tuple[str, int]]:
    assert view.record is not None
    return [(each.volume_id, each.size_bytes) for each in view.record.volumes]


async def test_a_vm_and_its_volumes_arrive_together_and_boot_at_the_first_try(world: HostWorld) -> None:
    """H-V2, L-C11: each is made, sparse, before the one boot; the guest has them in the order asked for."""
    view = await world.run_pass(row_with(volume("logs", 2), volume("data")))
    assert attached(view) == [("logs", 2 * GIB), ("data", GIB)]
    boots = [effect for effect in world.simulation.journal() if effect.effect in ("boot", "attach")]
    assert [each.volumes for each in boots] == [(volume_serial("logs"), volume_serial("data"))]
    assert file_of(world, "logs").stat().st_size == 2 * GIB
    assert file_of(world, "logs").stat().st_blocks < 8, "sparse"
    assert sorted(each.volume_id for each in world.host.parts.volumes.report()) == ["data", "logs"]


async def test_a_volume_comes_and_goes_while_the_guest_runs_and_keeps_its_data(world: HostWorld) -> None:
    """H-V1: hot attach, detach, and its next VM; the process stays the same."""
    await world.run_pass(row_with())
    (process,) = world.simulation.processes("vm1")
    await world.run_pass(row_with(volume(), created=True))
    assert plugged(world) == [volume_serial("data")]
    with file_of(world).open("r+b") as file:
        file.write(b"a marker")
    view = await world.run_pass(row_with(created=True))
    assert attached(view) == []
    assert plugged(world) == []
    assert [each.record for each in world.simulation.processes("vm1")] == [process.record]
    await world.run_pass(row_with(volume(made=True), vm_id="vm2"))
    assert plugged(world, "vm2") == [volume_serial("data")]
    assert file_of(world).read_bytes()[:8] == b"a marker"


async def test_a_paused_guest_keeps_its_volume_until_it_runs(world: HostWorld) -> None:
    """H-V1: it could not let it go; that is said, and nothing of it is taken away."""
    await world.run_pass(row_with(volume(), power_state=PowerState.PAUSED))
    with pytest.raises(StepFailed, match="the guest is paused"):
        await world.run_pass(row_with(created=True, power_state=PowerState.PAUSED))
    assert plugged(world) == [volume_serial("data")]
    await world.run_pass(row_with(volume("logs"), volume(), created=True, power_state=PowerState.PAUSED))
    assert plugged(world) == sorted([volume_serial("data"), volume_serial("logs")])
    await world.run_pass(row_with(volume("logs"), created=True))
    assert plugged(world) == [volume_serial("logs")], "resumed first"


async def test_a_volume_grows_live_and_at_rest_and_never_shrinks(world: HostWorld) -> None:
    """H-V4."""
    await world.run_pass(row_with(volume()))
    view = await world.run_pass(row_with(volume(size_gib=3), created=True))
    assert attached(view) == [("data", 3 * GIB)]
    assert file_of(world).stat().st_size == 3 * GIB
    await world.run_pass(row_with(volume(size_gib=3), created=True, power_state=PowerState.STOPPED))
    await world.run_pass(row_with(volume(size_gib=4), created=True, power_state=PowerState.STOPPED))
    assert file_of(world).stat().st_size == 4 * GIB
    await world.run_pass(row_with(created=True, power_state=PowerState.STOPPED))
    view = await world.run_pass(row_with(volume(size_gib=1), created=True, power_state=PowerState.STOPPED))
    assert attached(view) == [("data", 4 * GIB)]
    assert file_of(world).stat().st_size == 4 * GIB


async def test_a_volume_that_was_made_and_is_missing_is_never_made_anew(world: HostWorld) -> None:
    """L-C11, H-V2: by its record, by the row where that is lost, too, and at each boot."""
    await world.run_pass(row_with(volume()))
    file_of(world).unlink()
    await world.run_pass(row_with(volume(), created=True, power_state=PowerState.STOPPED))
    with pytest.raises(Permanent, match="its file is missing"):
        await world.run_pass(row_with(volume(), created=True))
    with pytest.raises(Permanent, match="its file is missing"):
        await world.run_pass(row_with(volume(), vm_id="vm1", created=True, rebuild_generation=1))
    assert not file_of(world).exists()
    with pytest.raises(Permanent, match="its file is missing"):
        await world.run_pass(row_with(volume("lost", made=True), vm_id="vm2"))
    assert not file_of(world, "lost").exists()
    assert world.simulation.processes() == []


async def test_a_volume_is_with_one_vm_of_its_host_at_a_time(world: HostWorld) -> None:
    """H-V1, case K11: the host refuses a second one whoever asks, until the first has let it go."""
    await world.run_pass(row_with(volume()))
    with pytest.raises(Busy, match="still with the VM vm1"):
        await world.run_pass(row_with(volume(), vm_id="vm2"))
    await world.stop()
    await world.restart()
    with pytest.raises(Busy, match="still with the VM vm1"):
        await world.run_pass(row_with(volume(), vm_id="vm2"))
    world.simulation.control("vm1", keeps_volumes=True)
    with pytest.raises(StepFailed, match="has not let the volume go"):
        await world.run_pass(row_with(created=True))
    with pytest.raises(Busy, match="still with the VM vm1"):
        await world.run_pass(row_with(volume(), vm_id="vm2"))
    world.simulation.control("vm1")
    await world.run_pass(row_with(created=True))
    await world.run_pass(row_with(volume(), vm_id="vm2"))
    assert plugged(world, "vm2") == [volume_serial("data")]


async def test_a_reap_and_a_rebuild_leave_volumes_alone(world: HostWorld) -> None:
    """L-R5, L-V10: the file is the same one; a VM that is gone holds none."""
    await world.run_pass(row_with(volume()))
    with file_of(world).open("r+b") as file:
        file.write(b"a marker")
    view = await world.run_pass(row_with(volume(), created=True, rebuild_generation=1))
    assert attached(view) == [("data", GIB)]
    view = await world.run_pass(row_with(volume(), **GONE))
    assert view.observed.nothing
    assert file_of(world).read_bytes()[:8] == b"a marker"
    await world.run_pass(row_with(volume(made=True), vm_id="vm2"))
    assert plugged(world, "vm2") == [volume_serial("data")]


async def test_volumes_count_as_disk_and_a_refused_one_leaves_nothing(world: HostWorld) -> None:
    """H-A1, H-A2: with the VM when it is made, by itself when it comes or grows later, and until it is removed."""
    world.host.parts.ledger.caps = Caps(max_disk_gib=4)
    with pytest.raises(NoRoom, match="disk: needs 5 GiB, holds 0 of 4 GiB"):
        await world.run_pass(row_with(volume(size_gib=4)))
    assert list(world.host.parts.volumes) == []
    await world.run_pass(row_with(volume(size_gib=2)))
    with pytest.raises(NoRoom, match="disk: needs 4 GiB, holds 1 of 4 GiB"):
        await world.run_pass(row_with(volume(size_gib=4), created=True))
    await world.run_pass(row_with(volume(size_gib=3), created=True))
    await world.run_pass(row_with(volume(size_gib=3), **GONE))
    assert world.host.parts.ledger.held().disk_gib == 3
    await world.host.volumes.remove(("data",))
    assert world.host.parts.ledger.held().disk_gib == 0


async def test_a_host_removes_what_it_is_told_to_and_nothing_that_a_vm_has(world: HostWorld) -> None:
    """H-V3: confirmed only once a search finds nothing of it; told again, it is confirmed again."""
    await world.run_pass(row_with(volume(), volume("other")))
    await world.host.volumes.remove(("data",))
    assert file_of(world).exists()
    assert world.host.volumes.gone == set()
    await world.run_pass(row_with(volume("other"), created=True))
    for _ in range(2):
        await world.host.volumes.remove(("data", "never-made"))
        assert world.host.volumes.gone == {"data", "never-made"}
        assert not file_of(world).parent.exists()
    await world.host.volumes.remove(())
    assert world.host.volumes.gone == set()
    assert file_of(world, "other").exists()


async def test_a_boot_without_a_volume_that_is_wanted_is_refused(world: HostWorld) -> None:
    """H-V2: the host itself boots nothing before each volume was made sure of."""
    await world.run_pass(row_with(created=False, power_state=PowerState.STOPPED))
    world.pass_number += 1
    order = world.order("vm1", row_with(volume(), created=True), 1, setbacks=0)
    with pytest.raises(Superseded, match="not made sure of"):
        await world.vm.ensure_booted(order)


@pytest.mark.parametrize("damage", ["{", '{"format": 99, "release": "9.9.0"}'])
async def test_an_unreadable_record_of_a_volume_is_left_alone(world: HostWorld, damage: str) -> None:
    """L-G8, L-G11: neither repaired nor removed; its VM is told why."""
    await world.run_pass(row_with(volume(), power_state=PowerState.STOPPED))
    await world.stop()
    record = file_of(world).with_name("volume.json")
    record.write_text(damage)
    await world.restart()
    await world.run_pass(row_with(created=True, power_state=PowerState.STOPPED))
    with pytest.raises(Exception, match=r"volume\.json"):
        await world.run_pass(row_with(volume(made=True), created=True, power_state=PowerState.STOPPED))
    assert record.read_text() == damage
    assert file_of(world).exists()


def answer(number: int, *remove: str, epoch: int = 1, floor: str | None = None) -> ReportAnswer:
    return ReportAnswer(
        acknowledged=number, want_whole=False, epoch=epoch, min_worker_version=floor, remove_volumes=remove
    )


async def test_a_host_tells_its_volumes_when_they_change_and_confirms_what_is_gone(world: HostWorld) -> None:
    """H-S6, H-V3: all of them in a whole report, else when the API does not know yet; then what is gone."""
    reports = make_reports(world.host)
    await world.run_pass(row_with(volume()))
    await world.run_pass(row_with(created=True))
    first = await reports.frame(1, False, ())
    assert first.volumes is not None
    assert [(each.volume_id, each.size_bytes, each.vm_id) for each in first.volumes] == [("data", GIB, "vm1")]
    assert (await reports.frame(2, False, ())).volumes == first.volumes, "nobody has acknowledged it"
    await reports.take(answer(2))
    assert (await reports.frame(3, False, ())).volumes is None
    assert (await reports.frame(4, True, ())).volumes == first.volumes
    world.host.parts.seen.changed.clear()
    await reports.take(answer(4, "data"))
    assert world.host.parts.seen.changed.is_set(), "reported at once"
    gone = await reports.frame(5, False, ())
    assert (gone.volumes, gone.volumes_gone) == ((), ("data",))


@pytest.mark.parametrize("why", ["below the floor", "an older epoch"])
async def test_a_host_removes_nothing_on_the_word_of_an_answer_that_does_not_count(world: HostWorld, why: str) -> None:
    """H-V3, H-S5: it is told again by one that does."""
    reports = make_reports(world.host)
    await world.run_pass(row_with(volume()))
    await world.run_pass(row_with(created=True))
    if why == "an older epoch":
        await world.identity.raise_epoch(2)
        await reports.take(answer(1, "data", epoch=1))
    else:
        await reports.take(answer(1, "data", floor="99.0.0"))
    assert file_of(world).exists()
    assert (await reports.frame(2, False, ())).volumes_gone == ()
    await reports.take(answer(2, "data", epoch=2))
    assert not file_of(world).exists()
