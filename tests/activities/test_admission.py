"""What a host admits: its ledger, its refusals, and what it keeps and releases (H-A1, H-A2, L-V8, L-R2).

A whole simulated host: records, fences, locks and steps are the real ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivers.host import prepare
from model.capacity import Caps, Entitlement
from model.errors import NoRoom, Permanent, StepFailed
from model.report import ReportAnswer
from model.step import StepKind
from model.vm import PowerState
from model.volume import WantedVolume
from runtime.settings import HostSettings
from tests.fixtures.host import METHODS, HostWorld, make_reports, make_row, place_image

LIVES = {"created": True}
KEPT = {"created": True, "deleted": True}
GONE = {"created": True, "deleted": True, "destroying": True}
OTHER = "e" * 64
SMALL = Entitlement(cpu_millicores=1000, memory_mib=256, disk_gib=1)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HostWorld]:
    world = HostWorld(tmp_path)
    world.caps = Caps(max_vcpus=4, max_memory_mib=768, max_disk_gib=10)
    await world.restart()
    yield world
    await world.close()


def held(world: HostWorld) -> dict[str, Entitlement]:
    return world.host.parts.ledger.holdings()


async def make(world: HostWorld, *vm_ids: str, **changed: Any) -> None:
    for vm_id in vm_ids:
        world.add(vm_id, **changed)
        await world.run_pass(make_row(vm_id))


async def quarantine(world: HostWorld, vm_id: str) -> None:
    """Play the first step of a reap."""
    world.pass_number += 1
    row = make_row(vm_id, **KEPT)
    await world.vm.find_vm(world.order(vm_id, row, 1))
    await getattr(world.vm, METHODS[StepKind.QUARANTINE])(world.order(vm_id, row, 2))


async def test_a_refused_create_leaves_nothing(world: HostWorld) -> None:
    """H-A2, L-C3: the whole sentence; no record, no commitment; exactly full fits."""
    await make(world, "vm1", memory_mib=512)
    world.add("vm2", memory_mib=257, disk_gib=10)
    world.host.parts.ledger.host = "h1"
    with pytest.raises(NoRoom) as refused:
        await world.run_pass(make_row("vm2"))
    assert refused.value.detail == (
        "host h1 refuses: memory: needs 257 MiB, holds 512 of 768 MiB; disk: needs 10 GiB, holds 1 of 10 GiB"
    )
    assert world.host.parts.records.find("vm2") is None
    assert list(held(world)) == ["vm1"]
    world.add("vm2", memory_mib=256, disk_gib=9)
    assert (await world.run_pass(make_row("vm2"))).observed.power_state is PowerState.RUNNING


async def test_concurrent_creates_never_go_over_a_cap(world: HostWorld) -> None:
    """H-A1: one decision at a time, whatever each create waits for after its own."""
    for number in range(8):
        world.add(f"vm{number}")
    rows = [make_row(f"vm{number}") for number in range(8)]
    for row in rows:
        world.pass_number += 1
        await world.vm.find_vm(world.order(row.vm_id, row, 1))
    orders = [world.order(row.vm_id, row, 2) for row in rows]
    answers = await asyncio.gather(*(world.vm.ensure_prepared(order) for order in orders), return_exceptions=True)
    assert sum(isinstance(answer, NoRoom) for answer in answers) == 5
    assert world.host.parts.ledger.held() == SMALL + SMALL + SMALL


async def test_a_failed_create_keeps_its_commitment_until_it_is_reaped(
    world: HostWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H-A1, case G2: and its next attempt is not judged again, also where the cap was lowered since."""

    async def fails(*_: object, **__: object) -> None:
        raise StepFailed("the disk is slow")

    with monkeypatch.context() as broken:
        broken.setattr(world.host.parts.simulated_disks, "make_overlay", fails)
        with pytest.raises(StepFailed):
            await make(world, "vm1")
    assert held(world) == {"vm1": SMALL}
    world.caps = Caps(max_memory_mib=128)
    await world.stop()
    await world.restart()
    assert (await world.run_pass(make_row("vm1"))).observed.power_state is PowerState.RUNNING
    view = await world.run_pass(make_row("vm1", **GONE))
    assert view.observed.nothing
    assert held(world) == {}


