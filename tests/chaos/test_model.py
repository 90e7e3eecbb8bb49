"""The chaos run's model on its own: what it takes for possible, and what not any more."""

from __future__ import annotations

import time
from typing import Any

from tests.chaos.model import Ask, Model, ModelVm, Outcome


def told(model: Model, verb: str, outcome: Outcome, *, grace: float = 0, **sets: Any) -> ModelVm:
    """Let something be asked, and answered so."""
    ask = model.ask(Ask("vm-1", verb, sets, grace))
    if outcome != "open":
        ask.end(outcome)
    return model.vms["vm-1"]


def document(**changed: Any) -> dict[str, Any]:
    """Show a VM that is stopped as wanted."""
    plain = {"id": "vm-1", "generation": 1, "observed_generation": 1, "disk_gib": 1, "first_ready_at": "now"}
    plain |= {"phase": "ready", "setbacks": 0}
    plain |= {"settled": True, "power_state": "stopped", "desired_power_state": "stopped", "quarantine": None}
    return plain | changed


def test_an_accepted_change_overtakes_what_was_over_before() -> None:
    model = Model()
    told(model, "create", "accepted", power_state="running")
    vm = told(model, "change", "accepted", power_state="stopped")
    assert vm.possible("power_state") == ["stopped"]
    assert not vm.may_run()


def test_what_was_refused_did_not_happen_and_what_was_lost_may_have() -> None:
    model = Model()
    told(model, "create", "accepted", disk_gib=1)
    told(model, "change", "refused", disk_gib=2)
    vm = told(model, "change", "lost", disk_gib=3)
    assert vm.possible("disk_gib") == [1, 3]
    # It may reach the row after an answer to a later change.
    assert told(model, "change", "accepted", disk_gib=4).possible("disk_gib") == [3, 4]


def test_two_changes_at_once_may_have_come_in_either_order() -> None:
    model = Model()
    told(model, "create", "accepted", power_state="running")
    first = model.ask(Ask("vm-1", "change", {"power_state": "stopped"}))
    second = model.ask(Ask("vm-1", "change", {"power_state": "paused"}))
    first.end("accepted")
    second.end("accepted")
    assert sorted(model.vms["vm-1"].possible("power_state")) == ["paused", "stopped"]


def test_a_delete_destroys_after_its_grace_and_not_once_it_was_taken_back() -> None:
    model = Model()
    told(model, "create", "accepted")
    vm = told(model, "delete", "accepted", grace=60)
    assert not vm.may_be_destroyed(time.time())
    assert vm.may_be_destroyed(time.time() + 61)
    assert vm.must_be_gone(time.time() + 61)
    vm = told(model, "undelete", "accepted")
    assert not vm.may_be_destroyed(time.time() + 61)
    assert vm.may_be_kept()


def test_a_lost_delete_may_destroy_and_need_not() -> None:
    model = Model()
    told(model, "create", "accepted")
    vm = told(model, "delete", "lost")
    assert vm.may_be_destroyed(time.time() + 1)
    assert not vm.must_be_gone(time.time() + 1)


def test_a_vm_that_was_seen_stopped_rests_until_somebody_asks() -> None:
    model = Model()
    vm = told(model, "create", "accepted", power_state="stopped")
    assert model.read(document(), time.monotonic()) == []
    assert vm.rests_since is not None
    told(model, "change", "open", power_state="running")
    assert vm.rests_since is None
    assert model.read(document(), time.monotonic()) == []
    assert vm.rests_since is None, "what was asked may start it any moment"


def test_a_read_that_falls_behind_an_accepted_change_is_wrong() -> None:
    model = Model()
    told(model, "create", "accepted")
    ask = model.ask(Ask("vm-1", "change", {"disk_gib": 2}))
    model.answer(ask, {"operation": {"generation": 2}})
    assert model.read(document(), time.monotonic() + 1) == ["its generation is 1, and change 2 was accepted before"]
    assert model.read(document(generation=2, disk_gib=2), time.monotonic() + 1) == []
    assert model.read(document(generation=2), time.monotonic() + 1) == ["its disk shrank from 2 to 1 GiB"]


def test_no_setback_is_counted_that_nobody_caused_and_a_failing_guest_is_shown_so() -> None:
    """L-V4."""
    model = Model()
    vm = told(model, "create", "accepted", power_state="running")
    vm.setbacks = 5
    running = {"power_state": "running", "desired_power_state": "running"}
    assert model.read(document(setbacks=4, **running), time.monotonic()) == []
    assert model.read(document(setbacks=5, phase="failed", settled=False, **running), time.monotonic()) == []
    assert len(model.read(document(setbacks=5, **running), time.monotonic())) == 1
    assert len(model.read(document(setbacks=6, phase="failed", **running), time.monotonic())) == 1


def test_nobody_makes_a_vm_that_was_not_asked_for() -> None:
    assert Model().read(document(), time.monotonic()) == ["a VM that nobody made is in the list"]
