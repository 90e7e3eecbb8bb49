"""`why`, state by state: read the whole sentence, do what it advises, see the VM move (L-G10, L-C4, L-R2, H-S10).

Real Postgres, Temporal and control worker; only the host is in memory.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from model.record import HostOrder, Refusal, View
from model.report import HostReport, VmReport
from model.waiting import Waiting
from store.audit import list_audit
from store.hold import HoldStore
from store.host_report import store_report
from tests.api.conftest import until, vm_body
from tests.api.test_passes import Running, running

__all__ = ["running"]

T = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"
READ: set[Waiting] = set()


def reads(word: Waiting) -> Callable[[Any], Any]:
    """Mark a test as the one that reads the sentence of `word`."""
    READ.add(word)
    return lambda test: test


async def create(running: Running, **changed: Any) -> dict[str, Any]:
    answer = await running.world.call("POST", "/v1/vms?wait=30s", json=vm_body(name="web-1", **changed))
    assert answer.status_code == 201, answer.text
    return answer.json()


async def sentence(running: Running, vm_id: str, word: str) -> str:
    """Return the sentence once the VM waits for `word`. A wait that is over is begun anew, as the sweep does."""

    async def said() -> str | None:
        why = (await running.row(vm_id))["why"]
        if why and why["waits_for"] == word:
            return why["sentence"]
        if why and word != "control_plane" and (await running.fleet.row(vm_id) or {})["claim_until"] is None:
            await running.fleet.poke(vm_id)
        return None

    return await until(said)


async def act(running: Running, method: str, path: str, **options: Any) -> dict[str, Any]:
    answer = await running.world.call(method, path, **options)
    assert answer.status_code < 300, answer.text
    return answer.json()


def failing(step: str, type_: str, text: str) -> Callable[[str, HostOrder], Awaitable[None]]:
    async def before(name: str, order: HostOrder) -> None:
        if name == step:
            raise ApplicationError(text, type=type_, non_retryable=True)

    return before


@reads(Waiting.CREATE_RESTS)
async def test_a_create_that_rests(running: Running) -> None:
    running.fleet.host.before = failing("ensure_root_disk", "Permanent", "the image is larger than 1 GiB")
    vm = await create(running, disk_gib=1)
    assert re.fullmatch(
        rf"It rests, since trying again does not cure the error, since {T}\. Tried: 1 of its attempts are used; "
        r"the last error is: the image is larger than 1 GiB\. Correct what the error names "
        r"\(`hostler vm resize web-1`, its keys, its image\), or have it tried again by `hostler vm retry web-1`; "
        r"`hostler vm rm web-1` gives it up\.",
        await sentence(running, vm["id"], Waiting.CREATE_RESTS),
    )
    running.fleet.host.before = None
    moved = await act(running, "PATCH", f"/v1/vms/{vm['id']}?wait=30s", json={"disk_gib": 2})
    assert (moved["phase"], moved["power_state"]) == ("ready", "running")


@reads(Waiting.ATTEMPT_PAUSE)
async def test_a_pause_between_two_attempts(running: Running) -> None:
    running.fleet.host.before = failing("ensure_root_disk", "StepFailed", "qemu-img ended with 1")
    vm = await act(running, "POST", "/v1/vms", json=vm_body(name="web-1"))
    assert re.fullmatch(
        rf"It pauses before the next attempt to create it, since {T}, until {T}\. Tried: \d of its attempts are used; "
        r"the last error is: qemu-img ended with 1\. It goes on by itself; `hostler vm retry web-1` tries at once\.",
        await sentence(running, vm["id"], Waiting.ATTEMPT_PAUSE),
    )
    running.fleet.host.before = None
    moved = await act(running, "POST", f"/v1/vms/{vm['id']}/retry?wait=30s")
    assert moved["phase"] == "ready"


@reads(Waiting.REFUSED)
async def test_a_create_that_its_host_refused(running: Running) -> None:
    """L-C3, H-A2: no attempt is used, less is asked for, and it goes on; a project reads its own wish alone (S-32)."""
    refusal = "host h1 refuses: memory: needs 8192 MiB, holds 2048 of 4096 MiB"
    running.fleet.host.before = failing("ensure_prepared", "NoRoom", refusal)
    vm = await create(running, memory_mib=8192)
    assert re.fullmatch(
        rf"It waits for room: its host {running.fleet.host.host_id} has not enough under the limits that its operator "
        rf"set, since {T}\. Tried: the last error is: {refusal}\. It is tried again by itself, the oldest first, when "
        r"the host releases something or its limits rise; `hostler vm resize web-1` asks for less, `hostler vm rm "
        r"web-1` gives it up\.",
        await sentence(running, vm["id"], Waiting.REFUSED),
    )
    row = await running.row(vm["id"])
    assert (row["phase"], row["create_attempts"], row["settled"]) == ("failed", 0, True)
    told = (await running.world.call("GET", f"/v1/vms/{vm['id']}", project="default")).text
    assert "its host refuses: memory: needs 8192 MiB" in told
    assert "h1" not in told
    assert "2048" not in told
    running.fleet.host.before = None
    moved = await act(running, "PATCH", f"/v1/vms/{vm['id']}?wait=30s", json={"memory_mib": 1024})
    assert (moved["phase"], moved["power_state"], moved["last_error"]) == ("ready", "running", None)


@reads(Waiting.STEP_PAUSE)
async def test_a_pause_after_failed_steps(running: Running) -> None:
    vm = await create(running)
    running.fleet.host.before = failing("ensure_stopped", "StepFailed", "the process does not end")
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"power_state": "stopped"})
    assert re.fullmatch(
        rf"It pauses before the next try, since {T}, until {T}\. Tried: \d+ tr(y|ies) in a row failed; the last error "
        r"is: the process does not end\. It goes on by itself; `hostler vm retry web-1` tries at once\.",
        await sentence(running, vm["id"], Waiting.STEP_PAUSE),
    )
    running.fleet.host.before = None
    moved = await act(running, "POST", f"/v1/vms/{vm['id']}/retry?wait=30s")
    assert moved["power_state"] == "stopped"


async def test_a_vm_that_is_overdue(running: Running) -> None:
    """L-G13: shown in why, in the row and in lists; a condition, which changes nothing; gone once the work is done."""
    vm = await create(running)
    running.fleet.host.before = failing("ensure_stopped", "StepFailed", "the process does not end")
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"power_state": "stopped"})
    await sentence(running, vm["id"], Waiting.STEP_PAUSE)
    assert not (await running.row(vm["id"]))["overdue"]
    await running.world.pool.execute("update vms set expected_by = now() - interval '1 minute'")
    told = await sentence(running, vm["id"], Waiting.STEP_PAUSE)
    assert re.match(
        rf"It pauses before the next try, since {T}, until {T}\. It is overdue since {T}\. Tried: \d (try|tries) in",
        told,
    )
    (listed,) = (await running.world.call("GET", "/v1/vms?overdue=true")).json()["items"]
    assert (listed["id"], listed["overdue"]) == (vm["id"], True)
    assert (await running.world.call("GET", "/v1/vms?overdue=false")).json()["items"] == []
    running.fleet.host.before = None
    moved = await act(running, "POST", f"/v1/vms/{vm['id']}/retry?wait=30s")
    assert (moved["power_state"], moved["overdue"], moved["expected_by"]) == ("stopped", False, None)


@reads(Waiting.SILENT_GUEST)
async def test_a_guest_that_does_not_answer(running: Running) -> None:
    vm = await create(running)
    host = running.fleet.host
    host.shown[vm["id"]] = _silent
    await running.fleet.change(vm["id"], "generation = generation + 1")
    assert re.fullmatch(
        rf"It waits for the guest's process, which lives but does not answer, since {T}\. "
        r"`hostler vm console web-1` may tell more; `hostler vm restart web-1` or `hostler vm stop web-1` ends it\.",
        await sentence(running, vm["id"], Waiting.SILENT_GUEST),
    )
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"power_state": "stopped"})
    await until(lambda: running_calls(running, "ensure_stopped"))
    host.shown.clear()
    moved = await running.row(vm["id"], "?wait=30s")
    assert (moved["power_state"], moved["why"]) == ("stopped", None)


def _silent(view: View) -> View:
    """A guest whose monitor is silent, as long as it has a process."""
    if view.observed.process is None:
        return view
    return view.model_copy(update={"observed": view.observed.model_copy(update={"power_state": None})})


@reads(Waiting.GUEST_ENDED)
async def test_a_guest_that_ended_again(running: Running) -> None:
    """L-V4: a user's start, although it moves nothing, boots the guest at once."""
    vm = await create(running)
    for _ in range(2):
        running.fleet.host.die(vm["id"])
        await running.fleet.change(vm["id"], "labels = '{}'")
        await until(lambda: is_counted(running))
    assert re.fullmatch(
        rf"It pauses before its guest, which ended by itself, is booted again, since {T}, until {T}\. Tried: its guest "
        r"ended or stood still by itself 2 times in a row\. `hostler vm console web-1` may tell why; it goes on by "
        r"itself, `hostler vm retry web-1` boots it at once\.",
        await sentence(running, vm["id"], Waiting.GUEST_ENDED),
    )
    assert (await running.row(vm["id"]))["setbacks"] == 2
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"power_state": "running"})
    moved = await running.row(vm["id"], "?wait=30s")
    assert (moved["power_state"], moved["setbacks"], moved["why"]) == ("running", 0, None)