async def test_quarantine_releases_compute_when_the_guest_is_proven_stopped(world: HostWorld) -> None:
    """L-R2, H-A1: the disk stays until the VM is gone; an undelete is noted, and never refused (L-R4)."""
    await make(world, "vm1", "vm2", "vm3")
    proven: list[Entitlement] = []
    ask = world.host.parts.hypervisor.ask_to_stop

    async def watched(*arguments: Any) -> None:
        proven.append(held(world)["vm1"])
        await ask(*arguments)

    world.host.parts.hypervisor.ask_to_stop = watched
    await quarantine(world, "vm1")
    assert set(proven) == {SMALL}, "a guest that still lives holds all of it"
    assert held(world)["vm1"] == Entitlement(disk_gib=1)
    await make(world, "vm4")
    assert (await world.run_pass(make_row("vm1", **LIVES))).observed.power_state is PowerState.RUNNING
    assert world.host.parts.ledger.held().memory_mib == 1024, "over its cap by 256 MiB, and all run"
    await world.run_pass(make_row("vm2", **GONE))
    assert "vm2" not in held(world)


async def test_the_ledger_is_the_same_after_a_restart(world: HostWorld) -> None:
    """H-A1, case G4: running, stopped, quarantined, refused and failed ones."""
    world.caps = Caps(max_memory_mib=1024)
    await world.stop()
    await world.restart()
    await make(world, "running", "stopped", "quarantined")
    world.add("failed")
    world.pass_number += 1
    await world.vm.ensure_prepared(world.order("failed", make_row("failed"), 1))
    await world.run_pass(make_row("stopped", power_state=PowerState.STOPPED, **LIVES))
    await quarantine(world, "quarantined")
    world.add("refused", memory_mib=1024)
    with pytest.raises(NoRoom):
        await world.run_pass(make_row("refused"))
    before = held(world)
    assert before == {
        "running": SMALL,
        "stopped": SMALL,
        "failed": SMALL,
        "quarantined": Entitlement(disk_gib=1),
    }
    await world.stop()
    await world.restart()
    assert held(world) == before


async def test_a_disk_as_large_as_its_image_is_judged_when_it_is_made(world: HostWorld) -> None:
    """H-A1: nobody knows its size before."""
    world.caps = Caps(max_disk_gib=1)
    await world.stop()
    await world.restart()
    await make(world, "vm1", disk_gib=None)
    assert held(world)["vm1"].disk_gib == 1
    world.add("vm2", disk_gib=None)
    with pytest.raises(NoRoom, match="disk: needs 1 GiB, holds 1 of 1 GiB"):
        await world.run_pass(make_row("vm2", disk_gib=None))


async def test_an_increase_is_judged_and_refused_the_guest_keeps_what_it_has(world: HostWorld) -> None:
    """L-V8: memory by the seed's new input, a disk by its growth; its own earlier part does not count against it."""
    await make(world, "vm1", "vm2")
    world.add("vm1", digest=OTHER, memory_mib=513)
    view = await world.run_pass(make_row("vm1", generation=2, input_digest=OTHER, **LIVES))
    assert view.record.refused.reason == "host h1 refuses: memory: needs 513 MiB, holds 256 of 768 MiB"
    assert (view.observed.power_state, view.record.applied_generation) == (PowerState.RUNNING, 1)
    assert held(world)["vm1"] == SMALL
    world.add("vm1", digest="f" * 64, disk_gib=10)
    row = make_row("vm1", generation=3, input_digest="f" * 64, disk_gib=10, **LIVES)
    view = await world.run_pass(row)
    assert view.record.refused.reason == "host h1 refuses: disk: needs 10 GiB, holds 1 of 10 GiB"
    assert (view.observed.power_state, view.record.disk_bytes) == (PowerState.RUNNING, 1 << 30)
    world.add("vm1", digest="1" * 64, memory_mib=512, disk_gib=9)
    row = make_row("vm1", generation=4, input_digest="1" * 64, disk_gib=9, **LIVES)
    view = await world.run_pass(row)
    assert (view.record.refused, view.record.applied_generation) == (None, 4)
    assert held(world)["vm1"] == Entitlement(cpu_millicores=1000, memory_mib=512, disk_gib=9)


