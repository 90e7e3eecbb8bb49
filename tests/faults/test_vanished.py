"""VMs whose rows are lost, in a whole fleet: what becomes of their guests, by themselves and by an operator's word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from model.ids import new_id
from tests.faults.conftest import Given
from tests.faults.fleet import Fleet, running_fleet
from tests.faults.test_crowds import is_gone, is_up
from tests.fixtures.rows import add_host

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def make(fleet: Fleet, count: int) -> list[str]:
    """Make VMs and wait until they run."""
    vm_ids = [new_id() for _ in range(count)]
    for number, vm_id in enumerate(vm_ids):
        body = {"name": f"v{number}", "image": "demo", "hypervisor": "simulated", "disk_gib": 1}
        await fleet.call("PUT", f"/v1/vms/{vm_id}", json=body)
    await asyncio.gather(*(fleet.until(vm_id, is_up) for vm_id in vm_ids))
    return vm_ids


async def lose(fleet: Fleet, *vm_ids: str) -> None:
    """Lose rows as no release does, and have the host tell all that it holds."""
    await fleet.pool.execute("delete from operations where vm_id = any($1)", list(vm_ids))
    await fleet.pool.execute("delete from vms where id = any($1)", list(vm_ids))
    await fleet.stop_host()
    await fleet.start_host()


async def let_a_minute_pass(fleet: Fleet) -> None:
    """As if the host's last whole report, and what it named first there, were a minute older."""
    await fleet.pool.execute(
        """update hosts set last_whole_at = last_whole_at - interval '1 minute', foreign_vms = (
            select jsonb_agg(v || jsonb_build_object('named_since',
                (v ->> 'named_since')::timestamptz - '1 minute'::interval))
            from jsonb_array_elements(foreign_vms) v) where foreign_vms <> '[]'"""
    )


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - a level in a database
            await asyncio.sleep(0.1)


async def foreign(fleet: Fleet) -> dict[str, Any]:
    items = (await fleet.call("GET", "/v1/hosts/host-1/foreign"))["items"]
    return {item["vm_id"]: item for item in items}


def is_kept(row: dict[str, Any] | None) -> bool:
    return row is not None and row["quarantine_kind"] == "vanished" and row["quarantine_stopped_at"] is not None


async def test_a_vm_that_lost_its_row_is_stopped_kept_and_destroyed_after_its_grace(given: Given) -> None:
    """L-R1 to L-R6: by a row of its own kind, fenced and timed as any; another that is adopted goes on untouched."""
    async with running_fleet(*given) as fleet:
        lost, adopted, other = await make(fleet, 3)
        digest = await fleet.pool.fetchval("select input_digest from vms where id = $1", adopted)
        await lose(fleet, lost, adopted)
        await until(lambda: _named(fleet, lost, adopted))
        effects = len(fleet.simulation.journal())
        await fleet.call("POST", f"/v1/hosts/host-1/foreign/{adopted}/adopt", json={"project": "default"})
        row = await fleet.until(adopted, is_up)
        assert row is not None
        assert row["input_digest"] == digest
        assert len(fleet.simulation.journal()) == effects, "nothing was done to the guest"
        await let_a_minute_pass(fleet)
        row = await fleet.until(lost, is_kept)
        assert row is not None
        assert row["destroy_at"] - row["quarantine_since"] == timedelta(days=7)
        shown = await fleet.call("GET", f"/v1/vms/{lost}")
        assert shown["why"]["sentence"].startswith("It had lost its row, so it is stopped and kept")
        assert f"`hostler host adopt host-1 {lost} --project default`" in shown["why"]["sentence"]
        assert set(_inventory(fleet).processes) == {adopted, other}
        assert lost in _inventory(fleet).disks
        await fleet.call("PATCH", f"/v1/vms/{adopted}", json={"power_state": "stopped"})
        await fleet.pool.execute(
            "update vms set destroy_at = now(), wake = wake + 1, due_at = now() where id = $1", lost
        )
        await fleet.until(lost, is_gone)
        assert lost not in _inventory(fleet).disks
        await fleet.until(adopted, lambda row: row is not None and row["observed_power_state"] == "stopped")


