"""Faults from the field, on one host: real records, network, disks; guests that sleep."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from drivers.confine import Confinement, launch_detached
from drivers.hypervisor import Availability
from drivers.processes import await_end, find_processes_of, is_alive, kill_processes, read_boot_id
from drivers.stored import HostAllocation
from model.decide import next_step
from model.errors import HostlerError, OutOfAddresses, StepFailed
from model.process import ProcessRecord
from model.step import StepKind
from model.vm import PowerState
from tests.activities.test_vm import NONE, ONE, inventory, processes, until_moved
from tests.fixtures.host import HostWorld, make_reports, make_row
from tests.fixtures.processes import SleepingGuests

CREATED = {"created": True}
DESTROYED = {"created": True, "deleted": True, "destroying": True}
STOPPED = {"created": True, "power_state": PowerState.STOPPED}


def identity(world: HostWorld, vm_id: str = "vm1") -> tuple[object, ...]:
    """What makes a VM this VM: its disk file, MAC, address, user and host key."""
    config = world.host.parts.records.config(vm_id)
    disk = (world.home / "machines" / vm_id / "disk").stat().st_ino
    return disk, config.allocation, config.host_key


def turn_off(world: HostWorld, vm_id: str = "vm1") -> None:
    """Let the guest end by its own power-off; its process stays readable."""
    (world.home.parent / "monitors" / f"{vm_id}.json").write_text(json.dumps("ended"))


def kill_guests(world: HostWorld) -> None:
    kill_processes(find_processes_of(world.names.users, world.boot_id))


@pytest.mark.parametrize("how", [turn_off, kill_guests], ids=["power-off", "death"])
async def test_case_a5_a_guest_that_ends_is_the_same_vm_afterwards(world: HostWorld, how: Any) -> None:
    """Case A5, L-V4: same disk file, MAC, address and host key; nothing is made anew."""
    await world.run_pass(make_row("vm1"))
    before, count = identity(world), world.host.parts.seen.count
    how(world)
    assert (await until_moved(world.host.parts.seen, count)).look
    view = await world.run_pass(make_row("vm1", **CREATED))
    assert view.observed.power_state is PowerState.RUNNING
    assert identity(world) == before
    assert await inventory(world) == ONE


@pytest.mark.parametrize("when", ["before", "during", "after"])
async def test_case_a6_no_start_whenever_the_exit_is_seen(world: HostWorld, when: str, monkeypatch) -> None:
    """Case A6: the guest ends before, while and after its stop is recorded; nobody starts it again."""
    await world.run_pass(make_row("vm1"))
    records, hypervisor = world.host.parts.records, world.host.parts.hypervisor
    update = records.update

    async def deliver(vm_id: str, change: Any, guard: Any) -> Any:
        old = records.status(vm_id)
        intends = not old.record.stop_intended and change(old).record.stop_intended
        if intends and when == "during":
            turn_off(world)
        new = await update(vm_id, change, guard)
        if intends and when == "after":
            turn_off(world)
        return new

    monkeypatch.setattr(records, "update", deliver)
    if when == "before":
        count = world.host.parts.seen.count
        turn_off(world)
        assert (await until_moved(world.host.parts.seen, count)).guest_stopped_itself
    view = await world.run_pass(make_row("vm1", **STOPPED))
    await world.host.watch.look("vm1")
    (report,) = world.host.parts.seen.since(0)
    assert view.observed.power_state is PowerState.STOPPED
    assert (report.observed.process, report.guest_stopped_itself) == (None, False)
    await world.run_pass(make_row("vm1", **STOPPED))
    assert hypervisor.boots == ["vm1"]
    assert processes(world) == []


async def test_case_a8_the_escalation_is_told(world: HostWorld) -> None:
    """Case A8: a kill in the place of an answer is named where the end is; a guest that heeds is told so, too."""
    await world.run_pass(make_row("vm1"))
    view = await world.run_pass(make_row("vm1", **STOPPED))
    assert view.observed.last_exit is not None
    assert view.observed.last_exit.reason == "it was stopped"
    await world.run_pass(make_row("vm1", **CREATED))
    world.host.parts.hypervisor.obeys = False
    view = await world.run_pass(make_row("vm1", **STOPPED))
    assert view.observed.process is None
    assert view.observed.last_exit is not None
    assert (view.observed.last_exit.by, view.observed.last_exit.reason) == (
        "user",
        "it was stopped by force: it did not end within 1 s of being asked",
    )


async def test_case_b6_a_probe_that_a_restart_overtook_is_void(world: HostWorld, monkeypatch) -> None:
    """Case B6: a look that began before a restart and says "dead" after it: no report of a death, no boot."""
    await world.run_pass(make_row("vm1"))
    hypervisor, seen = world.host.parts.hypervisor, world.host.parts.seen
    find, reached, go = hypervisor.find, asyncio.Event(), asyncio.Event()

    async def slow_find(guest: Any, process: Any) -> Any:
        if asyncio.current_task() is looking and not go.is_set():
            reached.set()
            await go.wait()
            return (await find(guest, process)).model_copy(
                update={"power": "stopped", "ended": "process-gone", "process": None}
            )
        return await find(guest, process)

    monkeypatch.setattr(hypervisor, "find", slow_find)
    looking = asyncio.create_task(world.host.watch.look("vm1"))
    await reached.wait()
    view = await world.run_pass(make_row("vm1", created=True, restart_generation=1))
    exit_of_restart = view.observed.last_exit
    go.set()
    await looking
    (report,) = seen.since(0)
    assert not report.look
    assert report.observed.power_state is PowerState.RUNNING
    assert report.observed.last_exit == exit_of_restart
    assert hypervisor.boots == ["vm1", "vm1"]


async def test_case_b7_a_hypervisor_that_comes_back_is_used_again(world: HostWorld, monkeypatch) -> None:
    """Case B7: a host that could not run guests when its worker started can without another start."""
    hypervisor = world.host.parts.hypervisor
    found = hypervisor.find_availability

    async def absent() -> tuple[Availability, ...]:
        return (Availability(name="qemu", available=False, why="qemu-system-x86_64 is not there"),)

    monkeypatch.setattr(hypervisor, "find_availability", absent)
    world.host.parts.availability = await absent()
    with pytest.raises(StepFailed, match="is not there"):
        await world.run_pass(make_row("vm1"))
    monkeypatch.setattr(hypervisor, "find_availability", found)
    view = await world.run_pass(make_row("vm1"))
    assert view.observed.power_state is PowerState.RUNNING


def no_process(_: ProcessRecord, stranger: ProcessRecord) -> ProcessRecord:
    return stranger.model_copy(update={"pid": 4_194_304, "uid": 0})


def an_unrelated_process(_: ProcessRecord, stranger: ProcessRecord) -> ProcessRecord:
    return stranger


def another_start(guest: ProcessRecord, _: ProcessRecord) -> ProcessRecord:
    return guest.model_copy(update={"start_time": guest.start_time + 1})


@pytest.mark.parametrize("wrong", [no_process, an_unrelated_process, another_start])
async def test_case_b9_a_record_that_names_another_process(world: HostWorld, wrong: Any) -> None:
    """Case B9: it is not running, no stranger is signalled, and the VM can be started, stopped and deleted."""
    await world.run_pass(make_row("vm1"))
    records = world.host.parts.records
    guest = records.status("vm1").process
    assert guest is not None
    kill_guests(world)
    assert await await_end(guest, 10)
    stranger = await launch_detached(Confinement(("sleep", "1000"), uid=0, gid=0), record=_ignore)
    try:
        named = wrong(guest, stranger).model_copy(update={"boot_id": world.boot_id})
        await records.update("vm1", lambda s: s.model_copy(update={"process": named}), lambda: None)
        await world.host.watch.look("vm1")
        (report,) = world.host.parts.seen.since(0)
        assert (report.observed.power_state, report.observed.process) == (PowerState.STOPPED, None)
        view = await world.run_pass(make_row("vm1", **CREATED))
        assert view.observed.power_state is PowerState.RUNNING
        await records.update("vm1", lambda s: s.model_copy(update={"process": named}), lambda: None)
        view = await world.run_pass(make_row("vm1", **DESTROYED))
        assert view.observed.nothing
        assert is_alive(stranger, read_boot_id())
    finally:
        kill_processes([stranger])


async def _ignore(_: ProcessRecord) -> None:
    """Record nothing: no VM's process."""