async def is_counted(running: Running) -> bool:
    """Say whether a pass knows the guest's last setback, and has ended or pauses."""
    row = await running.world.pool.fetchrow("select setback, claim_until, waiting_for from vms")
    machine = next(iter(running.fleet.host.machines.values()))
    known = row is not None and row["setback"] == machine.told["setback"].model_dump(mode="json")
    return known and (row["claim_until"] is None or row["waiting_for"] is not None)


@reads(Waiting.GUEST_UNSTEADY)
async def test_a_guest_that_ended_too_often(running: Running) -> None:
    """L-V4: it runs, and is failed until it has run for ten minutes."""
    vm = await create(running)
    await running.world.pool.execute("update vms set setbacks = 5, due_at = now()")
    assert re.fullmatch(
        rf"It runs again, and counts as failed until its guest has run for ten minutes, since {T}, until {T}\. Tried: "
        r"its guest ended or stood still by itself 5 times in a row; the last error is: the guest ended or stood still "
        r"by itself 5 times in a row\. `hostler vm console web-1` may tell why it ended; `hostler vm retry web-1` "
        r"counts it as well at once\.",
        await sentence(running, vm["id"], Waiting.GUEST_UNSTEADY),
    )
    assert (await running.row(vm["id"]))["phase"] == "failed"
    moved = await act(running, "POST", f"/v1/vms/{vm['id']}/retry?wait=30s")
    assert (moved["phase"], moved["last_error"]) == ("ready", None)