async def test_a_vm_that_vanished_is_brought_back_with_its_disk(given: Given) -> None:
    """L-R4: adopted after it was stopped, it runs again as it was wanted before, from the same disk."""
    async with running_fleet(*given) as fleet:
        (lost,) = await make(fleet, 1)
        await lose(fleet, lost)
        await until(lambda: _named(fleet, lost))
        await let_a_minute_pass(fleet)
        await fleet.until(lost, is_kept)
        made = [effect for effect in fleet.simulation.journal() if effect.effect == "disk"]
        await fleet.call("POST", f"/v1/hosts/host-1/foreign/{lost}/adopt", json={"project": "default"})
        await fleet.until(lost, is_up)
        assert [effect for effect in fleet.simulation.journal() if effect.effect == "disk"] == made
        assert set(_inventory(fleet).processes) == {lost}


async def test_four_at_once_run_on_until_an_operator_chooses(given: Given) -> None:
    """H-R2: none is stopped, the host says so; then each is what was chosen for it."""
    async with running_fleet(*given) as fleet:
        vm_ids = await make(fleet, 4)
        await lose(fleet, *vm_ids)
        await until(lambda: _named(fleet, *vm_ids))
        assert {vm["choice"] for vm in (await foreign(fleet)).values()} == {"braked"}
        (condition,) = (await fleet.call("GET", "/v1/hosts/host-1"))["conditions"]
        assert condition["condition"] == "rows_missing"
        await fleet.stop_host()
        await fleet.pool.execute("update hosts set last_whole_at = last_whole_at - interval '2 minutes'")
        await fleet.start_host()
        assert set(_inventory(fleet).processes) == set(vm_ids)
        adopted, stopped, *left = vm_ids
        await fleet.call("POST", f"/v1/hosts/host-1/foreign/{adopted}/adopt", json={"project": "default"})
        await fleet.call("POST", f"/v1/hosts/host-1/foreign/{stopped}/quarantine", json={})
        for vm_id in left:
            await fleet.call("POST", f"/v1/hosts/host-1/foreign/{vm_id}/leave")
        await asyncio.gather(fleet.until(adopted, is_up), fleet.until(stopped, is_kept))
        assert set(_inventory(fleet).processes) == {adopted, *left}
        assert {vm["choice"] for vm in (await foreign(fleet)).values()} == {"left"}


async def test_a_vm_whose_row_names_another_host_is_stopped_and_kept(given: Given) -> None:
    """L-R1: misplaced: its guest ends, its disk stays, and its row is left as it is."""
    async with running_fleet(*given) as fleet:
        (vm_id,) = await make(fleet, 1)
        await add_host(fleet.pool, id="elsewhere")
        await fleet.pool.execute("update vms set host_id = 'elsewhere', due_at = null where id = $1", vm_id)
        await fleet.stop_host()
        await fleet.start_host()
        await until(lambda: _named(fleet, vm_id))
        assert set(_inventory(fleet).processes) == {vm_id}
        await let_a_minute_pass(fleet)

        async def is_quarantined() -> bool:
            return (await foreign(fleet))[vm_id]["quarantined_at"] is not None

        await until(is_quarantined)
        inventory = _inventory(fleet)
        assert (set(inventory.processes), set(inventory.disks)) == (set(), {vm_id})


async def _named(fleet: Fleet, *vm_ids: str) -> bool:
    return {vm_id for vm_id, vm in (await foreign(fleet)).items() if vm["named_since"]} == set(vm_ids)


def _inventory(fleet: Fleet) -> Any:
    return fleet.simulation.inventory(fleet.home / "host" / "machines")