async def test_case_b9_a_file_of_another_vms_user_does_not_kill_that_vm(world: HostWorld) -> None:
    """Case B9: without a readable record a VM's processes are known by who owns its files, but never another VM's."""
    world.add("vm2")
    await world.run_pass(make_row("vm1"))
    await world.run_pass(make_row("vm2"))
    records = world.host.parts.records
    other = records.status("vm1").process
    assert other is not None
    folder = world.home / "machines" / "vm2"
    os.chown(folder / "seed.iso", other.uid, other.uid)
    await world.stop()
    (folder / "config.json").write_text("{")
    await world.restart()
    view = await world.run_pass(make_row("vm2", **DESTROYED))
    assert view.observed.nothing
    assert processes(world) == [other.pid]


@pytest.mark.parametrize(("part", "probe"), [("hypervisor", "find"), ("network", "inventory")])
async def test_case_b10_a_probe_that_fails_destroys_nothing(
    world: HostWorld, monkeypatch: pytest.MonkeyPatch, part: str, probe: str
) -> None:
    """Case B10: an error is no "no": disk and record stay until somebody could look."""
    await world.run_pass(make_row("vm1"))
    before = identity(world)
    with monkeypatch.context() as patched:
        patched.setattr(getattr(world.host.parts, part), probe, broken)
        with pytest.raises(StepFailed, match="cannot be looked at"):
            await world.run_pass(make_row("vm1", **DESTROYED))
    assert identity(world) == before
    assert (await inventory(world))["files"] == ONE["files"]
    assert (await world.run_pass(make_row("vm1", **DESTROYED))).observed.nothing