@reads(Waiting.GUEST_POWEROFF)
async def test_a_guest_that_turned_itself_off_for_good(running: Running) -> None:
    """L-V4 with `stop`: not booted before its host's report, and stopped by it, with the guest in the audit trail."""
    vm = await create(running, on_guest_poweroff="stop")
    host, pool = running.fleet.host, running.world.pool
    starts = host.starts
    host.die(vm["id"], turned_off=True)
    await running.fleet.wake(vm["id"])
    assert re.fullmatch(
        rf"It waits for its host {host.host_id} to report that the guest turned itself off, which stops the VM, since "
        rf"{T}\. Nothing is needed; `hostler vm restart web-1` boots it instead\.",
        await sentence(running, vm["id"], Waiting.GUEST_POWEROFF),
    )
    seen = host.view(vm["id"]).observed
    told = VmReport(vm_id=vm["id"], observed=seen, completed=True, guest_stopped_itself=True)
    fields = {"machine_id": "m", "boot_id": "b", "worker_version": "1", "clock": seen.seen_at, "whole": False}
    names = tuple(host.names())
    report = HostReport(number=1, instance_id=host.instance_id, activity_names=names, vms=(told,), **fields)
    await store_report(pool, host.host_id, report)
    await running.fleet.wake(vm["id"])
    moved = await running.row(vm["id"], "?wait=30s")
    assert (moved["power_state"], moved["desired_power_state"], moved["generation"]) == ("stopped", "stopped", 2)
    assert host.starts == starts
    assert "guest" in [entry.actor for entry in await list_audit(pool, None, subject=f"vm/{vm['id']}")]


