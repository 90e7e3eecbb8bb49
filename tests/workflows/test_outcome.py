"""What the end of a step means for the row, case by case."""

from __future__ import annotations

from datetime import timedelta

import pytest

from model.decide import next_step
from model.passes import PassRef
from model.step import Step, StepKind
from model.vm import Phase
from model.waiting import Waiting
from tests.model.world import NOW, World, empty_view, make_row
from workflows.failures import Failure, FailureKind
from workflows.outcome import IMAGE_PATIENCE, after_failure, ending, phase_during

REF = PassRef(vm_id="vm-1", pass_number=1)
TRIED = {"attempt_pass": 1, "create_attempts": 1}


def verdict(kind: FailureKind, step: StepKind = StepKind.BOOT, **row: object):
    return after_failure(make_row(**row), step, Failure(kind, "why"), now=NOW, jitter=1.0)


@pytest.mark.parametrize(
    "kind",
    [
        FailureKind.NOT_PICKED_UP,
        FailureKind.UNKNOWN_THERE,
        FailureKind.AWAY,
        FailureKind.SILENT,
        FailureKind.BELOW_FLOOR,
    ],
)
def test_what_says_nothing_of_the_vm_gives_the_attempt_back(kind: FailureKind):
    """L-C5, L-G7, H-S5."""
    found = verdict(kind, **TRIED)
    assert found.give_back
    assert not found.rests
    assert found.due_at is not None


def test_a_look_that_did_not_come_about_is_no_error_of_the_vm():
    """A busy host must not show as failing VMs, nor make their pauses grow."""
    found = verdict(FailureKind.AWAY, StepKind.WAIT, first_ready_at=NOW, phase=Phase.READY)
    assert "error" not in found.fields
    assert "failures" not in found.fields
    assert found.fields["phase"] is Phase.READY


def test_a_refusal_uses_no_attempt_and_waits_to_be_woken():
    """L-C3: failed, not resting, no time at which it is tried again."""
    found = verdict(FailureKind.REFUSED, StepKind.PREPARE, **TRIED)
    assert (found.give_back, found.counted, found.rests, found.ends, found.due_at) == (True, False, False, True, None)
    assert (found.fields["phase"], found.fields["waits"]) == (Phase.FAILED, Waiting.REFUSED)
    assert found.fields["error"] == "why"


@pytest.mark.parametrize(
    ("kind", "row", "given_back"),
    [
        (FailureKind.SILENT, {"refunds": 3, "step_refunds": {"boot": 3}}, False),
        (FailureKind.NOT_PICKED_UP, {"refunds": 3, "step_refunds": {"boot": 3}}, False),
        (FailureKind.SILENT, {"refunds": 3, "step_refunds": {"boot": 2, "fetch_image": 1}}, True),
        (FailureKind.SILENT, {"refunds": 9, "step_refunds": {"fetch_image": 3}}, True),
        (FailureKind.BELOW_FLOOR, {"refunds": 3, "step_refunds": {"boot": 3}}, True),
        (FailureKind.BELOW_FLOOR, {"refunds": 10, "step_refunds": {"boot": 0}}, False),
    ],
)
def test_what_gives_an_attempt_back_is_bounded(kind: FailureKind, row: dict[str, object], given_back: bool):
    """L-C5: ten without progress, three where the host died in one and the same step; then it rests and says so."""
    found = verdict(kind, **TRIED, **row)
    assert found.counted
    assert found.rests is not given_back
    if not given_back:
        assert (found.fields["phase"], found.fields["resting"], found.due_at) == (Phase.FAILED, True, None)
        assert "times" in found.fields["error"]
        assert found.fields["error"].endswith("the last time: why")


@pytest.mark.parametrize("kind", [FailureKind.AWAY, FailureKind.UNKNOWN_THERE])
def test_what_says_nothing_never_ends_the_retries(kind: FailureKind):
    """L-C4, L-C6, H-D4: an API that gives out no input for an hour, or a worker that is upgraded tomorrow."""
    found = verdict(kind, **TRIED, refunds=10, step_refunds={"boot": 0})
    assert (found.give_back, found.counted, found.rests) == (True, False, False)


