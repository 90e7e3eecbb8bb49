"""What others removed, what a failure left, what only an id leads to: all of a VM goes, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from drivers.processes import find_processes_of, kill_processes
from model.errors import Busy, Permanent, StepFailed
from model.vm import PowerState
from tests.activities.test_vm import NONE, ONE, inventory, processes
from tests.fixtures.host import HostWorld, make_row

REMOVED = {
    "the disk": lambda home: (home / "machines/vm1/disk").unlink(),
    "the record": lambda home: [(home / "machines/vm1" / name).unlink() for name in ("config.json", "status.json")],
    "the folder": lambda home: shutil.rmtree(home / "machines/vm1"),
    "every folder": lambda home: shutil.rmtree(home / "machines"),
}
DELETED = {"created": True, "deleted": True, "destroying": True}


@pytest.mark.parametrize("part", REMOVED)
async def test_case_e6_what_somebody_else_removed_does_not_keep_a_delete(world: HostWorld, part: str) -> None:
    """Case E6, L-R5: each destroying step accepts that its part is gone, whatever it was; the guest runs until then."""
    await world.run_pass(make_row("vm1"))
    REMOVED[part](world.home)
    view = await world.run_pass(make_row("vm1", **DELETED))
    assert view.observed.nothing
    assert await inventory(world) == NONE


@pytest.mark.parametrize("part", REMOVED)
async def test_case_e7_a_worker_that_never_knew_the_vm_deletes_it(world: HostWorld, part: str) -> None:
    """Cases E6, E7, E12: a new worker finds what is left by the id alone: tap, reservation, address."""
    await world.run_pass(make_row("vm1"))
    await world.run_pass(make_row("vm1", created=True, power_state=PowerState.STOPPED))
    await world.stop()
    REMOVED[part](world.home)
    await world.restart()
    before = await inventory(world)
    assert (before["taps"], before["reservations"]) == (1, 1)
    view = await world.run_pass(make_row("vm1", **DELETED))
    assert view.observed.nothing
    assert await inventory(world) == NONE


async def test_case_e7_a_restarted_worker_ends_the_guest_of_a_delete(world: HostWorld) -> None:
    """Case E7: the process that an earlier worker started goes, and so does all that it had."""
    await world.run_pass(make_row("vm1"))
    await world.stop()
    await world.restart()
    assert len(processes(world)) == 1
    await world.run_pass(make_row("vm1", **DELETED))
    assert await inventory(world) == NONE


async def test_case_e7_a_tap_that_is_still_open_is_nobody_elses(world: HostWorld) -> None:
    """Case E7: the next VM has a tap, user and address of its own; the same VM is told to wait, and then starts."""
    await world.run_pass(make_row("vm1"))
    network, records = world.host.parts.network, world.host.parts.records
    held = network.open_tap(world.host.parts.attachment(records.config("vm1")))
    try:
        world.add("vm2")
        await world.run_pass(make_row("vm2"))
        mine, other = records.config("vm1").allocation, records.config("vm2").allocation
        assert mine.tap != other.tap
        assert mine.uid != other.uid
        assert mine.address != other.address
        kill_processes(find_processes_of(range(mine.uid, mine.uid + 1), world.boot_id))
        with pytest.raises(Busy, match="still open"):
            await world.run_pass(make_row("vm1", created=True))
    finally:
        os.close(held)
    view = await world.run_pass(make_row("vm1", created=True))
    assert view.observed.power_state is PowerState.RUNNING


async def test_case_e3_a_create_that_fails_before_its_record_holds_nothing(world: HostWorld, monkeypatch) -> None:
    """Case E3: user and address that were drawn and not recorded are free again at once."""
    records = world.host.parts.records
    real = records.write_config

    async def full(config, guard):
        raise StepFailed("the disk is full")

    monkeypatch.setattr(records, "write_config", full)
    with pytest.raises(StepFailed):
        await world.run_pass(make_row("vm1"))
    assert await inventory(world) == NONE
    monkeypatch.setattr(records, "write_config", real)
    for number in range(len(world.names.users)):
        await prepare(world, f"c{number}")
    users = {records.config(f"c{number}").allocation.uid for number in range(len(world.names.users))}
    assert users == set(world.names.users)


async def prepare(world: HostWorld, vm_id: str) -> None:
    """Let a VM have its record, user and address, and nothing else yet."""
    world.add(vm_id)
    world.pass_number += 1
    await world.vm.ensure_prepared(world.order(vm_id, make_row(vm_id), 1))


async def test_case_e3_a_boot_that_fails_gives_its_network_back(world: HostWorld, monkeypatch) -> None:
    """Case E3, L-G4: the next attempt has the same address, and there is one of everything."""
    hypervisor = world.host.parts.hypervisor
    real = hypervisor.boot

    async def fails(guest, tap_fd, *, record):
        raise StepFailed("KVM not accessible")

    monkeypatch.setattr(hypervisor, "boot", fails)
    with pytest.raises(StepFailed, match="KVM"):
        await world.run_pass(make_row("vm1"))
    address = world.host.parts.records.config("vm1").allocation.address
    monkeypatch.setattr(hypervisor, "boot", real)
    await world.run_pass(make_row("vm1"))
    assert world.host.parts.records.config("vm1").allocation.address == address
    assert await inventory(world) == ONE


async def test_case_e10_key_and_user_data_go_with_a_guest_that_never_started(world: HostWorld, monkeypatch) -> None:
    """Case E10, S-42: while it is there only root reads it; after the delete no file holds it."""

    async def fails(guest, tap_fd, *, record):
        raise Permanent("the image has no boot loader")

    monkeypatch.setattr(world.host.parts.hypervisor, "boot", fails)
    with pytest.raises(Permanent):
        await world.run_pass(make_row("vm1"))
    config = world.host.parts.records.config("vm1")
    key = config.host_key.private.splitlines()[-3].encode()
    secrets = (key, b"c2VjcmV0", b"secret")
    holding = [path for path in files(world) if any(secret in path.read_bytes() for secret in secrets)]
    assert {path.name for path in holding} == {"config.json", "seed.iso"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in holding)
    await world.run_pass(make_row("vm1", deleted=True, destroying=True))
    assert await inventory(world) == NONE
    assert [path for path in files(world) if any(secret in path.read_bytes() for secret in secrets)] == []


def files(world: HostWorld) -> list[Path]:
    return [path for path in world.home.rglob("*") if path.is_file() and not path.is_symlink()]


async def test_case_e11_a_start_removes_half_made_files_and_nothing_else(world: HostWorld) -> None:
    """Case E11, L-G8: what has a record stays whole, what has none is told and left, whatever it is called."""
    world.add("vm2")
    await world.run_pass(make_row("vm1"))
    await world.run_pass(make_row("vm2", power_state=PowerState.STOPPED))
    await world.stop()
    machines = world.home / "machines"
    for path in ("vm1/disk.new.0123456789ab", "vm2/status.json.new.0123456789ab"):
        (machines / path).write_text("half")
    for name in ("vm10", "orphan", "vm1.new.0123456789ab", "lost+found"):
        (machines / name).mkdir()
        (machines / name / "disk").write_text("precious")
    before = {path: path.read_bytes() for path in files(world) if ".new." not in path.name and "machines" in str(path)}
    host = await world.restart()
    after = {path: path.read_bytes() for path in files(world) if "machines" in str(path)}
    assert {path for path in after if path not in before} == set()
    assert {path for path in before if path not in after} == set()
    assert {path for path in before if before[path] != after[path] and path.name != "status.json"} == set()
    told = {report.vm_id: report.unreadable for report in host.parts.seen.since(0)}
    assert {vm_id for vm_id, why in told.items() if why} == {"vm10", "orphan"}
    assert host.parts.hypervisor.boots == []


async def test_case_e8_a_disk_that_nobody_owns_is_told_and_its_name_can_be_used_again(world: HostWorld) -> None:
    """Case E8 (root disks): listed with the reason, never used, never removed but by a delete of that id."""
    await world.stop()
    orphan = world.home / "machines" / "vm1" / "disk"
    orphan.parent.mkdir()
    orphan.write_text("somebody's")
    host = await world.restart()
    (report,) = host.parts.seen.since(0)
    assert "files of a VM are there" in report.unreadable
    await world.run_pass(make_row("vm1"))
    assert orphan.read_text() == "somebody's"
    view = await world.run_pass(make_row("vm1", **DELETED))
    assert view.observed.nothing
    await world.run_pass(make_row("vm1"))
    assert await inventory(world) == ONE


async def test_case_e13_a_base_image_outlives_the_vms_that_were_made_of_it(world: HostWorld) -> None:
    """Case E13 (images), L-R5: what other VMs depend on is not a VM's own."""
    world.add("vm2")
    await world.run_pass(make_row("vm1"))
    await world.run_pass(make_row("vm2"))
    before = {stored.name for stored in world.host.parts.images.list_files()}
    await world.run_pass(make_row("vm1", **DELETED))
    assert {stored.name for stored in world.host.parts.images.list_files()} == before
    disk = world.home / "machines" / "vm2" / "disk"
    # Opens the whole chain, so that it fails without the image.
    await asyncio.to_thread(subprocess.run, ["qemu-img", "check", "-q", "-U", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_case_f4_ten_vms_of_one_host_go_at_once(world: HostWorld) -> None:
    """Case F4: no delete trips over what another one removes; what they shared stays whole for the next one."""
    names = [f"c{number}" for number in range(10)]
    for name in names:
        world.add(name)
        await world.run_pass(make_row(name))
    world.pass_number += 1
    await asyncio.gather(*(destroy_in_order(world, name) for name in names))
    assert await inventory(world) == NONE
    shared = json.loads(await world.host.parts.network.dump())["kernel"]
    assert shared["bridge"] is not None
    assert (shared["taps"], shared["elements"], shared["reservations"]) == ([], [], {})
    await world.run_pass(make_row("vm1"))
    assert await inventory(world) == ONE


async def destroy_in_order(world: HostWorld, vm_id: str) -> None:
    """Send the four destroying steps of one pass, as its run does."""
    row = make_row(vm_id, **DELETED)
    vm = world.vm
    steps = (
        vm.ensure_process_destroyed,
        vm.ensure_network_destroyed,
        vm.ensure_storage_destroyed,
        vm.ensure_records_destroyed,
    )
    for number, step in enumerate(steps, 1):
        view = await step(world.order(vm_id, row, number))
    assert view.observed.nothing


async def test_case_f4_a_create_beside_deletes_draws_its_user(world: HostWorld) -> None:
    """Case F4 and its kind: a folder that goes while users are counted is no failure of the one who counts."""
    names = [f"c{number}" for number in range(9)]
    for name in names:
        await prepare(world, name)
    world.pass_number += 1
    row = make_row("vm1")
    orders = [world.order("vm1", row, number) for number in range(1, 21)]

    async def prepare_again_and_again() -> None:
        for order in orders:
            await world.vm.ensure_prepared(order)

    await asyncio.gather(prepare_again_and_again(), *(destroy_in_order(world, name) for name in names))
    assert world.host.parts.records.config("vm1").allocation.uid in world.names.users


async def test_case_f5_a_vm_whose_image_is_gone_from_its_host_can_be_deleted(world: HostWorld) -> None:
    """Case F5: a delete needs neither the image, nor the input from the API."""
    await world.run_pass(make_row("vm1"))
    for stored in world.host.parts.images.list_files():
        (world.host.parts.paths.images / stored.name).unlink()
    del world.inputs["vm1"]
    view = await world.run_pass(make_row("vm1", **DELETED))
    assert view.observed.nothing
    assert await inventory(world) == NONE


async def test_case_f6_looks_between_the_steps_of_a_delete_find_no_fault(world: HostWorld, caplog) -> None:
    """Case F6: the host's own looks and upkeep run at each step of a delete, ask for no pass and bring nothing back."""
    await world.run_pass(make_row("vm1"))
    vm, row, watch = world.vm, make_row("vm1", **DELETED), world.host.watch
    world.pass_number += 1
    steps = (
        vm.ensure_quarantined,
        vm.ensure_process_destroyed,
        vm.ensure_network_destroyed,
        vm.ensure_storage_destroyed,
        vm.ensure_records_destroyed,
    )
    caplog.clear()
    for number, step in enumerate(steps, 1):
        await step(world.order("vm1", row, number))
        await watch.look("vm1")
        await watch.count_unmanaged()
        await world.host.parts.network.keep()
        assert [report.look for report in world.host.parts.seen.since(0)] in ([False], [])
    assert watch.unmanaged == 0
    assert caplog.records == []
    assert await inventory(world) == NONE


async def test_a_step_of_a_destroy_that_comes_too_early_is_refused(world: HostWorld) -> None:
    """L-R5: while its process lives nothing of a VM goes, whoever asks for it and in whatever order."""
    await world.run_pass(make_row("vm1"))
    world.pass_number += 1
    row, vm = make_row("vm1", **DELETED), world.vm
    steps = (vm.ensure_network_destroyed, vm.ensure_storage_destroyed, vm.ensure_records_destroyed)
    for number, step in enumerate(steps, 1):
        with pytest.raises(StepFailed, match="process of the VM still lives"):
            await step(world.order("vm1", row, number))
    assert await inventory(world) == ONE