@reads(Waiting.GUEST_STALLED)
async def test_a_guest_that_its_hypervisor_paused(running: Running) -> None:
    """L-V11: failed with the cause; resumed when that is gone."""
    vm = await create(running)
    host = running.fleet.host
    host.stall(vm["id"], "no-space", remains=True)
    await running.fleet.wake(vm["id"])
    assert re.fullmatch(
        rf"It waits, since the hypervisor paused its guest, since {T}\. Tried: its guest ended or stood still by "
        r"itself once; the last error is: the hypervisor paused the guest: there is no room left for its disk on the "
        r"host\. "
        rf"Correct what the error names, as by making room on its host {host.host_id}; then it goes on by itself\. "
        r"`hostler vm restart web-1` gives up what the guest was doing\.",
        await sentence(running, vm["id"], Waiting.GUEST_STALLED),
    )
    assert (await running.row(vm["id"]))["phase"] == "failed"
    host.machine(vm["id"]).told["cause_remains"] = False
    await running.fleet.wake(vm["id"])
    assert (await running.row(vm["id"], "?wait=30s"))["power_state"] == "running"


@reads(Waiting.UNREADABLE_RECORD)
async def test_a_record_that_cannot_be_read(running: Running) -> None:
    vm = await create(running)
    host = running.fleet.host
    host.shown[vm["id"]] = lambda view: view.model_copy(update={"record": None, "unreadable": "config.json is cut"})
    await running.fleet.change(vm["id"], "generation = generation + 1")
    assert re.fullmatch(
        rf"It waits for its record on its host {host.host_id} to be readable, since {T}\. Tried: the last error is: "
        r"config\.json is cut\. Restore the file that the error names and start the host's worker again, or give the "
        r"VM up: `hostler vm rm web-1` still works\.",
        await sentence(running, vm["id"], Waiting.UNREADABLE_RECORD),
    )
    host.shown.clear()
    await running.fleet.change(vm["id"], "generation = generation")  # as the report of a new worker does
    moved = await running.row(vm["id"], "?wait=30s")
    assert (moved["phase"], moved["why"]) == ("ready", None)


