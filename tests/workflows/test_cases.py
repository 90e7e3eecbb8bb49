"""Faults from the field, as whole passes meet them: Postgres, Temporal and reports are real, the host is in memory."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from temporalio.exceptions import ApplicationError

from model.generations import VmChange
from model.record import HostOrder, Observed, View
from model.report import HostReport, VmReport
from model.vm import PowerState
from store.audit import Actor
from store.host_report import store_report
from store.vm import VmStore
from store.vm_change import VmChanges
from tests.fixtures.rows import vm_spec
from tests.workflows.conftest import INSTANCE, Fleet
from tests.workflows.test_passes import created
from workers.sweep import Sweep

ACTOR = Actor("somebody")
POWER = {"start": PowerState.RUNNING, "stop": PowerState.STOPPED}


async def sweep(fleet: Fleet) -> int:
    return await Sweep(fleet.pool, fleet.client, search_attributes=False).sweep_once()


async def report(fleet: Fleet, number: int) -> None:
    """Report everything as the host's worker does after its start; the pokes are lost."""
    vms = []
    for vm_id in fleet.host.machines:
        view = fleet.host.view(vm_id)
        look = view.observed.power_state is not PowerState.RUNNING
        vms.append(VmReport(vm_id=vm_id, observed=view.observed, completed=True, look=look))
    told = HostReport(
        number=number,
        instance_id=INSTANCE,
        machine_id="m",
        boot_id=fleet.host.boot_id,
        worker_version="1",
        clock=datetime.now(UTC),
        whole=True,
        activity_names=tuple(fleet.host.names()),
        vms=tuple(vms),
    )
    await store_report(fleet.pool, fleet.host.host_id, told)


async def test_case_a2_a_reboot_that_nobody_asked_for(fleet: Fleet):
    """Case A2: the host alone says that it began anew; without any call each wanted VM is back, booted once."""
    ids = [await created(fleet) for _ in range(3)]
    still = await created(fleet, power_state="stopped")
    fleet.host.starts = 0
    fleet.host.reboot("boot-2")
    await report(fleet, 1)
    await sweep(fleet)
    for vm_id in (*ids, still):
        await fleet.until_settled(vm_id)
    await sweep(fleet)
    assert fleet.host.starts == len(ids)
    for vm_id in ids:
        assert fleet.host.machine(vm_id).process is not None
    assert fleet.host.machine(still).process is None


# What a pass that died in the middle left: the row as it was narrated, and what its host had recorded.
MIDDLES = {
    "stopping": ({"status_detail": "stopping the guest", "power_state": "stopped"}, {"stop_intended": True}),
    "starting": ({"status_detail": "starting the guest", "power_state": "running"}, {"stop_intended": False}),
    "restarting": ({"status_detail": "stopping the guest", "restart_generation": 1}, {"stop_intended": True}),
}


@pytest.mark.parametrize("verb", [None, "start", "stop", "delete"])
@pytest.mark.parametrize("middle", MIDDLES)
async def test_case_a4_no_state_is_left_without_an_owner(fleet: Fleet, middle: str, verb: str | None):
    """Case A4: after a power cut in the middle of a step each verb is accepted at once; the VM goes on by itself."""
    columns, recorded = MIDDLES[middle]
    vm_id = await created(fleet, spec=vm_spec().model_dump(mode="json"))
    machine = fleet.host.machine(vm_id)
    assert machine.record is not None
    machine.record = machine.record.model_copy(update={**recorded, "restart_of": machine.process})
    fleet.host.reboot("boot-2")
    names = ", ".join(f"{name} = ${number}" for number, name in enumerate(columns, 2))
    await fleet.pool.execute(
        f"""update vms set {names}, generation = generation + 1, pass_number = nextval('pass'), step = 1,
            run_id = 'no more', claim_until = now() - interval '2 minutes', due_at = now() where id = $1""",
        vm_id,
        *columns.values(),
    )
    changes = VmChanges(fleet.pool)
    if verb == "delete":
        await changes.delete("default", vm_id, ACTOR, grace=datetime.resolution * 0)
    elif verb is not None:
        await changes.change("default", vm_id, VmChange(power_state=POWER[verb]), ACTOR)
    await sweep(fleet)
    if verb == "delete":
        await fleet.until_gone(vm_id)
        return
    row = await fleet.until_settled(vm_id)
    assert (row["phase"], row["status_detail"]) == ("ready", None)
    assert (machine.process is None) is (row["power_state"] == "stopped")
    assert row["observed_generation"] == row["generation"]


