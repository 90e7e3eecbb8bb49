"""A VM's life on its host, step by step as passes decide it: real records, network, disks; guests that sleep."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from drivers.processes import find_processes_of, kill_processes
from model.errors import Fenced, OutOfSpace, Permanent, StepFailed, Superseded, Unavailable
from model.vm import PowerState
from tests.fixtures.host import HostWorld, make_row


def processes(world) -> list[int]:
    return [found.pid for found in find_processes_of(world.names.users, world.boot_id)]


async def inventory(world, vm_id: str = "vm1") -> dict[str, object]:
    network = await world.host.parts.network.inventory()
    folder = world.home / "machines"
    return {
        "processes": len(processes(world)),
        "taps": len(network.taps),
        "reservations": len(network.reservations),
        "files": sorted(
            str(p.relative_to(folder)).replace(f"{vm_id}/", "vm1/")
            for p in folder.rglob("*")
            if p.is_file() and "console" not in p.name
        ),
    }


ONE = {
    "processes": 1,
    "taps": 1,
    "reservations": 1,
    "files": ["vm1/config.json", "vm1/disk", "vm1/seed.iso", "vm1/status.json"],
}
NONE = {"processes": 0, "taps": 0, "reservations": 0, "files": []}


async def test_a_vm_is_made_runs_and_goes_without_a_trace(world) -> None:
    """L-C, L-R5, L-R6: one of each while it is there, nothing of it afterwards, and its fence stays."""
    view = await world.run_pass(make_row("vm1"))
    assert view.observed.power_state is PowerState.RUNNING
    assert view.record.boot_id == "boot-1"
    assert view.record.create is None
    assert view.observed.network
    assert view.observed.address == "10.84.0.2"
    assert view.observed.restart_count == 0
    assert await inventory(world) == ONE
    view = await world.run_pass(make_row("vm1", created=True))
    assert world.host.parts.hypervisor.boots == ["vm1"]
    view = await world.run_pass(make_row("vm1", created=True, deleted=True, destroying=True))
    assert view.observed.nothing
    assert view.record is None
    assert await inventory(world) == NONE
    assert world.host.parts.jobs.fences.highest("vm1").pass_number == world.pass_number
    view = await world.run_pass(make_row("vm1", created=True, deleted=True, destroying=True))
    assert view.observed.nothing  # acknowledged again when asked


async def test_a_stopped_vm_is_made_and_nothing_is_booted(world) -> None:
    """L-C12."""
    view = await world.run_pass(make_row("vm1", power_state=PowerState.STOPPED))
    assert view.observed.power_state is PowerState.STOPPED
    assert view.record.stop_intended
    assert world.host.parts.hypervisor.boots == []
    view = await world.run_pass(make_row("vm1", created=True, generation=2))
    assert view.observed.power_state is PowerState.RUNNING
    assert view.record.applied_generation == 2


async def test_a_boot_has_its_slot_until_the_guest_has_begun(world, monkeypatch) -> None:
    """L-C7, case M4: what is looked for before, a process of an earlier boot, does not give the slot back."""
    slots, hypervisor = world.host.parts.boot_slots, world.host.parts.hypervisor
    real, held = hypervisor.boot, []

    async def boots(guest, tap_fd, *, record):
        held.append(slots.holds("vm1"))
        return await real(guest, tap_fd, record=record)

    monkeypatch.setattr(hypervisor, "boot", boots)
    await world.run_pass(make_row("vm1"))
    await world.run_pass(make_row("vm1", created=True, restart_generation=1))
    assert held == [True, True]


async def test_stop_pause_resume_start(world) -> None:
    """L-V3: the stop intent is durable; stopped is told once the process is gone."""
    await world.run_pass(make_row("vm1", power_state=PowerState.PAUSED))
    view = await world.run_pass(make_row("vm1", created=True, power_state=PowerState.RUNNING))
    assert view.observed.power_state is PowerState.RUNNING
    view = await world.run_pass(make_row("vm1", created=True, power_state=PowerState.STOPPED))
    assert view.observed.process is None
    assert view.record.stop_intended
    assert view.observed.last_exit.by == "user"
    assert processes(world) == []
    assert world.host.parts.hypervisor.asked == ["vm1"]
    view = await world.run_pass(make_row("vm1", created=True))
    assert not view.record.stop_intended
    assert view.observed.restart_count == 1


async def test_case_a8_a_guest_that_ignores_the_button_is_killed(world) -> None:
    """Case A8: stopped only once the process is gone."""
    await world.run_pass(make_row("vm1"))
    world.host.parts.hypervisor.obeys = False
    view = await world.run_pass(make_row("vm1", created=True, power_state=PowerState.STOPPED))
    assert view.observed.power_state is PowerState.STOPPED
    assert processes(world) == []


async def test_a_restart_happens_once_however_often_its_pass_is_repeated(world) -> None:
    """L-V7: the replaced process is named before it is stopped; done means one dead and another runs."""
    await world.run_pass(make_row("vm1"))
    (old,) = processes(world)
    for _ in range(3):
        view = await world.run_pass(make_row("vm1", created=True, restart_generation=1))
        assert view.record.applied_restart_generation == 1
        assert view.record.restart_of is None
    (new,) = processes(world)
    assert new != old
    assert world.host.parts.hypervisor.boots == ["vm1", "vm1"]


async def test_a_restart_asked_for_after_the_boot_of_another_happens_too(world) -> None:
    """L-V7: the record says which restart replaced the process, so that a later one is told from it."""
    await world.run_pass(make_row("vm1"))
    world.pass_number += 1
    first = make_row("vm1", created=True, restart_generation=1)
    steps = (world.vm.ensure_restart_noted, world.vm.ensure_stopped, world.vm.ensure_booted)
    for number, step in enumerate(steps, 1):
        await step(world.order("vm1", first, number))
    view = await world.run_pass(make_row("vm1", created=True, restart_generation=2))
    assert view.record.applied_restart_generation == 2
    assert world.host.parts.hypervisor.boots == ["vm1", "vm1", "vm1"]


async def test_case_a2_a_host_reboot_boots_once_and_a_stopped_vm_stays_stopped(world) -> None:
    """L-V1, L-V2, case A2."""
    world.add("vm2")
    await world.run_pass(make_row("vm1"))
    await world.run_pass(make_row("vm2", power_state=PowerState.STOPPED))
    await world.stop()
    kill_processes(find_processes_of(world.names.users, world.boot_id))
    world.boot_id = "boot-2"
    host = await world.restart()
    reports = {report.vm_id: report for report in host.parts.seen.since(0)}
    assert reports["vm1"].look
    assert reports["vm1"].observed.last_exit.by == "host"
    assert not reports["vm2"].look
    for _ in range(2):
        view = await world.run_pass(make_row("vm1", created=True))
        assert view.record.boot_id == "boot-2"
    view = await world.run_pass(make_row("vm2", created=True, power_state=PowerState.STOPPED))
    assert view.record.boot_id == "boot-2"
    assert host.parts.hypervisor.boots == ["vm1"]


async def test_case_b3_a_worker_restart_touches_no_guest(world) -> None:
    """H-E5, case B3: same pid, and it is watched again."""
    await world.run_pass(make_row("vm1"))
    before = processes(world)
    await world.stop()
    host = await world.restart()
    assert processes(world) == before
    (report,) = host.parts.seen.since(0)
    assert report.observed.power_state is PowerState.RUNNING
    assert not report.look
    count = host.parts.seen.count
    kill_processes(find_processes_of(world.names.users, world.boot_id))
    report = await until_moved(host.parts.seen, count)
    assert report.look
    assert report.observed.power_state is PowerState.STOPPED
    assert report.observed.last_exit.by == "hypervisor"
    assert not report.guest_stopped_itself


async def until_moved(seen, count: int):
    async with asyncio.timeout(10):
        while not (moved := seen.since(count)):
            seen.changed.clear()
            await seen.changed.wait()
    return moved[-1]


async def test_a_guest_that_turned_itself_off_is_told_and_booted_again(world) -> None:
    """L-V4: its end is durable before its process quits; the boot counts."""
    await world.run_pass(make_row("vm1"))
    seen = world.host.parts.seen
    count = seen.count
    (world.home.parent / "monitors" / "vm1.json").write_text(json.dumps("ended"))
    report = await until_moved(seen, count)
    assert report.guest_stopped_itself
    assert report.look
    assert report.observed.last_exit.by == "guest"
    assert report.observed.guest_ended == "guest-shutdown"
    assert world.host.parts.records.status("vm1").turned_off
    (old,) = processes(world)
    view = await world.run_pass(make_row("vm1", created=True))
    assert view.observed.power_state is PowerState.RUNNING
    assert processes(world) != [old]
    assert view.observed.restart_count == 1
    assert view.observed.last_exit.by == "guest"


async def test_case_a6_an_end_after_the_stop_intent_is_the_users(world) -> None:
    """Case A6: the exit that a stop causes never looks like the guest's own."""
    await world.run_pass(make_row("vm1"))
    await world.run_pass(make_row("vm1", created=True, power_state=PowerState.STOPPED))
    await world.host.watch.look("vm1")
    (report,) = world.host.parts.seen.since(0)
    assert not report.look
    assert not report.guest_stopped_itself