@reads(Waiting.CORRUPT_COUNTERS)
async def test_a_record_that_is_ahead_of_the_row(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """L-N5: refused loudly, with both numbers; nothing of it is started or stopped. It can be deleted."""
    vm = await create(running)
    host = running.fleet.host
    machine = host.machine(vm["id"])
    assert machine.record is not None
    machine.record = machine.record.model_copy(update={"applied_generation": 7})
    machine.revision += 1
    calls = len(host.calls)
    await running.fleet.change(vm["id"], "power_state = 'stopped', generation = 2")
    told = await sentence(running, vm["id"], Waiting.CORRUPT_COUNTERS)
    assert re.fullmatch(
        rf"It is refused, since its record on its host {host.host_id} and its row contradict each other, since {T}\. "
        r"Tried: the last error is: its host's record is ahead of all that was ever asked for: generation 7 applied, "
        r"2 wanted\. Nothing of it is started or stopped\. Have an operator find out which of the two is older, and "
        r"bring the newer one of both back; or give the VM up: `hostler vm rm web-1` still works\.",
        told,
    )
    shown = await running.row(vm["id"], "?wait=30s")
    assert (shown["phase"], shown["power_state"], shown["settled"]) == ("failed", "running", True)
    assert set(host.calls[calls:]) == {"find_vm"}
    assert f"the VM {vm['id']} is refused (L-N5)" in caplog.text
    await act(running, "DELETE", f"/v1/vms/{vm['id']}?now=true")
    await running.fleet.until_gone(vm["id"])


async def test_a_record_that_is_ahead_after_a_restore(running: Running) -> None:
    """L-N5: under a higher epoch the row's counters follow the record's, and the VM goes on."""
    vm = await create(running)
    machine = running.fleet.host.machine(vm["id"])
    assert machine.record is not None
    machine.record = machine.record.model_copy(update={"applied_generation": 7, "applied_restart_generation": 3})
    await running.world.pool.execute("update fleet set epoch = 2")
    await running.fleet.change(vm["id"], "power_state = power_state")
    moved = await running.row(vm["id"], "?wait=30s")
    assert (moved["phase"], moved["power_state"], moved["why"]) == ("ready", "running", None)
    assert (moved["generation"], moved["observed_generation"], moved["restart_generation"]) == (7, 7, 3)
    assert (machine.record.epoch, running.fleet.host.starts) == (2, 1)


@reads(Waiting.REFUSED_CHANGE)
async def test_a_change_that_its_host_refused(running: Running) -> None:
    """L-V8: the guest keeps what it has, the generation that was observed stays behind, the error says why."""
    vm = await create(running, power_state="stopped")
    host = running.fleet.host
    given = host.machine(vm["id"]).record

    async def refuse(name: str, order: HostOrder) -> None:
        if name == "ensure_seed":
            refused = Refusal(digest=order.input_digest, boot_id=host.boot_id, reason="this host has 1024 MiB")
            host.machine(vm["id"]).record = given.model_copy(update={"refused": refused})

    async def told_stopped() -> bool:
        return (await running.row(vm["id"]))["power_state"] == "stopped"

    await until(told_stopped)
    host.after = refuse
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"memory_mib": 1 << 20})
    told = await sentence(running, vm["id"], Waiting.REFUSED_CHANGE)
    assert re.fullmatch(
        rf"It does without what its host {host.host_id} cannot give it, and keeps what it has, since {T}\. Tried: the "
        r"last error is: this host has 1024 MiB\. Ask for what the host has \(`hostler vm resize web-1`\); after its "
        r"host's next boot it is tried again\.",
        told,
    )
    shown = await running.row(vm["id"])
    assert (shown["observed_generation"], shown["generation"]) == (1, 2)
    host.after = None
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"memory_mib": 512})
    moved = await running.row(vm["id"], "?wait=30s")
    assert (moved["observed_generation"], moved["why"]) == (3, None)


@reads(Waiting.LOST_RECORD)
async def test_a_record_that_was_lost(running: Running) -> None:
    vm = await create(running)
    host = running.fleet.host
    del host.machines[vm["id"]]
    await running.fleet.change(vm["id"], "generation = generation + 1")
    told = await sentence(running, vm["id"], Waiting.LOST_RECORD)
    assert re.fullmatch(
        rf"It waits for a decision: its host {host.host_id} has no record of it any more, since {T}\. Tried: the last "
        r"error is: its host has lost the VM's record\. Bring the host's state directory back, have everything made "
        r"anew \(`hostler vm rebuild web-1`\), or give the VM up with `hostler vm rm web-1`\.",
        told,
    )
    moved = await act(running, "POST", f"/v1/vms/{vm['id']}/rebuild?wait=30s", json={})
    assert (moved["phase"], moved["power_state"], moved["old_disk_until"]) == ("ready", "running", None)


@reads(Waiting.HOLD)
async def test_a_vm_that_is_held(running: Running) -> None:
    """L-G12: by anyone, for as long as it takes; a delete is accepted and waits."""
    vm = await create(running)
    calls = len(running.fleet.host.calls)

    async def at_rest() -> bool:
        return (await holds.list())[0].at_rest

    holds = HoldStore(running.world.pool)
    await holds.take(vm["id"], by="a drain", token="mine")
    await act(running, "DELETE", f"/v1/vms/{vm['id']}?now=true")
    assert re.fullmatch(
        r"It waits for the end of what holds it \(a drain\)(, since [^.]*)?\. It goes on by itself then; a delete is "
        r"accepted now and done afterwards\.",
        await sentence(running, vm["id"], Waiting.HOLD),
    )
    await until(at_rest)
    assert set(running.fleet.host.calls[calls:]) <= {"find_vm"}, "passes look and do nothing"
    await holds.release(vm["id"], token="mine")
    await running.fleet.until_gone(vm["id"])


