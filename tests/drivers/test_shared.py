"""Readings that many ask for at once."""

import asyncio

import pytest

from drivers.shared import SharedRead
from model.errors import StepFailed


class Source:
    """Something that changes, and takes a moment to read."""

    def __init__(self) -> None:
        self.value, self.reads, self.fails = 0, 0, False
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def read(self) -> int:
        self.reads += 1
        self.begun.set()
        value = self.value
        await self.gate.wait()
        if self.fails:
            raise StepFailed("away")
        return value


async def test_a_crowd_costs_two_readings_and_sees_what_came_before_each_call():
    """L-G2: VMs never wait for each other's looks; fifty looks at once are no fifty dumps of the kernel's links."""
    source = Source()
    shared = SharedRead(source.read)
    first = asyncio.create_task(shared.read())
    await asyncio.wait_for(source.begun.wait(), 5)
    source.value = 1
    crowd = [asyncio.create_task(shared.read()) for _ in range(50)]
    await asyncio.sleep(0)
    source.gate.set()
    assert await first == 0
    assert await asyncio.gather(*crowd) == [1] * 50
    assert source.reads == 2
    source.value = 2
    assert await shared.read() == 2


async def test_one_that_is_cancelled_takes_nothing_from_the_others():
    source = Source()
    shared = SharedRead(source.read)
    one, other = asyncio.create_task(shared.read()), asyncio.create_task(shared.read())
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    source.gate.set()
    assert await other == 0


async def test_a_reading_that_fails_fails_for_all_who_wait_and_is_made_again():
    source = Source()
    source.fails = True
    source.gate.set()
    shared = SharedRead(source.read)
    with pytest.raises(StepFailed):
        await shared.read()
    source.fails = False
    assert await shared.read() == 0