async def test_case_b2_a_silent_monitor_is_no_death(world) -> None:
    """Case B2: nothing is booted, killed or asked for; the state is empty until it can be told again."""
    await world.run_pass(make_row("vm1"))
    before = processes(world)
    hypervisor = world.host.parts.hypervisor
    hypervisor.answers = False
    await world.host.watch.look("vm1")
    (report,) = world.host.parts.seen.since(0)
    assert report.observed.power_state is None
    assert not report.look
    await world.run_pass(make_row("vm1", created=True))
    assert processes(world) == before
    hypervisor.answers = True
    await world.host.watch.look("vm1")
    (report,) = world.host.parts.seen.since(0)
    assert report.observed.power_state is PowerState.RUNNING


async def test_another_attempt_starts_at_the_beginning(world) -> None:
    """L-C1: what an earlier attempt booted is proven dead, its disk and seed are made anew, address and key stay."""
    await world.run_pass(make_row("vm1"))
    records = world.host.parts.records
    status = records.status("vm1")
    record = status.record.model_copy(update={"boot_id": None})
    await records.update("vm1", lambda s: s.model_copy(update={"record": record}), lambda: None)
    (old,) = processes(world)
    with (world.home / "machines" / "vm1" / "disk").open("rb") as disk:
        key = records.config("vm1").host_key
        await world.run_pass(make_row("vm1"))
        assert os.fstat(disk.fileno()).st_nlink == 0
    assert processes(world) != [old]
    assert records.config("vm1").host_key == key
    assert await inventory(world) == ONE


