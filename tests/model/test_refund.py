"""How often an attempt is given back before its create rests (L-C5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.decide import next_step
from model.decide.refund import MOST_OF_ONE_STEP, MOST_REFUNDS, count_refund, why_no_more
from model.step import StepKind
from model.waiting import Waiting
from tests.model.world import empty_view, make_row

MAKING = ["prepare", "fetch_image", "make_disk", "write_seed", "boot", "complete"]


def test_ten_without_progress_are_given_back_and_three_where_the_host_died():
    """L-C5."""
    counts: tuple[int, dict[str, int]] = (0, {})
    for _ in range(MOST_REFUNDS):
        counts = count_refund(*counts, "make_disk", host_died=False)
        assert why_no_more(*counts) is None
    assert "interrupted 11 times" in (why_no_more(*count_refund(*counts, "make_disk", host_died=False)) or "")
    counts = (0, {})
    for _ in range(MOST_OF_ONE_STEP):
        counts = count_refund(*counts, "make_disk", host_died=True)
        assert why_no_more(*counts) is None
    assert "make_disk" in (why_no_more(*count_refund(*counts, "make_disk", host_died=True)) or "")
    assert why_no_more(*count_refund(*counts, "write_seed", host_died=True)) is None, "that is progress"


@given(st.lists(st.tuples(st.sampled_from([*MAKING, None]), st.booleans()), min_size=80, max_size=80))
def test_whatever_interrupts_a_create_it_ends(interruptions: list[tuple[str | None, bool]]):
    """L-C5: progress is bounded by the steps that there are, so the interruptions are, too."""
    counts: tuple[int, dict[str, int]] = (0, {})
    for step, host_died in interruptions:
        counts = count_refund(*counts, step, host_died=host_died)
        if why_no_more(*counts) is not None:
            return
    raise AssertionError(f"still trying: {counts}")


@pytest.mark.parametrize("counts", [{"refunds": 11}, {"refunds": 4, "step_refunds": {"fetch_image": 4}}])
def test_a_create_that_is_interrupted_too_often_rests_and_says_so(counts: dict[str, object]):
    """L-C5: whoever counted; an attempt that is under way goes on."""
    step = next_step(make_row(**counts), empty_view())
    assert (step.kind, step.waits) == (StepKind.REST, Waiting.CREATE_RESTS)
    assert "interrupted" in step.reason or "fetch_image" in step.reason
    assert next_step(make_row(attempt_pass=1, **counts), empty_view()).kind is StepKind.PREPARE