def test_a_create_that_was_interrupted_too_often_rests():
    """L-C5: as the pass finds it that did not interrupt it."""
    row, view = make_row(refunds=11), empty_view()
    found = ending(row, next_step(row, view), view, REF, 1, booted=False)
    assert found is not None
    assert (found.phase, found.resting, found.waits) == (Phase.FAILED, True, Waiting.CREATE_RESTS)
    assert found.error == "its create was interrupted 11 times and came no further"


@pytest.mark.parametrize(("attempts", "rests"), [(1, False), (4, False), (5, True)])
def test_attempts_are_bounded(attempts: int, rests: bool):
    """L-C4: at the limit the VM is failed and rests."""
    found = verdict(FailureKind.FAILED, attempt_pass=1, create_attempts=attempts)
    assert found.rests is rests
    assert found.fields["phase"] is (Phase.FAILED if rests else Phase.CREATING)
    assert found.fields["attempt_used"]
    assert not found.give_back
    assert (found.due_at is None) is rests


def test_a_permanent_error_ends_the_retries_of_a_create_only():
    """L-C6; a VM that once lived is tried for ever (L-V5)."""
    assert verdict(FailureKind.PERMANENT, **TRIED).rests
    lived = verdict(FailureKind.PERMANENT, first_ready_at=NOW)
    assert not lived.rests
    assert lived.fields["retry_at"] > NOW


def test_an_image_server_that_is_away_uses_up_an_attempt_only_after_15_minutes():
    """L-C4."""
    first = verdict(FailureKind.IMAGE_UNREACHABLE, **TRIED)
    assert first.give_back
    assert first.fields["unreachable_since"] == NOW
    late = verdict(FailureKind.IMAGE_UNREACHABLE, unreachable_since=NOW - IMAGE_PATIENCE, **TRIED)
    assert not late.give_back


def test_pauses_of_a_living_vm_grow_and_its_error_is_told():
    """L-V5."""
    few, many = (verdict(FailureKind.FAILED, first_ready_at=NOW, failures=n) for n in (0, 6))
    assert few.fields["error"] == "why"
    assert few.fields["retry_at"] - NOW == timedelta(seconds=2)
    assert few.fields["retry_at"] < many.fields["retry_at"]
    assert not few.ends, "the pause is waited out inside, if it is short"


def test_a_delete_that_fails_stays_a_delete():
    """L-R5: tried for ever, in its own phase."""
    found = verdict(FailureKind.FAILED, StepKind.DESTROY_STORAGE, deleted=True, phase=Phase.DESTROYING)
    assert found.fields["phase"] is Phase.DESTROYING


def test_a_lost_record_leaves_the_power_state_empty():
    """L-V9: failed with the reason, and nobody can tell what runs."""
    row, view = make_row(first_ready_at=NOW, phase=Phase.READY), empty_view()
    found = ending(row, Step(kind=StepKind.REST, reason="lost", waits=Waiting.LOST_RECORD), view, REF, 1, booted=False)
    assert found is not None
    assert found.view is not None
    assert (found.phase, found.error, found.view.observed.power_state) == (Phase.FAILED, "lost", None)


def test_a_settled_vm_is_ready_and_its_error_ends_with_a_boot_only():
    """L-V6."""
    world = World(make_row(first_ready_at=NOW, generation=3))
    step = Step(kind=StepKind.SETTLED, reason="")
    quiet = ending(world.row, step, world.view, REF, 1, booted=False)
    booted = ending(world.row, step, world.view, REF, 1, booted=True)
    assert quiet is not None
    assert booted is not None
    assert (quiet.phase, quiet.observed_generation, quiet.failures) == (Phase.READY, 3, 0)
    assert (quiet.write_error, booted.write_error, booted.error) == (False, True, None)


@pytest.mark.parametrize("kind", StepKind)
def test_a_deleted_vm_is_never_shown_as_anything_else(kind: StepKind):
    for destroying in (False, True):
        row = make_row(deleted=True, destroying=destroying, first_ready_at=NOW)
        assert phase_during(row, kind) in (Phase.QUARANTINED, Phase.DESTROYING)
