"""A guest that ends by itself or is paused by its hypervisor, in whole passes on real Postgres and Temporal."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from model.decide.setback import STEADY
from model.record import HostOrder
from tests.workflows.conftest import Fleet
from tests.workflows.test_passes import created


async def look(fleet: Fleet, vm_id: str, sql: str = "labels = '{}'") -> None:
    """Wake the VM, as its host's report does."""
    await fleet.change(vm_id, sql)


async def die(fleet: Fleet, vm_id: str, times: int, **row: Any) -> dict[str, Any]:
    """Let the guest die once more, so that it has so often; return the row once that is counted."""
    fleet.host.die(vm_id, **row)
    await look(fleet, vm_id)
    return await fleet.until(vm_id, lambda row: row["setbacks"] == times)


async def back(fleet: Fleet, vm_id: str) -> dict[str, Any]:
    """Let the pause be over; return the row once the guest is back and no pass works on it."""
    await look(fleet, vm_id, "up_again_at = now()")
    process = fleet.host.machine(vm_id)
    return await fleet.until(vm_id, lambda row: process.process is not None and row["claim_until"] is None)


async def test_a_guest_that_dies_again_and_again(fleet: Fleet):
    """L-V4: at once, then after 10 s, 20 s, 40 s, shown as such; from the fifth on failed, and booted all the same.

    Ten minutes of running begin anew.
    """
    vm_id = await created(fleet)
    await die(fleet, vm_id, 1)
    row = await fleet.until_settled(vm_id)
    assert (row["phase"], row["up_again_at"], fleet.host.starts) == ("ready", None, 1)
    for times, seconds in ((2, 10), (3, 20), (4, 40), (5, 80)):
        row = await die(fleet, vm_id, times, reason="out of luck")
        row = await fleet.until(vm_id, lambda row: row["waiting_for"] == "guest_ended")
        pause = (row["up_again_at"] - row["waiting_since"]).total_seconds()
        assert 0.75 * seconds - 2 < pause < 1.25 * seconds
        assert row["phase"] == ("failed" if times == 5 else "ready")
        row = await back(fleet, vm_id)
        assert fleet.host.starts == times
    assert row["phase"] == "failed"
    assert row["last_error"] == "the guest ended or stood still by itself 5 times in a row; its last end: out of luck"
    assert (row["waiting_for"], row["observed_generation"]) == ("guest_unsteady", row["generation"])
    told = fleet.host.machine(vm_id).told
    assert abs(row["due_at"] - told["started_at"] - STEADY) < timedelta(seconds=10)
    told["started_at"] -= STEADY
    fleet.host.machine(vm_id).revision += 1
    await look(fleet, vm_id)
    row = await fleet.until_settled(vm_id)
    assert (row["phase"], row["setbacks"], row["last_error"]) == ("ready", 0, None)


async def test_a_guest_that_ran_for_long_begins_anew(fleet: Fleet):
    """L-V4: below the fifth, too, where nobody looked meanwhile."""
    vm_id = await created(fleet)
    await die(fleet, vm_id, 1)
    await fleet.until_settled(vm_id)
    await die(fleet, vm_id, 2)
    await back(fleet, vm_id)
    fleet.host.machine(vm_id).told["started_at"] -= STEADY
    row = await die(fleet, vm_id, 1)
    assert row["up_again_at"] is None


async def test_a_death_is_counted_once_though_its_pass_is_terminated_at_its_boot(fleet: Fleet):
    """L-V4: it is known by its process, whatever number the pass has."""
    vm_id = await created(fleet)
    reached = asyncio.Event()

    async def hold(name: str, order: HostOrder) -> None:
        if name == "ensure_booted" and not reached.is_set():
            await fleet.terminate(vm_id)
            reached.set()

    fleet.host.before = hold
    await die(fleet, vm_id, 1)
    await asyncio.wait_for(reached.wait(), 20)
    await look(fleet, vm_id)
    row = await fleet.until_settled(vm_id)
    assert (row["setbacks"], fleet.host.machine(vm_id).process is not None) == (1, True)


async def test_a_death_while_the_guest_is_booted_is_no_less_counted(fleet: Fleet):
    """L-V4: a boot whose answer is lost is repeated only by a pass that has counted what befell its guest."""
    vm_id = await created(fleet)

    async def lose(name: str, order: HostOrder) -> None:
        if name == "ensure_booted" and fleet.host.calls.count(name) == 1:
            fleet.host.die(vm_id)
            raise RuntimeError("the answer is lost")

    fleet.host.after = lose
    await die(fleet, vm_id, 2)
    row = await back(fleet, vm_id)
    assert (row["setbacks"], fleet.host.starts) == (2, 2)


async def test_a_guest_that_turns_itself_off_while_a_pass_works_is_not_booted(fleet: Fleet):
    """L-V4 with `stop`: the pass waits for the API to take the report; then it stops the VM."""
    vm_id = await created(fleet, on_guest_poweroff="stop")

    async def turn_off(name: str, order: HostOrder) -> None:
        if name == "ensure_seed" and fleet.host.calls.count(name) == 1:
            fleet.host.die(vm_id, turned_off=True)

    fleet.host.before = turn_off
    await fleet.change(vm_id, "input_digest = 'd2', generation = generation + 1")
    row = await fleet.until(vm_id, lambda row: row["waiting_for"] == "guest_poweroff")
    taken = fleet.host.machine(vm_id).told["setback"].model_dump(mode="json")
    sql = "power_state = 'stopped', generation = generation + 1, poweroff_taken = $2"
    await fleet.change(vm_id, sql, taken)
    row = await fleet.until(vm_id, lambda row: row["observed_generation"] == 3 and row["due_at"] is None)
    assert (row["phase"], row["setbacks"], fleet.host.starts) == ("ready", 0, 0)


async def test_a_guest_that_its_hypervisor_paused(fleet: Fleet):
    """L-V11: failed with the cause while that remains; then resumed, once; never ended."""
    vm_id = await created(fleet)
    before = fleet.host.machine(vm_id).process
    fleet.host.stall(vm_id, "no-space", remains=True)
    await look(fleet, vm_id)
    row = await fleet.until(vm_id, lambda row: row["waiting_for"] == "guest_stalled" and row["claim_until"] is None)
    assert (row["phase"], row["observed_power_state"]) == ("failed", "paused")
    assert row["last_error"] == "the hypervisor paused the guest: there is no room left for its disk on the host"
    fleet.host.machine(vm_id).told["cause_remains"] = False
    fleet.host.machine(vm_id).revision += 1
    await look(fleet, vm_id)
    row = await fleet.until_settled(vm_id)
    assert (row["phase"], row["observed_power_state"], row["setbacks"]) == ("ready", "running", 1)
    assert [name for name in fleet.host.calls if name != "find_vm"] == ["ensure_resumed"]
    assert fleet.host.machine(vm_id).process == before


async def test_a_cause_that_nobody_can_see_is_tried_with_pauses(fleet: Fleet):
    """L-V11: at once, then after the pauses of L-V4."""
    vm_id = await created(fleet)

    async def again(name: str, order: HostOrder) -> None:
        if name == "ensure_resumed":
            fleet.host.stall(vm_id, "io-error")

    fleet.host.after = again
    fleet.host.stall(vm_id, "io-error")
    await look(fleet, vm_id)
    row = await fleet.until(vm_id, lambda row: row["waiting_for"] == "guest_stalled")
    assert row["setbacks"] == 2
    assert 5 < (row["up_again_at"] - row["waiting_since"]).total_seconds() < 13
    assert fleet.host.calls.count("ensure_resumed") == 1