@reads(Waiting.GRACE)
async def test_a_quarantine(running: Running) -> None:
    vm = await create(running)
    await act(running, "DELETE", f"/v1/vms/{vm['id']}?grace=1h&wait=30s")
    assert re.fullmatch(
        rf"It is stopped and kept, waiting out its grace, since {T}, until {T}\. `hostler vm undelete web-1` brings it "
        r"back until then; `hostler vm rm --now web-1` destroys it at once\.",
        await sentence(running, vm["id"], Waiting.GRACE),
    )
    moved = await act(running, "POST", f"/v1/vms/{vm['id']}/undelete?wait=30s")
    assert (moved["phase"], moved["power_state"]) == ("ready", "running")


@reads(Waiting.FROZEN)
async def test_a_frozen_fleet(running: Running) -> None:
    vm = await create(running)
    await running.world.pool.execute("update fleet set frozen = true")
    await act(running, "DELETE", f"/v1/vms/{vm['id']}?now=true")
    assert re.fullmatch(
        rf"It waits for the fleet to be unfrozen: until then nothing is destroyed, since {T}\. "
        r"`hostler vm undelete web-1` brings it back meanwhile\.",
        await sentence(running, vm["id"], Waiting.FROZEN),
    )
    moved = await act(running, "POST", f"/v1/vms/{vm['id']}/undelete?wait=30s")
    assert (moved["phase"], moved["power_state"]) == ("ready", "running")


@reads(Waiting.BEHIND)
async def test_a_store_that_is_behind_its_hosts(running: Running) -> None:
    """H-R1: nothing that boots, stops, quarantines or destroys is sent; every row says so."""
    vm, calls = await create(running), len(running.fleet.host.calls)
    await running.world.pool.execute("update fleet set behind = true, behind_since = now()")
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"power_state": "stopped"})
    assert re.fullmatch(
        r"It waits, since the fleet's database may be older than what its host \S+ was ordered "
        rf"last, and nothing is booted, stopped or destroyed meanwhile, since {T}\. Operators see by `hostler restore` "
        r"what has to be settled; where that is nothing, it goes on by itself once its host \S+ has reported\.",
        await sentence(running, vm["id"], Waiting.BEHIND),
    )
    await act(running, "DELETE", f"/v1/vms/{vm['id']}?now=true")
    shown = await act(running, "POST", f"/v1/vms/{vm['id']}/retry")
    assert "nothing is booted, stopped or destroyed" in shown["standstill"]
    assert not shown["overdue"]
    await sentence(running, vm["id"], Waiting.BEHIND)
    assert set(running.fleet.host.calls[calls:]) <= {"find_vm"}
    assert (await running.world.client.get("/readyz")).json() == {"status": "behind"}
    await running.world.pool.execute("update fleet set behind = false")
    await act(running, "POST", f"/v1/vms/{vm['id']}/retry")
    await running.fleet.until_gone(vm["id"])


@reads(Waiting.REMAINS)
async def test_remains_of_a_destroyed_vm(running: Running) -> None:
    vm = await create(running)
    host = running.fleet.host
    host.shown[vm["id"]] = lambda view: view.model_copy(
        update={"observed": view.observed.model_copy(update={"nothing": False})}
    )
    await act(running, "DELETE", f"/v1/vms/{vm['id']}?now=true")
    assert re.fullmatch(
        rf"It is destroyed, but its host {host.host_id} still finds something of it, since {T}\. It is looked for "
        r"again every 15 seconds; the log of the host's worker names what is left\.",
        await sentence(running, vm["id"], Waiting.REMAINS),
    )
    host.shown.clear()
    await running.fleet.until_gone(vm["id"])


@reads(Waiting.HOST_AWAY)
async def test_a_host_that_is_silent(running: Running) -> None:
    vm = await create(running)
    pool, host = running.world.pool, running.fleet.host
    await pool.execute("update hosts set last_report_at = now() - interval '1 day'")
    await pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 day'")
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"power_state": "stopped"})
    assert re.fullmatch(
        rf"It waits for its host {host.host_id} to report and take up work, since {T}\. `hostler host ls` shows the "
        r"host; once its worker runs and reaches the API it goes on by itself\.",
        await sentence(running, vm["id"], Waiting.HOST_AWAY),
    )
    await pool.execute("update hosts set last_report_at = now()")
    await running.fleet.wake(vm["id"])
    assert (await running.row(vm["id"], "?wait=30s"))["power_state"] == "stopped"


