"""Each process of the installation killed in the middle of a create: it goes on by itself, and no guest notices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from model.step import WORDS, StepKind
from tests.e2e.installation import Installation, Row
from tests.e2e.slow_image import SlowImage, slow_image
from tests.e2e.steps_in_hand import await_another_try

SERVICES = ("host", "gateway", "control", "temporal", "api", "postgres")


@pytest.fixture
def image(fleet: Installation) -> Iterator[SlowImage]:
    with slow_image(fleet) as made:
        yield made


@pytest.fixture
def other_guest(fleet: Installation) -> tuple[str, tuple[int, int]]:
    """A guest that runs beside: its id, pid and start time."""
    vm_id: str = fleet.ready("demo")["id"]
    return vm_id, fleet.guests()[vm_id]


@pytest.mark.parametrize("service", SERVICES)
def test_a_create_survives_a_kill(
    fleet: Installation, image: SlowImage, other_guest: tuple[str, tuple[int, int]], service: str
):
    """Issue item 3; L-G1, L-G4, H-E5: killed at a step that was seen, the create finishes by itself."""
    vm_id = image.create(f"kill-{service}")["id"]

    old = fleet.kill(service)
    image.go_on()

    row = fleet.ready(vm_id, 120)
    assert fleet.process(service)["pid"] != old
    _check(fleet, row, other_guest)


def test_a_create_survives_the_kill_of_everything(
    fleet: Installation, image: SlowImage, other_guest: tuple[str, tuple[int, int]]
):
    """Issue item 3: the supervisor first, so that nothing comes back by itself; then `hostler up`."""
    vm_id = image.create("kill-all")["id"]

    killed = {name: fleet.kill(name) for name in ("supervisor", *SERVICES)}
    image.go_on()
    fleet.up()

    row = fleet.ready(vm_id, 120)
    assert all(fleet.process(name)["pid"] != pid for name, pid in killed.items())
    _check(fleet, row, other_guest)


def test_services_go_on_without_a_supervisor(
    fleet: Installation, image: SlowImage, other_guest: tuple[str, tuple[int, int]]
):
    """Issue item 3: a killed supervisor takes nothing with it, and `hostler up` adopts what runs."""
    vm_id = image.create("kill-supervisor")["id"]
    before = {name: fleet.process(name) for name in SERVICES}

    fleet.kill("supervisor")
    fleet.up()
    image.go_on()

    row = fleet.ready(vm_id, 120)
    assert {name: fleet.process(name) for name in SERVICES} == before
    _check(fleet, row, other_guest)


@pytest.mark.parametrize("service", [name for name in SERVICES if name != "host"])
def test_a_stop_survives_a_kill(fleet: Installation, other_guest: tuple[str, tuple[int, int]], service: str):
    """L-V3, L-G1: killed while a guest that hears nothing is asked to stop; it is stopped once its time is over."""
    row = fleet.ready(fleet.create(f"stop-{service}", stop_timeout_seconds=8)["id"])
    vm_id = row["id"]
    os.kill(fleet.guests()[vm_id][0], signal.SIGSTOP)
    assert fleet.call("PATCH", f"/v1/vms/{vm_id}", {"power_state": "stopped"})[0] in (200, 202)
    fleet.until(vm_id, lambda row: (row["status_detail"] or "").startswith(WORDS[StepKind.STOP]), 60, pause=0.02)

    old = fleet.process(service)
    fleet.kill(service)
    fleet.await_new_process(service, old, 60)

    row = fleet.until(vm_id, lambda row: row["settled"] and row["power_state"] == "stopped", 120)
    assert (row["phase"], row["last_exit"]["by"]) == ("ready", "user")
    assert fleet.guests() == dict([other_guest])


def test_a_stalled_worker_finds_its_tries_overtaken(
    fleet: Installation, image: SlowImage, other_guest: tuple[str, tuple[int, int]]
):
    """L-G2, L-G5: stopped over all its limits in the middle of a create, it goes on after the VM was deleted."""
    before, worker = fleet.inventory(), fleet.process("host")
    vm_id = image.create("stalled")["id"]
    os.kill(worker["pid"], signal.SIGSTOP)
    try:
        asyncio.run(await_another_try(fleet, vm_id, 60))
        assert fleet.call("DELETE", f"/v1/vms/{vm_id}?now=true")[0] == 202
    finally:
        os.kill(worker["pid"], signal.SIGCONT)
    image.go_on()
    fleet.until_gone(vm_id, 120)
    assert fleet.process("host") == worker
    assert fleet.guests() == dict([other_guest])
    assert fleet.inventory() == before


def _check(fleet: Installation, row: Row, other_guest: tuple[str, tuple[int, int]]) -> None:
    """One process and one tap for each VM, no attempt that went wrong, SSH, and the other guest as it was."""
    vm_id, process = other_guest
    guests = fleet.guests()
    assert guests[vm_id] == process
    assert set(guests) == {vm_id, row["id"]}
    assert len(fleet.taps()) == len(guests)
    assert (row["restart_count"], row["last_error"]) == (0, None)
    assert fleet.ssh(row["name"], "hostname").strip() == row["name"]


def test_case_b3_a_killed_host_worker_leaves_guests_alone(
    fleet: Installation, other_guest: tuple[str, tuple[int, int]]
):
    """H-E5, case B3: killed or asked to end, the next worker adopts the guest: no exit, no boot is counted."""
    vm_id, process = other_guest
    before = fleet.row(vm_id)
    for number in (signal.SIGKILL, signal.SIGTERM):
        old = fleet.process("host")
        os.kill(old["pid"], number)
        fleet.await_new_process("host", old)
    fleet.until(vm_id, lambda row: row["last_seen_at"] > before["last_seen_at"], 30)
    after = fleet.ready(vm_id)
    assert fleet.guests()[vm_id] == process
    assert (after["restart_count"], after["last_exit"]) == (before["restart_count"], before["last_exit"])
