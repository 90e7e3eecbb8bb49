"""Counters of a host's record against those of the row (L-N5)."""

from __future__ import annotations

import pytest

from model.decide import next_step
from model.record import Record
from model.step import StepKind
from model.vm import PowerState
from model.waiting import Waiting
from tests.model.test_decide import PROCESS, created, run_until_rest
from tests.model.world import World

COUNTERS = ("generation", "spec_generation", "restart_generation", "rebuild_generation")


def ahead(counter: str, **changes: object) -> World:
    """A VM of which its host says that 7 was applied although less was ever asked for."""
    world = created(**changes)
    world.record(**{f"applied_{counter}": 7})
    return world


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("wanted", list(PowerState))
@pytest.mark.parametrize("process", [PROCESS, None])
def test_a_record_that_is_ahead_is_refused_with_both_numbers(counter: str, wanted: PowerState, process: object) -> None:
    """L-N5: nothing of the VM is started or stopped, whatever is wanted and whatever runs."""
    world = ahead(counter, power_state=wanted)
    world.see(process=process, power_state=PowerState.RUNNING if process else PowerState.STOPPED)
    step = next_step(world.row, world.view)
    assert (step.kind, step.waits) == (StepKind.REST, Waiting.CORRUPT_COUNTERS)
    was = getattr(world.row.desired, counter)
    assert f"{counter} 7 applied, {was} wanted" in step.reason


@pytest.mark.parametrize("counter", COUNTERS)
def test_a_record_of_an_earlier_epoch_is_taken_over(counter: str) -> None:
    """L-N5: after a restore the row follows the record; then all goes on, and the record bears the new epoch."""
    world = ahead(counter)
    world.row = world.row.model_copy(update={"epoch": 2})
    assert run_until_rest(world) == [StepKind.TAKE_OVER, StepKind.APPLY, StepKind.SETTLED]
    assert getattr(world.row.desired, counter) == 7
    assert world.starts == 0
    assert isinstance(world.view.record, Record)
    assert world.view.record.epoch == 2
    world.record(**{f"applied_{counter}": 9})
    assert next_step(world.row, world.view).waits is Waiting.CORRUPT_COUNTERS


def test_a_record_of_a_later_epoch_is_refused() -> None:
    """L-N5: only a higher epoch than the record's explains what is missing."""
    world = ahead("generation")
    world.record(epoch=3)
    world.row = world.row.model_copy(update={"epoch": 2})
    assert next_step(world.row, world.view).waits is Waiting.CORRUPT_COUNTERS


def test_what_is_behind_is_no_corruption() -> None:
    """L-N5, L-N1: a change that is not applied yet is applied."""
    world = created(generation=9, spec_generation=9)
    assert run_until_rest(world) == [StepKind.APPLY, StepKind.SETTLED]


def test_a_delete_of_a_refused_vm_still_works() -> None:
    """L-N5, L-R8: who gives it up is not kept waiting."""
    world = ahead("generation", deleted=True, destroying=True)
    assert next_step(world.row, world.view).kind is StepKind.DESTROY_PROCESS