async def test_without_caps_a_host_admits_what_it_is_asked(world: HostWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-A3."""
    monkeypatch.setattr(prepare, "total_memory_mib", lambda: None)
    world.caps = Caps()
    await world.stop()
    await world.restart()
    await make(world, "vm1", "vm2", memory_mib=1 << 30, disk_gib=60 << 10, cpu_millicores=32000)
    assert world.host.parts.ledger.held().cpu_millicores == 64000


async def test_a_report_tells_caps_apart_from_the_machines_size(world: HostWorld) -> None:
    """H-S7, H-S8: and what the ledger has committed; a host that declared no cap says so."""
    await make(world, "vm1")
    reports = make_reports(world.host)
    told = await reports.frame(1, True, ())
    assert (told.caps, told.held) == (world.caps, SMALL)
    assert told.capacity.cpu_millicores_committed == 1000
    assert told.capacity.memory_mib_total not in (None, 0, 768)
    taken = Caps(max_memory_mib=4096, max_disk_gib=10)
    assert HostSettings(max_vcpus=2, max_memory_mib=0).caps_over(taken) == Caps(max_vcpus=2, max_disk_gib=10)
    await reports.take(ReportAnswer(acknowledged=1, want_whole=False, epoch=1, host_name="rack-7"))
    world.add("vm2", memory_mib=768)
    with pytest.raises(NoRoom, match=r"^host rack-7 refuses: memory"):
        await world.run_pass(make_row("vm2"))


async def test_without_overcommit_disks_are_promised_no_more_than_the_filesystem_holds(world: HostWorld) -> None:
    """H-A4: free space and what disks have taken hold all promises, volumes included; nothing else is refused."""
    world.caps, world.disk_overcommit = Caps(), False
    await world.stop()
    await world.restart()
    room = world.host.parts.ledger.find_disk_room()
    assert room is not None
    await make(world, "vm1", disk_gib=room - 8)
    world.add("vm2", disk_gib=12)
    with pytest.raises(NoRoom, match=rf"^host h1 refuses: disk: needs 12 GiB, holds {room - 8} of [0-9]+ GiB$"):
        await world.run_pass(make_row("vm2", disk_gib=12))
    assert world.host.parts.records.find("vm2") is None
    world.add("vm2", disk_gib=1)
    with pytest.raises(NoRoom, match="disk: needs 13 GiB"):
        await world.run_pass(make_row("vm2", volumes=(WantedVolume(volume_id="data", size_gib=12, made=False),)))
    await make(world, "vm2")
    world.add("vm2", digest=OTHER, disk_gib=13)
    view = await world.run_pass(make_row("vm2", generation=2, input_digest=OTHER, disk_gib=13, **LIVES))
    assert view.record.refused.reason.startswith("host h1 refuses: disk: needs 13 GiB")
    told = await make_reports(world.host).frame(1, True, ())
    assert told.disk_room_gib is not None
    assert (told.caps, abs(told.disk_room_gib - room) <= 4) == (Caps(), True), "no cap that placement may refuse by"


async def test_what_a_disk_has_taken_is_still_its_own(world: HostWorld) -> None:
    """H-A4: a guest that fills its disk takes what it was promised, and nothing from anybody else's promise."""
    world.disk_overcommit = False
    await world.stop()
    await world.restart()
    await make(world, "vm1", disk_gib=2)
    parts = world.host.parts
    free, room = parts.space.available_bytes(), parts.ledger.find_disk_room()
    with parts.paths.disk("vm1", "disk").open("r+b") as disk:
        os.posix_fallocate(disk.fileno(), 0, 2 << 30)
    assert free - parts.space.available_bytes() > 1 << 30, "the disk has taken blocks"
    found = parts.ledger.find_disk_room()
    assert room is not None
    assert found is not None
    assert abs(found - room) <= 1


async def test_what_cannot_work_here_is_refused_before_anything_is_made(world: HostWorld) -> None:
    """H-A4: an image for another architecture, a hypervisor that it does not have; for good, and nothing is held."""
    image = place_image(world.host.parts.paths.images).model_copy(update={"architecture": "aarch64"})
    world.add("vm1", image=image)
    with pytest.raises(Permanent, match=r"^the image is for 'aarch64', this host runs x86_64$"):
        await world.run_pass(make_row("vm1"))
    world.add("vm1", hypervisor="qemu")
    with pytest.raises(Permanent, match=r"^this host does not run 'qemu' guests: it runs simulated$"):
        await world.run_pass(make_row("vm1"))
    assert world.host.parts.records.find("vm1") is None
    assert held(world) == {}


@pytest.mark.parametrize(
    ("lost", "use", "counted", "said"),
    [
        ("status.json", Entitlement(), SMALL, "VM vm1 has only one of its two records, config.json"),
        (
            "status.json",
            Entitlement(cpu_millicores=500, memory_mib=400),
            Entitlement(cpu_millicores=1000, memory_mib=400, disk_gib=1),
            "VM vm1 has only one of its two records, config.json",
        ),
        (
            "config.json",
            Entitlement(cpu_millicores=1000, memory_mib=200),
            Entitlement(cpu_millicores=1000, memory_mib=200, disk_gib=1),
            "config.json is missing beside status.json",
        ),
    ],
)
async def test_a_vm_with_one_of_its_two_records_counts(
    world: HostWorld, caplog: pytest.LogCaptureFixture, lost: str, use: Entitlement, counted: Entitlement, said: str
) -> None:
    """H-S9, H-A1: with the larger of what it was admitted for and what it has taken; and its host warns of it."""
    await make(world, "vm1")
    await world.stop()
    (world.host.parts.paths.folder("vm1") / lost).unlink()
    world.use["vm1"] = use
    await world.restart()
    assert held(world) == {"vm1": counted}
    assert said in caplog.text