async def test_a_completed_vm_is_never_prepared_again(world) -> None:
    await world.run_pass(make_row("vm1"))
    world.pass_number += 1
    with pytest.raises(Superseded):
        await world.vm.ensure_prepared(world.order("vm1", make_row("vm1"), 1))
    assert await inventory(world) == ONE


async def test_an_unreadable_record_harms_nobody_and_can_be_deleted(world) -> None:
    """L-G8: never started or stopped by itself; a delete ends its process and removes its folder."""
    world.add("vm2")
    await world.run_pass(make_row("vm1"))
    await world.run_pass(make_row("vm2"))
    await world.stop()
    (world.home / "machines" / "vm1" / "config.json").write_text("{")
    host = await world.restart()
    assert len(processes(world)) == 2
    reports = {report.vm_id: report for report in host.parts.seen.since(0)}
    assert "config.json" in reports["vm1"].unreadable
    assert reports["vm1"].observed.power_state is None
    assert reports["vm2"].observed.power_state is PowerState.RUNNING
    assert host.watch.unmanaged == 1
    view = await world.run_pass(make_row("vm1", created=True))
    assert len(processes(world)) == 2
    assert "config.json" in view.unreadable
    view = await world.run_pass(make_row("vm1", created=True, deleted=True, destroying=True))
    assert view.observed.nothing
    assert len(processes(world)) == 1
    assert (await inventory(world))["taps"] == 1


async def test_a_delete_ends_a_create_and_finds_nothing_running_of_it(world) -> None:
    """L-R8, L-G5: the newer fence ends the older step there and then."""
    gate = asyncio.Event()
    reached = asyncio.Event()

    async def slow_fetch(vm_id: str, digest: str):
        reached.set()
        await gate.wait()

    world.host.parts.fetch_input = slow_fetch
    creating = asyncio.create_task(world.run_pass(make_row("vm1")))
    await reached.wait()
    view = await world.run_pass(make_row("vm1", deleted=True, destroying=True))
    with pytest.raises(Fenced):
        await creating
    assert view.observed.nothing
    assert await inventory(world) == NONE