@reads(Waiting.HOST_OUTDATED)
async def test_a_host_whose_worker_does_not_know_the_step(running: Running) -> None:
    """H-D4: a host of an older release reports fewer steps, and is not asked for another."""
    vm = await create(running)
    pool, host = running.world.pool, running.fleet.host
    await pool.execute("update hosts set activity_names = array_remove(activity_names, 'ensure_stopped')")
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"power_state": "stopped"})
    assert re.fullmatch(
        rf"It waits for the worker of its host {host.host_id} to be upgraded: it does not know what is to be done "
        rf"next, since {T}\. Upgrade Hostler there; it goes on by itself then\.",
        await sentence(running, vm["id"], Waiting.HOST_OUTDATED),
    )
    await pool.execute("update hosts set activity_names = activity_names || '{ensure_stopped}'")
    await running.fleet.wake(vm["id"])
    assert (await running.row(vm["id"], "?wait=30s"))["power_state"] == "stopped"


@reads(Waiting.HOST_BELOW_FLOOR)
async def test_a_host_below_the_floor(running: Running) -> None:
    vm = await create(running)
    host = running.fleet.host
    host.before = failing("find_vm", "BelowFloor", "this worker is older than the fleet's floor 9.0")
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"power_state": "stopped"})
    assert re.fullmatch(
        rf"It waits for the worker of its host {host.host_id} to be upgraded: it is older than the fleet allows, since "
        rf"{T}\. Tried: the last error is: this worker is older than the fleet's floor 9\.0\. Upgrade Hostler there; "
        r"it goes on by itself then\.",
        await sentence(running, vm["id"], Waiting.HOST_BELOW_FLOOR),
    )
    host.before = None
    await running.fleet.wake(vm["id"])
    assert (await running.row(vm["id"], "?wait=30s"))["power_state"] == "stopped"


@reads(Waiting.HOST_BUSY)
async def test_a_host_that_cannot_begin(running: Running) -> None:
    vm = await create(running)
    host = running.fleet.host
    host.before = failing("find_vm", "Busy", "an earlier step of this VM still ends")
    await act(running, "PATCH", f"/v1/vms/{vm['id']}", json={"power_state": "stopped"})
    assert re.fullmatch(
        rf"It waits for its host {host.host_id}, which could not begin the step, since {T}(, until {T})?\. "
        r"(Tried: .*\. )?It goes on by itself; `hostler vm retry web-1` tries at once\.",
        await sentence(running, vm["id"], Waiting.HOST_BUSY),
    )
    host.before = None
    moved = await act(running, "POST", f"/v1/vms/{vm['id']}/retry?wait=30s")
    assert moved["power_state"] == "stopped"