async def test_case_b10_a_probe_that_fails_starts_nothing(world: HostWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B10: a guest that cannot be looked at is neither replaced nor cut off from its sockets."""
    await world.run_pass(make_row("vm1"))
    before, world.pass_number = processes(world), world.pass_number + 1
    with monkeypatch.context() as patched:
        patched.setattr(world.host.parts.hypervisor, "find", broken)
        for step in (world.vm.ensure_booted, world.vm.ensure_stopped, world.vm.ensure_restart_noted):
            with pytest.raises(StepFailed, match="cannot be looked at"):
                await step(world.order("vm1", make_row("vm1", created=True, restart_generation=1), 1))
    assert processes(world) == before
    assert await inventory(world) == ONE


async def broken(*_: object) -> None:
    raise StepFailed("it cannot be looked at")


async def test_case_b11_a_new_worker_finds_what_runs_and_what_does_not(world: HostWorld) -> None:
    """Case B11: three are adopted, a process without a record is told, a record without a process is a lost VM."""
    names = [f"vm{number}" for number in range(1, 5)]
    for name in names:
        world.add(name)
        await world.run_pass(make_row(name))
    lost = world.host.parts.records.status("vm4").process
    assert lost is not None
    before = set(processes(world)) - {lost.pid}
    await world.stop()
    kill_processes([lost])
    assert await await_end(lost, 10)
    spare = world.names.users[-1]
    unmanaged = await launch_detached(Confinement(("sleep", "1000"), uid=spare, gid=spare), record=_ignore)
    host = await world.restart()
    reports = {report.vm_id: report for report in host.parts.seen.since(0)}
    assert {name: reports[name].observed.power_state for name in names} == {
        "vm1": PowerState.RUNNING,
        "vm2": PowerState.RUNNING,
        "vm3": PowerState.RUNNING,
        "vm4": PowerState.STOPPED,
    }
    assert [name for name in names if reports[name].look] == ["vm4"]
    frame = await make_reports(host).frame(1, True, ())
    assert frame.unmanaged == 1
    assert set(processes(world)) == before | {unmanaged.pid}
    world.add("vm5")
    await world.run_pass(make_row("vm5"))
    assert host.parts.records.config("vm5").allocation.uid != spare


async def test_case_c2_a_second_attempt_leaves_one_of_each(world: HostWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case C2, L-C1: the first one failed with its process started and its tap made."""
    hypervisor = world.host.parts.hypervisor
    boot = hypervisor.boot

    async def boot_and_fail(*given: Any, **named: Any) -> None:
        await boot(*given, **named)
        raise StepFailed("the network card does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(hypervisor, "boot", boot_and_fail)
        with pytest.raises(StepFailed, match="network card"):
            await world.run_pass(make_row("vm1"))
    (first,) = processes(world)
    view = await world.run_pass(make_row("vm1"))
    assert view.record is not None
    assert view.record.boot_id == world.boot_id
    assert await inventory(world) == ONE
    assert processes(world) != [first]


def stray_file(folder: Path) -> None:
    folder.mkdir()
    (folder / "stray").write_text("x")


def others_folder(folder: Path) -> None:
    stray_file(folder)
    os.chown(folder, 12345, 12345)
    folder.chmod(0o500)


def folder_in_the_way(folder: Path) -> None:
    (folder / "disk").mkdir(parents=True)


def link_elsewhere(folder: Path) -> None:
    folder.symlink_to(folder.parent.parent)


def socket_folder_in_the_way(folder: Path) -> None:
    stray_file(folder.parent.parent / "sockets" / folder.name)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (stray_file, None),
        (others_folder, None),
        (socket_folder_in_the_way, None),
        (folder_in_the_way, None),
        (link_elsewhere, "'vm1'"),
    ],
)
async def test_case_c7_a_folder_that_another_made_first(world: HostWorld, prepare: Any, says: str | None) -> None:
    """Case C7: repaired, or refused with a text that names it; a delete removes all of it, and nothing else."""
    prepare(world.home / "machines" / "vm1")
    if says is None:
        view = await world.run_pass(make_row("vm1"))
        assert view.observed.power_state is PowerState.RUNNING
        assert (world.home / "machines" / "vm1").stat().st_uid == os.geteuid()
    else:
        with pytest.raises(HostlerError, match=says):
            await world.run_pass(make_row("vm1"))
    view = await world.run_pass(make_row("vm1", **DESTROYED))
    assert view.observed.nothing
    assert await inventory(world) == NONE
    assert (world.home / "host.json").exists()


