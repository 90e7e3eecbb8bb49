"""How full a host's filesystem is decides whether VMs are made there, and nothing else (D-12)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from model.decide import next_step
from model.room import DISK_STOP_CREATES_PERCENT, DISK_WARN_PERCENT, is_below
from model.row import Row
from model.step import StepKind
from model.vm import PowerState
from model.waiting import Waiting
from tests.model.test_decide import created, run_until_rest
from tests.model.world import GIB, World, change, make_row

TOTAL = 100 * GIB


def on_host(row: Row, free: int | None, total: int | None = TOTAL) -> Row:
    host = row.host.model_copy(update={"storage_bytes_free": free, "storage_bytes_total": total})
    return row.model_copy(update={"host": host})


def test_a_create_is_refused_with_the_numbers_and_uses_up_no_attempt() -> None:
    """D-12, L-C3: it is tried again, and made once there is room."""
    world = World(on_host(make_row(), 5 * GIB - 1))
    step = next_step(world.row, world.view)
    assert (step.kind, step.waits) == (StepKind.WAIT, Waiting.HOST_DISK)
    assert step.reason == "refused: its host has 5.0 GiB of 100.0 GiB free, and no VM is made below 5 %"
    assert step.until is not None
    assert timedelta(0) < step.until - world.row.now < timedelta(minutes=1)
    assert run_until_rest(world) == [StepKind.WAIT]
    assert world.row.status.create_attempts == 0
    world.row = on_host(world.row, 5 * GIB)
    assert run_until_rest(world)[-1] is StepKind.SETTLED
    assert world.starts == 1


def test_an_attempt_that_has_begun_goes_on() -> None:
    """D-12, D-7: its own steps say what they cannot do."""
    world = World(on_host(make_row(pass_number=3, attempt_pass=3, create_attempts=1), 0))
    assert next_step(world.row, world.view).kind is StepKind.PREPARE


@pytest.mark.parametrize(("free", "total"), [(None, TOTAL), (0, None), (None, None)])
def test_what_nobody_could_measure_is_not_full(free: int | None, total: int | None) -> None:
    """D-12, H-S7."""
    assert next_step(on_host(make_row(), free, total), World(make_row()).view).kind is StepKind.TAKE_ATTEMPT


@pytest.mark.parametrize(
    ("wish", "story"),
    [
        ({"power_state": PowerState.STOPPED, "generation": 2}, [StepKind.STOP, StepKind.APPLY, StepKind.SETTLED]),
        ({"deleted": True, "destroying": True}, [StepKind.DESTROY_PROCESS, StepKind.DESTROY_NETWORK]),
    ],
)
def test_a_full_host_keeps_no_stop_and_no_destroy_waiting(wish: dict[str, object], story: list[StepKind]) -> None:
    """D-12: only creates are refused."""
    world = created()
    world.row = change(on_host(world.row, 0), **wish)
    assert run_until_rest(world)[: len(story)] == story


@pytest.mark.parametrize("percent", [DISK_WARN_PERCENT, DISK_STOP_CREATES_PERCENT])
def test_the_limit_itself_is_enough(percent: int) -> None:
    """D-12."""
    assert not is_below(percent, percent, 100)
    assert is_below(percent, percent - 1, 100)
