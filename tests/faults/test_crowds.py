"""Many at once on one host: more than it has room for, and all that it has after it booted anew."""

from __future__ import annotations

import asyncio
from collections import Counter
from ipaddress import IPv4Network
from typing import Any

import pytest

from drivers.simulated import DEFAULT
from model.ids import new_id
from tests.faults.conftest import Given
from tests.faults.fleet import Fleet, running_fleet, settled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOM = 125
"""A /25 less its own address, the gateway's and the one for all."""
BOOT_SECONDS = 2.0
BOOTS_AT_ONCE = 4
BOUND_SECONDS = 1200
"""What a crowd's last VM may take on a busy machine."""


async def create(fleet: Fleet, number: int) -> str:
    vm_id = new_id()
    body = {"name": f"c{number}", "image": "demo", "hypervisor": "simulated", "disk_gib": 1}
    await fleet.call("PUT", f"/v1/vms/{vm_id}", json=body)
    return vm_id


async def test_case_m2_three_hundred_creates_where_a_hundred_have_room(given: Given) -> None:
    """Case M2: as many run as there is room for, the others say why they do not, and none leaves anything behind."""
    async with running_fleet(*given, subnet=IPv4Network("10.84.0.0/25"), max_concurrent_creates=4) as fleet:
        vm_ids = await asyncio.gather(*(create(fleet, number) for number in range(300)))

        def over(row: dict[str, Any] | None) -> bool:
            return (
                row is not None and row["claim_until"] is None and (row["phase"] == "ready" or bool(row["last_error"]))
            )

        rows = await asyncio.gather(*(fleet.until(vm_id, over, bound_seconds=BOUND_SECONDS) for vm_id in vm_ids))
        ready = [row for row in rows if row["phase"] == "ready"]
        others = [row for row in rows if row["phase"] != "ready"]
        assert len(ready) == ROOM
        assert {row["last_error"] for row in others} == {"no free address in 10.84.0.0/25"}
        assert len({row["address"] for row in ready}) == ROOM
        inventory = fleet.simulation.inventory(fleet.home / "host" / "machines")
        assert set(inventory.processes) == set(inventory.taps) == {row["id"] for row in ready}
        await asyncio.gather(*(fleet.call("DELETE", f"/v1/vms/{vm_id}?now=true") for vm_id in vm_ids))
        await asyncio.gather(
            *(fleet.until(vm_id, lambda row: row is None, bound_seconds=BOUND_SECONDS) for vm_id in vm_ids)
        )
        inventory = fleet.simulation.inventory(fleet.home / "host" / "machines")
        assert not inventory.processes
        assert not inventory.taps
        assert not inventory.disks
        assert list((fleet.home / "host" / "machines").iterdir()) == []


async def test_case_m4_a_hundred_guests_boot_a_few_at_a_time(given: Given) -> None:
    """Case M4: after a reboot no more than the limit boot at once, each once; the others wait and say so."""
    async with running_fleet(*given, max_concurrent_boots=BOOTS_AT_ONCE) as fleet:
        vm_ids = await asyncio.gather(*(create(fleet, number) for number in range(100)))
        await asyncio.gather(*(fleet.until(vm_id, is_up, bound_seconds=BOUND_SECONDS) for vm_id in vm_ids))
        before = len(fleet.simulation.journal())
        fleet.simulation.control(DEFAULT, boot_seconds=BOOT_SECONDS)
        await fleet.reboot()

        def is_back(row: dict[str, Any] | None) -> bool:
            return is_up(row) and row is not None and (row["last_exit"] or {}).get("by") == "host"

        waiting: set[str] = set()
        watching = asyncio.create_task(watch_details(fleet, vm_ids, waiting))
        rows = await asyncio.gather(*(fleet.until(vm_id, is_back, bound_seconds=BOUND_SECONDS) for vm_id in vm_ids))
        watching.cancel()
        boots = [effect for effect in fleet.simulation.journal()[before:] if effect.effect == "boot"]
        assert Counter(effect.vm_id for effect in boots) == dict.fromkeys(vm_ids, 1)
        begun = sorted(effect.at for effect in boots)
        together = max(sum(at <= other < at + BOOT_SECONDS for other in begun) for at in begun)
        assert 1 < together <= BOOTS_AT_ONCE
        assert any("waiting for a boot slot" in words for words in waiting)
        assert {(row["failures"], row["last_error"]) for row in rows} == {(0, None)}


def is_gone(row: dict[str, Any] | None) -> bool:
    return row is None


def is_up(row: dict[str, Any] | None) -> bool:
    return row is not None and settled(row) and row["phase"] == "ready" and row["observed_power_state"] == "running"


async def watch_details(fleet: Fleet, vm_ids: list[str], found: set[str]) -> None:
    """Read again and again what a user is told that a VM waits for."""
    while True:
        for vm_id in vm_ids[::10]:
            found.add((await fleet.call("GET", f"/v1/vms/{vm_id}"))["status_detail"] or "")
        await asyncio.sleep(0.2)
