"""How often hosts report, and how often what they tell wakes somebody (S-6, S-44)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pace import Pace
from api.parts import pace_of_reports
from tests.api.conftest import World, report_of


@given(st.lists(st.floats(0, 0.6), max_size=60))
def test_places_keep_their_distance(pauses: list[float]) -> None:
    """S-6: places of a key are at least a period apart, whenever they are asked for; none is beyond the bound."""
    now = [0.0]
    pace = Pace(per_second=4, ahead=3, clock=lambda: now[0])
    at: list[float] = []
    for pause in pauses:
        now[0] += pause
        wait = pace.place("a")
        assert wait is None or 0 <= wait <= 0.75
        at += [] if wait is None else [now[0] + wait]
    assert all(later - sooner > 0.25 - 1e-9 for sooner, later in pairwise(at))


async def test_a_host_reports_four_times_a_second(world: World) -> None:
    """S-6: the fifth is refused with when to come again; it is taken then, and no other host waits for this one."""
    now = [0.0]
    world.parts.reports = pace_of_reports(lambda: now[0])
    (one_id, one), (_, other) = [await world.add_host(name=name, instance_id="i1") for name in ("h2", "h3")]
    for number in range(1, 5):
        answer = await world.as_host(one, "POST", "/v1/host/report", json=report_of(number))
        assert answer.status_code == 200, answer.text
    fifth = report_of(5)
    refused = await world.as_host(one, "POST", "/v1/host/report", json=fifth)
    assert (refused.status_code, refused.headers["retry-after"], refused.json()["retryable"]) == (429, "1", True)
    stored = "select report_number from hosts where id = $1"
    assert await world.pool.fetchval(stored, one_id) == 4
    assert (await world.as_host(other, "POST", "/v1/host/report", json=report_of(1))).status_code == 200
    assert (await world.as_host(one, "GET", "/v1/host/errands?wait_seconds=0")).status_code == 200
    now[0] = 1.0
    again = await world.as_host(one, "POST", "/v1/host/report", json=fifth)
    assert (again.status_code, again.json()["acknowledged"]) == (200, 5)
    assert await world.pool.fetchval(stored, one_id) == 5


async def test_news_of_one_vm_wake_it_once_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-6, S-44: the first at once, all that follow by one at the end of the second: none is lost."""
    told: list[str] = []
    monkeypatch.setattr(world.parts, "poke", lambda vm_id, *_: told.append(vm_id))
    for vm_id in ("a", "b", "a", "a", "a"):
        world.parts.poke_of_news(vm_id, "ConvergeVm", "h")
    assert told == ["a", "b"]
    await world.parts.drain()
    assert told == ["a", "b", "a"]
