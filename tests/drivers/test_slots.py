"""Slots: who is next, how long a place is kept (L-C7)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from drivers.slots import PLACE_SECONDS, Slots

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def world():
    clock, turns = Clock(), []
    slots = Slots("waiting for a free create slot ({busy} of {limit} busy)", 2, turns.append, clock=clock)
    return slots, clock, turns


async def take(slots, vm_id, *, age=0, priority=0, wait=0.01, say=lambda _: None):
    created_at = START + timedelta(seconds=age)
    return await slots.take(vm_id, say, boot_priority=priority, created_at=created_at, wait_seconds=wait)


async def test_no_more_than_the_limit_and_the_text_says_it(world) -> None:
    """L-C7, L-G10."""
    slots, _, _ = world
    assert await take(slots, "a") is None
    assert await take(slots, "a") is None
    assert await take(slots, "b") is None
    assert await take(slots, "c") == "waiting for a free create slot (2 of 2 busy)"
    assert slots.busy == 2


async def test_who_waits_says_so_from_the_first_moment(world) -> None:
    """L-G10: not only after a minute; who need not wait says nothing."""
    slots, _, _ = world
    said: list[str] = []
    await take(slots, "a", say=said.append)
    await take(slots, "b", say=said.append)
    assert said == []
    waiting = asyncio.create_task(take(slots, "c", wait=10, say=said.append))
    await asyncio.sleep(0)
    assert said == ["waiting for a free create slot (2 of 2 busy)"]
    slots.release("a")
    assert await waiting is None


async def test_turns_go_by_priority_then_age(world) -> None:
    """L-C7."""
    slots, _, turns = world
    await take(slots, "a")
    await take(slots, "b")
    for vm_id, age, priority in (("young", 9, 0), ("old", 1, 0), ("urgent", 20, 5)):
        assert await take(slots, vm_id, age=age, priority=priority) is not None
    slots.release("a")
    assert turns == ["urgent"]
    assert slots.is_called("urgent")
    slots.release("b")
    assert turns == ["urgent", "old"]
    assert slots.busy == 2


async def test_one_that_waits_is_let_in_at_once_and_not_reported(world) -> None:
    slots, _, turns = world
    await take(slots, "a")
    await take(slots, "b")
    waiting = asyncio.create_task(take(slots, "c", wait=5))
    await asyncio.sleep(0)
    slots.release("a")
    assert await waiting is None
    assert turns == []


async def test_places_end_three_minutes_after_their_last_step(world) -> None:
    """L-C7: a pass that died keeps neither its place nor its slot for ever."""
    slots, clock, turns = world
    await take(slots, "a")
    await take(slots, "b")
    await take(slots, "c")
    clock.now = PLACE_SECONDS - 1
    await take(slots, "d", age=5)
    with slots.used("b"):
        clock.now = PLACE_SECONDS + 1
        slots.advance()
    slots.advance()
    assert turns == ["d"]  # a's slot and c's place are over
    assert (slots.holds("a"), slots.holds("b"), slots.holds("d")) == (False, True, True)


async def test_zero_is_no_limit() -> None:
    slots = Slots("{busy}{limit}", 0, lambda _: None)
    for number in range(20):
        assert await take(slots, f"v{number}") is None