async def test_an_api_that_is_away_changes_nothing(world) -> None:
    """L-C4: the input cannot be fetched, and no attempt is used up by the host's doing."""

    async def away(vm_id: str, digest: str):
        raise Unavailable("away")

    world.host.parts.fetch_input = away
    with pytest.raises(Unavailable):
        await world.run_pass(make_row("vm1"))
    assert await inventory(world) == NONE


async def test_case_b10_a_failed_probe_is_no_absence(world, monkeypatch) -> None:
    """Case B10, L-R6: a host that cannot look confirms nothing."""

    async def broken():
        raise StepFailed("the kernel does not answer")

    monkeypatch.setattr(world.host.parts.network, "inventory", broken)
    with pytest.raises(StepFailed):
        await world.run_pass(make_row("vm1", created=True, deleted=True, destroying=True))


async def test_quarantine_stops_and_undelete_brings_back(world) -> None:
    """L-R2, L-R4: same disk, same address."""
    await world.run_pass(make_row("vm1"))
    world.pass_number += 1
    view = await world.vm.ensure_quarantined(world.order("vm1", make_row("vm1", created=True), 1))
    assert view.record.quarantined_at is not None
    assert view.record.stop_intended
    assert processes(world) == []
    disk = (world.home / "machines" / "vm1" / "disk").stat().st_ino
    address = view.observed.address
    view = await world.run_pass(make_row("vm1", created=True))
    assert view.record.quarantined_at is None
    assert view.observed.power_state is PowerState.RUNNING
    assert view.observed.address == address
    assert (world.home / "machines" / "vm1" / "disk").stat().st_ino == disk


@pytest.mark.parametrize("step", ["ensure_quarantined", "ensure_stopped"])
async def test_a_guest_whose_stop_cannot_be_recorded_is_left_running(world, monkeypatch, step: str) -> None:
    """L-R2, L-V3: the intent is durable before the guest is asked; without it the guest is not even asked."""
    await world.run_pass(make_row("vm1"))
    before = processes(world)

    async def full(vm_id, change, guard):
        raise OutOfSpace("the host's filesystem is full")

    monkeypatch.setattr(world.host.parts.records, "update", full)
    world.pass_number += 1
    with pytest.raises(OutOfSpace):
        await getattr(world.vm, step)(world.order("vm1", make_row("vm1", created=True), 1))
    assert processes(world) == before
    assert world.host.parts.hypervisor.asked == []


async def test_secrets_are_in_private_files_only(world) -> None:
    """S-42, E10: user-data and host key are where only root reads them, and go with the VM."""
    await world.run_pass(make_row("vm1"))
    for path in Path(world.home).rglob("*"):
        if path.is_file() and b"c2VjcmV0" in path.read_bytes():
            assert path.name == "config.json"
            assert path.stat().st_mode & 0o077 == 0


async def test_a_vm_larger_than_its_host_is_refused_at_once(world) -> None:
    """L-C6: no later try can give the host more memory than it has; nothing is left behind."""
    world.add("vm1", memory_mib=4 << 20)
    with pytest.raises(Permanent, match=r"has \d+ MiB of memory, the VM needs 4194304 MiB"):
        await world.run_pass(make_row("vm1"))
    assert await inventory(world) == NONE


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_host_that_only_emulates_takes_projects_vms_where_its_operator_said_so(
    world: HostWorld, allowed: bool
) -> None:
    """S-16: and tells of each guest that it is emulated; the operator's own are theirs to judge."""
    world.host.parts.allow_emulated_guests = allowed
    world.add("vm1", project="red")
    if allowed:
        view = await world.run_pass(make_row("vm1"))
        assert view.observed.emulated is True
    else:
        with pytest.raises(Permanent, match="only emulates"):
            await world.run_pass(make_row("vm1"))
    world.add("vm2", project="default")
    assert (await world.run_pass(make_row("vm2"))).observed.emulated is True
