"""A held VM is looked at, and left alone (L-G12)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from model.decide import next_step
from model.step import StepKind
from model.vm import PowerState
from model.waiting import Waiting
from tests.model.test_decide import created, run_until_rest
from tests.model.world import World, make_row


def new() -> World:
    return World(make_row())


def in_the_middle() -> World:
    world = World(make_row())
    for _ in range(4):
        world.apply(next_step(world.row, world.view))
    return world


def lost() -> World:
    world = created()
    world.stop_guest()
    world.see(boot_id="b2")
    return world


def to_be_stopped() -> World:
    return created(power_state=PowerState.STOPPED, generation=2)


def deleted() -> World:
    world = created()
    world.delete(timedelta(0))
    return world


@pytest.mark.parametrize("make", [new, in_the_middle, lost, to_be_stopped, deleted])
def test_nothing_is_done_for_a_held_vm_and_all_of_it_afterwards(make) -> None:
    """L-G12: whatever is wanted of it, a delete included; without a hold nothing is held."""
    free, world = make(), make()
    wanted = next_step(free.row, free.view).kind
    assert wanted is not StepKind.WAIT
    world.status(held=True)
    step = next_step(world.row, world.view)
    assert (step.kind, step.waits, step.until) == (StepKind.WAIT, Waiting.HOLD, None)
    world.status(held=False)
    assert run_until_rest(world)[0] is wanted
