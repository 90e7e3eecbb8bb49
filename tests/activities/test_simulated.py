"""X-4: a host whose guests are simulated, without root: records, fences, locks, slots and steps are the real ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from drivers.hypervisor.choice import Hypervisors
from drivers.hypervisor.simulated import Simulated
from drivers.simulated import LOWEST_PID, Inventory, Simulation
from model.errors import Permanent, StepFailed, Superseded
from model.record import View
from model.vm import PowerState
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.processes import SleepingGuests

NOTHING = Inventory(processes={}, taps={}, addresses={}, disks={})
GONE = {"created": True, "deleted": True, "destroying": True}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HostWorld]:
    world = HostWorld(tmp_path)
    world.add("vm1")
    await world.restart()
    yield world
    await world.close()


def effects(world: HostWorld, vm_id: str = "vm1") -> Counter[str]:
    return Counter(effect.effect for effect in world.simulation.journal() if effect.vm_id == vm_id)


def found(world: HostWorld) -> Inventory:
    """What is there, as somebody sees it who only has the folder."""
    folder = world.home / "simulated"
    return Simulation(folder, lambda: world.boot_id).inventory(world.home / "machines")


async def until_look(world: HostWorld, vm_id: str = "vm1"):
    """Wait until the host asks for a pass of the VM by itself."""
    seen = world.host.parts.seen
    async with asyncio.timeout(10):
        while not (asked := [report for report in seen.since(0) if report.vm_id == vm_id and report.look]):
            seen.changed.clear()
            await seen.changed.wait()
    return asked[0]


async def test_each_effect_happens_once_and_nothing_is_left(world: HostWorld) -> None:
    """X-4, L-R6: one process, tap and disk, listed by anyone who has the folder; then nothing of any."""
    for _ in range(3):
        view = await world.run_pass(make_row("vm1"))
        assert view.observed.power_state is PowerState.RUNNING
    assert effects(world) == {"disk": 1, "tap": 1, "boot": 1}
    there = found(world)
    assert all(list(vms) == ["vm1"] for vms in there.model_dump().values())
    assert len(there.processes["vm1"]) == len(there.taps["vm1"]) == 1
    assert [str(address) for address in there.addresses["vm1"]] == [view.observed.address]
    for _ in range(2):
        view = await world.run_pass(make_row("vm1", **GONE))
        assert view.observed.nothing
    assert found(world) == NOTHING
    assert effects(world) == {"disk": 1, "tap": 1, "boot": 1, "kill": 1, "remove_tap": 1}


async def test_guests_and_taps_outlive_the_worker_but_not_the_host(world: HostWorld) -> None:
    """X-4, H-E5, L-V1: a new worker finds the same process; another boot of the host has none, and boots it once."""
    await world.run_pass(make_row("vm1"))
    before = found(world)
    await world.stop()
    host = await world.restart()
    assert found(world) == before
    assert host.parts.seen.since(0)[0].observed.power_state is PowerState.RUNNING
    await world.stop()
    world.boot_id = "boot-2"
    assert (found(world).processes, found(world).taps) == ({}, {})
    await world.restart()
    assert (await until_look(world)).observed.last_exit.by == "host"
    for _ in range(2):
        view = await world.run_pass(make_row("vm1", created=True))
    assert view.observed.restart_count == 1
    assert effects(world)["boot"] == 2
    assert len(found(world).processes["vm1"]) == 1


@pytest.mark.parametrize("how", ["raise", "hang"])
async def test_a_boot_whose_answer_is_lost_is_adopted(world: HostWorld, how: str) -> None:
    """X-4, L-G4: it happened although nobody was told; the next try finds it, and there never were two."""
    await world.run_pass(make_row("vm1", power_state=PowerState.STOPPED))
    world.simulation.control("vm1", lost={"boot": how})
    booting = asyncio.create_task(world.run_pass(make_row("vm1", created=True)))
    async with asyncio.timeout(10):
        while not effects(world)["boot"]:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    if how == "hang":
        booting.cancel()
    with pytest.raises(StepFailed if how == "raise" else asyncio.CancelledError):
        await booting
    view = await world.run_pass(make_row("vm1", created=True))
    assert view.observed.power_state is PowerState.RUNNING
    assert effects(world)["boot"] == 1


async def test_a_refused_boot_leaves_no_process(world: HostWorld) -> None:
    """X-4, L-V5: so many are refused with what was said, and the next one runs."""
    world.simulation.control(refuse_boots=2, said="no such machine")
    for _ in range(2):
        with pytest.raises(StepFailed, match="no such machine"):
            await world.run_pass(make_row("vm1"))
        assert found(world).processes == {}
    await world.run_pass(make_row("vm1"))
    assert effects(world)["boot"] == 1


async def test_a_guest_that_dies_at_its_start_is_a_failed_boot(world: HostWorld) -> None:
    """X-4: boot time and exits are settable; an exit may be meant for the first boots only."""
    world.simulation.control(boot_seconds=5, exit_after_seconds=0.05, exit_boots=1, said="Kernel panic")
    with pytest.raises(StepFailed, match="ended while it started: Kernel panic"):
        await world.run_pass(make_row("vm1"))
    assert found(world).processes == {}
    world.simulation.control(boot_seconds=0.2, exit_after_seconds=0.05, exit_boots=1)
    view = await world.run_pass(make_row("vm1"))
    assert view.observed.power_state is PowerState.RUNNING


@pytest.mark.parametrize(
    ("what", "by", "ended", "paused"),
    [
        ("crash", "hypervisor", None, None),
        ("poweroff", "guest", "guest-shutdown", None),
        ("panic", None, None, "guest-panic"),
        ("io-error", None, None, "io-error"),
    ],
)
async def test_what_happens_to_a_guest_is_seen_and_told(world: HostWorld, what, by, ended, paused) -> None:
    """X-4, L-V4, L-V11: each end and each pause by the hypervisor is seen at once, with its reason."""
    await world.run_pass(make_row("vm1"))
    world.simulation.cause("vm1", what, "it said this")
    report = await until_look(world)
    exited = report.observed.last_exit
    assert (exited.by if exited else None) == by
    assert report.observed.guest_ended == ended
    assert report.observed.paused_by_hypervisor == paused
    if what == "crash":
        assert "it said this" in exited.reason


async def test_case_a7_a_hypervisor_that_dies_right_after_a_boot_is_told(world: HostWorld) -> None:
    """Case A7, L-V6: it does not show as running, what it said is told, and stays told after the next boot."""
    world.simulation.control(exit_after_seconds=0.3, exit_boots=1, said="out of luck")
    await world.run_pass(make_row("vm1"))
    report = await until_look(world)
    assert report.observed.power_state is PowerState.STOPPED
    assert report.observed.last_exit is not None
    assert "out of luck" in report.observed.last_exit.reason
    view = await world.run_pass(make_row("vm1", created=True))
    assert view.observed.power_state is PowerState.RUNNING
    assert view.observed.last_exit == report.observed.last_exit


async def test_case_a5_a_guests_own_reboot_is_no_end(world: HostWorld) -> None:
    """Case A5, X-4: as on QEMU the process goes on."""
    await world.run_pass(make_row("vm1"))
    before = found(world)
    world.simulation.cause("vm1", "reboot")
    view = await world.run_pass(make_row("vm1", created=True))
    assert view.observed.power_state is PowerState.RUNNING
    assert found(world) == before


async def test_a_cause_that_stays_pauses_a_resumed_guest_again(world: HostWorld) -> None:
    """X-4, L-V11: a guest paused by a full disk runs on only when there is room again."""
    await world.run_pass(make_row("vm1"))
    world.simulation.cause("vm1", "io-error")
    world.simulation.control(pause_stays=True)
    view = await resumed(world)
    assert view.observed.paused_by_hypervisor == "io-error"
    world.simulation.control(pause_stays=False)
    view = await resumed(world)
    assert (view.observed.power_state, view.observed.paused_by_hypervisor) == (PowerState.RUNNING, None)


async def test_what_befalls_a_guest_is_noted_once(world: HostWorld) -> None:
    """L-V4, L-V11: each end by itself and each pause has the next number, durably, however often it is looked at."""
    await world.run_pass(make_row("vm1"))
    numbers: list[int] = []
    for what in ("crash", "poweroff", "panic", "crash"):
        world.simulation.cause("vm1", what)
        for _ in range(2):
            await world.host.watch.look("vm1")
        await world.restart()
        await world.host.watch.look("vm1")
        setback = world.host.parts.seen.last("vm1").setback
        assert setback is not None
        numbers.append(setback.number)
        await world.run_pass(make_row("vm1", created=True))
    assert numbers == [1, 2, 3, 4]
    for wanted in ({"power_state": PowerState.STOPPED}, {}, {"restart_generation": 1}):
        view = await world.run_pass(make_row("vm1", created=True, **wanted))
    world.boot_id = "boot-2"
    view = await world.run_pass(make_row("vm1", created=True, restart_generation=1))
    assert view.observed.setback.number == 4, "a stop, a restart and a host's reboot befall no guest"


async def test_a_guest_is_not_booted_over_what_was_not_counted(world: HostWorld) -> None:
    """L-V4: the order says what its pass knows; one of an earlier release says nothing, and boots as ever."""
    await world.run_pass(make_row("vm1"))
    world.simulation.cause("vm1", "crash")
    row = make_row("vm1", created=True)
    world.pass_number += 1
    with pytest.raises(Superseded, match="counted first"):
        await world.vm.ensure_booted(world.order("vm1", row, 1, setbacks=0))
    assert found(world).processes == {}
    view = await world.vm.ensure_booted(world.order("vm1", row, 2))
    assert view.observed.power_state is PowerState.RUNNING


async def test_a_boot_that_failed_is_no_end_of_a_guest(world: HostWorld) -> None:
    """L-V4, L-V5: it is paced as a failed step, and is not counted a second time."""
    await world.run_pass(make_row("vm1"))
    world.simulation.cause("vm1", "crash")
    world.simulation.control(boot_seconds=5, exit_after_seconds=0.05, said="Kernel panic")
    with pytest.raises(StepFailed, match="ended while it started"):
        await world.run_pass(make_row("vm1", created=True))
    await world.host.watch.look("vm1")
    assert world.host.parts.seen.last("vm1").setback.number == 1


async def test_a_process_that_nobody_saw_run_is_neither_a_death_nor_a_restart(world: HostWorld) -> None:
    """L-V4, L-V6: its worker died after it had named it; only the boot after it is the restart."""
    await world.run_pass(make_row("vm1"))
    world.simulation.cause("vm1", "crash")
    world.simulation.control("vm1", boot_seconds=30)
    booting = asyncio.create_task(world.run_pass(make_row("vm1", created=True)))
    async with asyncio.timeout(10):
        while effects(world)["boot"] < 2:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    booting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await booting
    world.simulation.control("vm1")
    world.simulation.cause("vm1", "crash")
    await world.host.watch.look("vm1")
    view = await world.run_pass(make_row("vm1", created=True))
    assert (view.observed.setback.number, view.observed.restart_count) == (1, 1)


async def test_no_room_is_told_as_long_as_there_is_none(world: HostWorld) -> None:
    """L-V11: it asks for a pass when there is room again, not while there surely is none."""
    await world.run_pass(make_row("vm1"))
    world.simulation.control(pause_stays=True)
    world.simulation.cause("vm1", "no-space")
    await world.host.watch.look("vm1")
    (report,) = world.host.parts.seen.since(0)
    assert (report.observed.paused_by_hypervisor, report.observed.cause_remains) == ("no-space", True)
    assert not report.look
    world.simulation.control()
    await world.host.watch.look("vm1")
    (report,) = world.host.parts.seen.since(0)
    assert report.look
    view = await resumed(world)
    assert (view.observed.power_state, view.observed.paused_by_hypervisor) == (PowerState.RUNNING, None)


async def resumed(world: HostWorld) -> View:
    world.pass_number += 1
    return await world.vm.ensure_resumed(world.order("vm1", make_row("vm1", created=True), 1))


async def test_a_silent_monitor_and_a_deaf_guest(world: HostWorld) -> None:
    """X-4, case B2, case A8: no answer is no death; a guest that ignores its power button is killed at the end."""
    await world.run_pass(make_row("vm1"))
    world.simulation.control("vm1", answers=False)
    world.pass_number += 1
    view = await world.vm.find_vm(world.order("vm1", make_row("vm1", created=True), 1))
    assert (view.observed.power_state, view.observed.process is None) == (None, False)
    world.simulation.control("vm1", ignores_power_button=True)
    await world.run_pass(make_row("vm1", created=True, power_state=PowerState.STOPPED))
    assert found(world).processes == {}
    assert effects(world)["press"] >= 1
    assert effects(world)["kill"] == 1


async def test_a_process_that_survives_its_kill_keeps_a_delete_waiting(world: HostWorld, monkeypatch) -> None:
    """X-4, L-R5: nothing is forgotten while something lives."""
    monkeypatch.setattr("drivers.host.ending.KILL_SECONDS", 0.05)
    await world.run_pass(make_row("vm1"))
    world.simulation.control(survives_kill=True)
    with pytest.raises(StepFailed, match="did not end"):
        await world.run_pass(make_row("vm1", **GONE))
    assert found(world).disks
    world.simulation.control()
    assert (await world.run_pass(make_row("vm1", **GONE))).observed.nothing


async def test_addresses_that_are_held_are_not_drawn(world: HostWorld) -> None:
    """X-4, case D4: what is in use although no record names it is given to nobody."""
    world.simulation.control(held=("10.84.0.2", "10.84.0.3"))
    view = await world.run_pass(make_row("vm1"))
    assert view.observed.address == "10.84.0.4"


async def test_a_disk_grows_live_and_at_rest(world: HostWorld) -> None:
    """X-4, L-V8."""
    await world.run_pass(make_row("vm1"))
    await world.run_pass(make_row("vm1", created=True, disk_gib=2))
    assert found(world).disks == {"vm1": 2 << 30}
    await world.run_pass(make_row("vm1", created=True, disk_gib=2, power_state=PowerState.STOPPED))
    await world.run_pass(make_row("vm1", created=True, disk_gib=3, power_state=PowerState.STOPPED))
    assert found(world).disks == {"vm1": 3 << 30}


async def test_a_record_that_cannot_be_read_is_searched_for(world: HostWorld) -> None:
    """L-G8: its process is a stray that is left alone, counted, and ended by a delete."""
    await world.run_pass(make_row("vm1"))
    await world.stop()
    (world.home / "machines" / "vm1" / "config.json").write_text("{")
    host = await world.restart()
    assert host.watch.unmanaged == 1
    assert len(found(world).processes) == 1
    assert (await world.run_pass(make_row("vm1", **GONE))).observed.nothing
    assert found(world) == NOTHING


async def test_what_a_full_disk_cut_off_spoils_nothing(world: HostWorld) -> None:
    """X-4: half a line was never caused, and what comes after it is read."""
    await world.run_pass(make_row("vm1"))
    with (world.home / "simulated" / "journal.jsonl").open("a") as journal:
        journal.write('{"effect":"kill","vm_id":"vm1","bo')
    assert len(found(world).processes["vm1"]) == 1
    world.simulation.cause("vm1", "crash")
    assert found(world).processes == {}


async def test_it_is_chosen_by_name_only(world: HostWorld) -> None:
    """X-4, X-1: `auto` never takes it, and a host that does not allow it refuses it for good."""
    world.add("vm2", hypervisor="auto")
    with pytest.raises(Permanent, match="does not run 'auto' guests: it runs simulated"):
        await world.run_pass(make_row("vm2"))
    parts = world.host.parts
    parts.availability = await Simulated(world.simulation, world.names, allowed=False).find_availability()
    with pytest.raises(Permanent, match="HOSTLER_HOST_SIMULATED_GUESTS"):
        await world.run_pass(make_row("vm1"))
    assert found(world) == NOTHING


async def test_real_and_simulated_guests_live_side_by_side(tmp_path: Path, netns: str) -> None:
    """X-4: each has hypervisor, network and disk of its own kind; a search without a record looks at both."""

    def both(names, boot_id) -> Hypervisors:
        real = SleepingGuests(names, tmp_path / "monitors", boot_id)
        return Hypervisors(real, Simulated(world.simulation, names, allowed=True))

    world = HostWorld(tmp_path, netns, both)
    image = world.add("real").image
    world.add("told", hypervisor="simulated", image=image)
    await world.restart()
    try:
        for vm_id in ("real", "told"):
            assert (await world.run_pass(make_row(vm_id))).observed.network
        parts = world.host.parts
        allocations = [parts.records.config(vm_id).allocation for vm_id in ("real", "told")]
        assert len({given.address for given in allocations}) == len({given.uid for given in allocations}) == 2
        assert {found.pid > LOWEST_PID for found in await parts.hypervisor.find_processes()} == {True, False}
        assert list(found(world).processes) == list(found(world).taps) == list(found(world).disks) == ["told"]
        assert len((await parts.network.inventory()).taps) == 2
        assert (world.home / "machines" / "real" / "disk").read_bytes()[:4] == b"QFI\xfb"
        for vm_id in ("real", "told"):
            await world.stop()
            (world.home / "machines" / vm_id / "config.json").write_text("{")
            await world.restart()
            assert (await world.run_pass(make_row(vm_id, **GONE))).observed.nothing
        assert found(world) == NOTHING
        assert await world.host.parts.hypervisor.find_processes() == []
        assert (await world.host.parts.network.inventory()).taps == frozenset()
    finally:
        await world.close()


async def test_a_guest_whose_stop_was_given_up_runs_on_as_any_other(world: HostWorld) -> None:
    """L-V3, L-V4, L-R4: it is waited for while it may still end; then its own power-off is its own again."""
    await world.run_pass(make_row("vm1"))
    world.simulation.control("vm1", ignores_power_button=True)
    wanted = make_row("vm1", created=True)
    patient = wanted.model_copy(update={"desired": wanted.desired.model_copy(update={"stop_timeout_seconds": 600})})
    stopped = patient.desired.model_copy(update={"power_state": PowerState.STOPPED})
    stopping = asyncio.create_task(world.run_pass(patient.model_copy(update={"desired": stopped})))
    async with asyncio.timeout(10):
        while not effects(world)["press"]:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    world.pass_number += 1
    view = await world.vm.ensure_booted(world.order("vm1", patient, 1))
    assert view.waiting is not None
    assert view.record is not None
    assert view.record.stop_intended
    impatient = wanted.desired.model_copy(update={"stop_timeout_seconds": 0})
    view = await world.run_pass(wanted.model_copy(update={"desired": impatient}))
    assert view.record is not None
    assert not view.record.stop_intended
    assert effects(world)["boot"] == 1
    world.simulation.cause("vm1", "poweroff")
    assert (await until_look(world)).guest_stopped_itself


async def test_a_vm_that_is_wanted_stopped_leaves_the_queue_for_a_boot(world: HostWorld) -> None:
    """L-C7, L-V2: nobody's turn is kept for a guest that nobody boots any more."""
    await world.run_pass(make_row("vm1"))
    world.simulation.cause("vm1", "crash")
    await until_look(world)
    slots, began = world.host.parts.boot_slots, datetime(2026, 1, 1, tzinfo=UTC)
    for other in ("a", "b"):
        assert await slots.take(other, print, boot_priority=0, created_at=began) is None
    assert await slots.take("vm1", print, boot_priority=9, created_at=began, wait_seconds=0.01) is not None
    await world.run_pass(make_row("vm1", created=True, power_state=PowerState.STOPPED))
    slots.release("a")
    assert not slots.holds("vm1")
    assert slots.busy == 1
