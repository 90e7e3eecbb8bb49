"""What a campaign does next (H-D1, H-D3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.campaign import CampaignLook, CampaignStepKind, next_of_campaign
from model.decide import next_step
from model.step import StepKind
from model.vm import PowerState
from model.waiting import Waiting
from tests.model.test_decide import created
from tests.model.test_hold import deleted, in_the_middle, lost, new


def look(**changes: Any) -> CampaignLook:
    told: dict[str, Any] = {"state": "running", "batch_size": 3, "wake": 1, **changes}
    return CampaignLook(**told)


IDS = ("a", "b", "c")


@pytest.mark.parametrize(
    ("found", "kind", "vm_ids"),
    [
        (look(state="cancelled", todo=3, next_ids=IDS, deleted_ids=("x",)), "end", ()),
        (look(state="paused", todo=3, next_ids=IDS), "end", ()),
        (look(state="paused", deleted_ids=("x",)), "yield", ("x",)),
        (look(creating=1, todo=3, next_ids=IDS), "await_creates", ()),
        (look(todo=3, working=1, next_ids=IDS), "take", ("a", "b")),
        (look(todo=3, working=3, next_ids=IDS), "watch", ()),
        (look(todo=1, failed=2, next_ids=("a",)), "take", ("a",)),
        (look(working=1, failed=2), "watch", ()),
        (look(failed=1, done=4), "end", ()),
        (look(done=4, left=1), "note_done", ()),
        (look(state="done", done=4), "end", ()),
        (look(state="done", todo=1, done=4, next_ids=("a",)), "take", ("a",)),
        (look(todo=1, failed=1, most_failures=0, next_ids=("a",)), "pause", ()),
        (look(todo=1, failed=1, most_failures=1, next_ids=("a",)), "take", ("a",)),
        (look(failed=2, working=1, most_failures=0), "watch", ()),
        (look(failed=1, most_failures=0), "note_done", ()),
    ],
)
def test_what_comes_next(found: CampaignLook, kind: str, vm_ids: tuple[str, ...]) -> None:
    """H-D1, H-D3: creates first, some at a time, a failure stops no other; too many of them pause a campaign."""
    step = next_of_campaign(found)
    assert (step.kind, step.vm_ids) == (kind, vm_ids)
    assert (step.result is not None) == (step.kind is CampaignStepKind.END)


@given(st.builds(look, **{name: st.integers(0, 5) for name in ("creating", "todo", "working", "failed", "done")}))
def test_a_drain_is_done_only_when_nothing_is_left_and_nothing_failed(found: CampaignLook) -> None:
    """H-D1."""
    left = found.creating + found.todo + found.working + found.failed
    assert (next_of_campaign(found).kind is CampaignStepKind.NOTE_DONE) == (left == 0)


def test_a_vm_held_by_a_drain_is_stopped_and_nothing_else_is_done_for_it() -> None:
    """H-D1, L-G12: its desired state is `running` all the while."""
    world = created()
    world.status(held=True, hold_stops=True)
    assert next_step(world.row, world.view).kind is StepKind.STOP
    world.stop_guest()
    assert next_step(world.row, world.view).waits is Waiting.HOLD
    assert world.row.desired.power_state is PowerState.RUNNING


@pytest.mark.parametrize("make", [new, in_the_middle, lost, deleted])
def test_one_that_does_not_run_or_was_deleted_is_left_alone(make: Any) -> None:
    """H-D1, L-G12."""
    world = make()
    world.status(held=True, hold_stops=True)
    step = next_step(world.row, world.view)
    assert (step.kind, step.waits) == (StepKind.WAIT, Waiting.HOLD)


def test_a_stop_that_failed_is_tried_again_after_its_pause() -> None:
    """H-D1, L-V5."""
    world = created()
    world.status(held=True, hold_stops=True, retry_at=world.row.now.replace(year=2030))
    step = next_step(world.row, world.view)
    assert (step.kind, step.waits, step.until) == (StepKind.WAIT, Waiting.STEP_PAUSE, world.row.status.retry_at)