@reads(Waiting.HOST_DISK)
async def test_a_host_that_is_too_full(running: Running) -> None:
    """D-12, L-C3: refused with the numbers, no attempt is used up; with room it is made. A condition of the host."""
    world, host = running.world, running.fleet.host
    room = {"capacity": {"storage_bytes_free": 4 << 30, "storage_bytes_total": 100 << 30}}
    frame = {"number": 1, "instance_id": "i1", "machine_id": "m", "boot_id": "b", "worker_version": "1", "whole": True}
    report = {**frame, "clock": "2030-01-01T00:00:00Z", "emulated": False, **room}
    await world.pool.execute("update hosts set report = $1", report)
    vm = await act(running, "POST", "/v1/vms", json=vm_body(name="web-1"))
    told = await sentence(running, vm["id"], Waiting.HOST_DISK)
    assert re.fullmatch(
        rf"It waits for room on its host {host.host_id}, where no VM is made while the disk is so full, since {T}\. "
        r"Tried: the last error is: refused: its host has 4\.0 GiB of 100\.0 GiB free, and no VM is made below 5 %\. "
        r"Make room there, or delete VMs; it goes on by itself then\.",
        told,
    )
    shown = await running.row(vm["id"])
    assert (shown["phase"], shown["create_attempts"], "ensure_prepared" in host.calls) == ("failed", 0, False)
    (condition,) = (await world.call("GET", f"/v1/hosts/{host.host_id}")).json()["conditions"]
    assert (condition["condition"], condition["what"]) == (
        "disk_short",
        "4.0 GiB of 100.0 GiB free: no VM is made there, and unused images were removed",
    )
    report["capacity"]["storage_bytes_free"] = 9 << 30  # type: ignore[index]
    await world.pool.execute("update hosts set report = $1", report)
    (condition,) = (await world.call("GET", f"/v1/hosts/{host.host_id}")).json()["conditions"]
    assert condition["what"] == "9.0 GiB of 100.0 GiB free: VMs are still made there"
    await running.fleet.wake(vm["id"])
    moved = await running.row(vm["id"], "?wait=30s")
    assert (moved["phase"], moved["why"]) == ("ready", None)
    report["capacity"]["storage_bytes_free"] = 10 << 30  # type: ignore[index]
    await world.pool.execute("update hosts set report = $1", report)
    assert (await world.call("GET", f"/v1/hosts/{host.host_id}")).json()["conditions"] == []


@reads(Waiting.HOST_QUEUE)
async def test_a_place_in_a_hosts_queue(running: Running) -> None:
    host = running.fleet.host
    host.waiting["ensure_image"] = "waiting for a free create slot (2 of 2 busy)"
    vm = await act(running, "POST", "/v1/vms", json=vm_body(name="web-1"))
    assert re.fullmatch(
        rf"It keeps its place in a queue of its host {host.host_id}, since {T}\. Nothing is needed: its turn comes by "
        r"itself\.",
        await sentence(running, vm["id"], Waiting.HOST_QUEUE),
    )
    assert (await running.row(vm["id"]))["status_detail"] == "waiting for a free create slot (2 of 2 busy)"
    host.waiting.clear()
    await running.fleet.wake(vm["id"])
    assert (await running.row(vm["id"], "?wait=30s"))["phase"] == "ready"


@reads(Waiting.HOST_CERTIFICATE)
async def test_a_host_certificate_that_is_not_there(running: Running) -> None:
    """L-C2: visible in `why` and `status_detail`, and no attempt is used."""
    host = running.fleet.host
    host.waiting["ensure_certificate"] = "waiting for the host certificate"
    vm = await act(running, "POST", "/v1/vms", json=vm_body(name="web-1", host_certificate=True))
    assert re.fullmatch(
        rf"It waits for its host certificate, since {T}\. It goes on once the API has signed it; the log of the API "
        r"says what keeps it, such as a missing key of the SSH CA\.",
        await sentence(running, vm["id"], Waiting.HOST_CERTIFICATE),
    )
    row = await running.row(vm["id"])
    assert (row["status_detail"], row["create_attempts"]) == ("waiting for the host certificate", 0)
    host.waiting.clear()
    await running.fleet.wake(vm["id"])
    assert (await running.row(vm["id"], "?wait=30s"))["phase"] == "ready"


async def test_nobody_takes_it_up(running: Running) -> None:
    """The control plane itself is what is waited for: said without anybody having written it."""
    vm = await create(running)
    running.sweeping.cancel()
    await running.world.pool.execute("update vms set due_at = now() - interval '5 minutes', claim_until = null")
    assert re.fullmatch(
        rf"It is due and nobody took it up, since {T}\. `hostler status` shows whether control worker and Temporal "
        r"run; with both it goes on by itself\.",
        await sentence(running, vm["id"], "control_plane"),
    )
    await running.fleet.wake(vm["id"])
    assert (await running.row(vm["id"], "?wait=30s"))["why"] is None


async def test_a_settled_vm_waits_for_nothing(running: Running) -> None:
    vm = await create(running)
    assert (await running.row(vm["id"]))["why"] is None


def test_every_waiting_state_has_its_sentence_read() -> None:
    """A state that is added tomorrow needs a test here."""
    assert set(Waiting) == READ


async def running_calls(running: Running, name: str) -> bool:
    return name in running.fleet.host.calls