async def test_case_c7_a_folder_from_before_the_worker_is_told(world: HostWorld) -> None:
    """Case C7, L-G8: files of a VM without its record are nobody's to guess about; the text says what is missing."""
    stray_file(world.home / "machines" / "vm1")
    await world.stop()
    await world.restart()
    view = await world.run_pass(make_row("vm1"))
    assert "config.json and status.json are missing" in view.unreadable
    assert next_step(make_row("vm1"), view).kind is StepKind.REST
    assert (await world.run_pass(make_row("vm1", **DESTROYED))).observed.nothing


@pytest.fixture
async def crowd(tmp_path: Path, netns: str) -> AsyncIterator[HostWorld]:
    """A host with 61 addresses."""
    world = HostWorld(
        tmp_path,
        netns,
        lambda names, boot_id: SleepingGuests(names, tmp_path / "monitors", boot_id),
        subnet=IPv4Network("10.84.0.0/26"),
        uid_count=250,
    )
    await world.restart()
    yield world
    await world.close()


async def prepare_all(world: HostWorld, names: list[str]) -> list[HostAllocation]:
    world.pass_number += 1
    for name in names:
        world.add(name)
    orders = [world.order(name, make_row(name, power_state=PowerState.STOPPED), 1) for name in names]
    await asyncio.gather(*(world.vm.ensure_prepared(order) for order in orders))
    return [world.host.parts.records.config(name).allocation for name in names]


async def test_case_d2_sixty_creates_at_once_share_nothing(crowd: HostWorld) -> None:
    """Case D2: sixty on a /26 have sixty addresses, users, taps and MACs."""
    given = await prepare_all(crowd, [f"c{number}" for number in range(60)])
    for part in ("address", "uid", "tap", "mac"):
        assert len({getattr(each, part) for each in given}) == 60, part


@pytest.fixture
async def village(tmp_path: Path, netns: str) -> AsyncIterator[HostWorld]:
    """A host with five addresses."""
    world = HostWorld(
        tmp_path,
        netns,
        lambda names, boot_id: SleepingGuests(names, tmp_path / "monitors", boot_id),
        subnet=IPv4Network("10.84.0.0/29"),
    )
    await world.restart()
    yield world
    await world.close()


async def test_case_d3_the_sixth_of_five_addresses(village: HostWorld) -> None:
    """Case D3: five at once have five; the sixth is refused at once, and made when one is free."""
    given = await prepare_all(village, [f"c{number}" for number in range(5)])
    assert len({each.address for each in given}) == 5
    village.add("c5")
    with pytest.raises(OutOfAddresses, match=r"^no free address in 10\.84\.0\.0/29$"):
        await village.run_pass(make_row("c5"))
    await village.run_pass(make_row("c0", **DESTROYED))
    view = await village.run_pass(make_row("c5"))
    assert view.observed.address == str(given[0].address)


async def test_case_d4_an_address_is_kept_in_quarantine_and_free_once_nothing_uses_it(village: HostWorld) -> None:
    """Case D4: not given out while the VM can be undeleted; free after the reap; given back twice is no harm."""
    names = [f"c{number}" for number in range(4)]
    await prepare_all(village, names)
    village.add("vm1")
    await village.run_pass(make_row("vm1"))
    address = village.host.parts.records.config("vm1").allocation.address
    village.pass_number += 1
    await village.vm.ensure_quarantined(village.order("vm1", make_row("vm1", **CREATED), 1))
    village.add("next")
    with pytest.raises(OutOfAddresses):
        await village.run_pass(make_row("next"))
    for _ in range(2):
        assert (await village.run_pass(make_row("vm1", **DESTROYED))).observed.nothing
        assert not (await village.host.parts.network.inventory()).mentions(str(address))
    view = await village.run_pass(make_row("next"))
    assert view.observed.address == str(address)


async def test_case_d7_a_networked_vm_starts_again_under_its_own_names(world: HostWorld) -> None:
    """Case D7: its own tap, address and reservation are in nobody's way, however often it is stopped and started."""
    await world.run_pass(make_row("vm1"))
    before = identity(world)
    for _ in range(2):
        await world.run_pass(make_row("vm1", **STOPPED))
        view = await world.run_pass(make_row("vm1", **CREATED))
        assert view.observed.network
        assert identity(world) == before
        assert await inventory(world) == ONE