async def test_case_b2_a_guest_that_does_not_answer_is_shown_and_left_alone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
):
    """Case B2: nothing is restarted while nobody can tell; the condition shows, and goes by itself."""
    vm_id = await created(fleet)
    process, view = fleet.host.machine(vm_id).process, fleet.host.view

    def silent(vm_id: str) -> View:
        seen = view(vm_id)
        unknown: Observed = seen.observed.model_copy(update={"power_state": None, "revision": 1000})
        return seen.model_copy(update={"observed": unknown})

    monkeypatch.setattr(fleet.host, "view", silent)
    await fleet.change(vm_id, "labels = '{}'")
    row = await fleet.until(vm_id, lambda row: row["status_detail"] is not None)
    assert row["status_detail"] == "waiting: the guest's process lives but does not answer"
    assert (row["observed_power_state"], row["last_error"]) == (None, None)
    fleet.host.machine(vm_id).revision = 1001
    monkeypatch.setattr(fleet.host, "view", view)
    row = await fleet.until_settled(vm_id)
    assert (row["phase"], row["status_detail"], row["observed_power_state"]) == ("ready", None, "running")
    assert (fleet.host.starts, fleet.host.machine(vm_id).process) == (0, process)


async def test_case_b8_a_start_repairs_a_failed_vm_that_runs(fleet: Fleet):
    """Case B8: what is wanted already is looked at: one process, no second boot, and the VM is ready again."""
    vm_id = await created(fleet, spec=vm_spec().model_dump(mode="json"))
    process = fleet.host.machine(vm_id).process
    await fleet.pool.execute(
        "update vms set phase = 'failed', last_error = 'the stop timed out', due_at = null where id = $1", vm_id
    )
    accepted = await VmChanges(fleet.pool).change("default", vm_id, VmChange(power_state=PowerState.RUNNING), ACTOR)
    assert not accepted.changed
    await sweep(fleet)
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert (row["restart_count"], row["generation"]) == (0, 1)
    assert (fleet.host.starts, fleet.host.machine(vm_id).process) == (0, process)


async def test_case_c5_what_is_not_started_says_so(fleet: Fleet):
    """Case C5: the wake-up is lost after the row is there; it is told so, and the sweep starts the VM once."""
    vm_id = await fleet.add_vm(spec=vm_spec().model_dump(mode="json"))
    vms = VmStore(fleet.pool)
    assert (await vms.get("default", vm_id)).status_detail == "accepted, not started"
    assert await sweep(fleet) == 1
    await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert (await vms.get("default", vm_id)).status_detail is None
    assert fleet.host.starts == 1


async def test_case_c6_a_kernel_that_is_slow_to_forget_uses_up_no_attempt(fleet: Fleet):
    """Case C6: the step is tried again, with a bound, until an earlier tap is gone."""

    async def busy(name: str, order: HostOrder) -> None:
        if name == "ensure_booted" and fleet.host.calls.count(name) < 3:
            raise ApplicationError("the kernel still removes an earlier tap", type="Busy")

    fleet.host.before = busy
    vm_id = await fleet.add_vm()
    await fleet.poke(vm_id)
    row = await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
    assert (row["create_attempts"], row["last_error"]) == (1, None)
    assert fleet.host.calls.count("ensure_booted") == 3
    assert fleet.host.starts == 1
