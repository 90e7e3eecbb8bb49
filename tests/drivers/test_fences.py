"""The fence: the newest order wins, whatever the interleaving (L-G5)."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.fences import KEPT_SECONDS, FenceStore
from model.errors import Fenced, StepFailed, Unreadable
from model.fence import Fence
from tests.fixtures.orders import IDENTITY, make_fence


def make_store(folder) -> FenceStore:
    store = FenceStore(folder / "fences", **IDENTITY)
    store.load()
    return store


async def arrive(store: FenceStore, fence: Fence) -> None:
    store.see("vm1", fence)
    await store.make_durable("vm1", fence)


orders = st.tuples(*(st.integers(1, 3) for _ in range(4)))


@settings(max_examples=40, deadline=None)
@given(st.lists(orders, min_size=1, max_size=12))
def test_only_the_highest_order_seen_passes_also_after_a_restart(tmp_path_factory, arrivals) -> None:
    """L-G5: each order passes exactly when none higher came before it; a restart forgets nothing."""
    folder = tmp_path_factory.mktemp("fences")

    async def scenario() -> None:
        highest, store = (0, 0, 0, 0), make_store(folder)
        for number, order in enumerate(arrivals):
            store = make_store(folder) if number % 3 == 0 else store
            if order < highest:
                with pytest.raises(Fenced):
                    await arrive(store, make_fence(*order))
            else:
                await arrive(store, make_fence(*order))
                highest = order
            assert store.highest("vm1").order == highest
            assert make_store(folder).highest("vm1").order == highest

    asyncio.run(scenario())


@settings(max_examples=30, deadline=None)
@given(st.lists(orders, min_size=2, max_size=8), st.randoms())
def test_the_disk_ends_at_the_highest_of_concurrent_orders(tmp_path_factory, arrivals, random) -> None:
    """L-G5: arrivals at once, some cancelled in the middle of their write; the file never goes back."""
    folder = tmp_path_factory.mktemp("fences")

    async def scenario() -> None:
        store = make_store(folder)
        tasks = [asyncio.create_task(arrive(store, make_fence(*order))) for order in arrivals]
        await asyncio.sleep(0)
        for task in tasks:
            if random.random() < 0.3:
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        seen = store.highest("vm1").order
        passed = [order for order, result in zip(arrivals, results, strict=True) if result is None]
        assert set(passed) <= {seen}  # whoever came back without an error was the newest at that instant
        found = make_store(folder).highest("vm1")
        if passed:
            assert found is not None
            assert found.order == seen

    asyncio.run(scenario())


@pytest.mark.parametrize("field", IDENTITY)
async def test_orders_of_another_fleet_host_or_instance_are_refused(tmp_path, field) -> None:
    """L-G5, H-E2: they move nothing."""
    store = make_store(tmp_path)
    with pytest.raises(Fenced):
        await arrive(store, make_fence(9, 9, 9, 9, **{field: "other"}))
    assert store.highest("vm1") is None


async def test_an_unreadable_fence_refuses_its_vm_only_and_is_never_zero(tmp_path) -> None:
    await arrive(make_store(tmp_path), make_fence(1, 5, 1, 1))
    file = tmp_path / "fences" / "vm1.json"
    file.write_text(file.read_text()[:20])
    store = make_store(tmp_path)
    with pytest.raises(Unreadable):
        await arrive(store, make_fence(1, 9, 1, 1))
    store.see("vm2", make_fence(1, 9, 1, 1))
    await store.make_durable("vm2", make_fence(1, 9, 1, 1))


async def test_a_fence_that_cannot_be_written_lets_nothing_act(tmp_path) -> None:
    """L-G3."""
    store = make_store(tmp_path)
    (tmp_path / "fences").rmdir()
    with pytest.raises(StepFailed):
        await arrive(store, make_fence(1, 1, 1, 1))


async def test_fences_outlive_their_vm_by_thirty_days(tmp_path) -> None:
    """L-G5."""
    store = make_store(tmp_path)
    await arrive(store, make_fence(1, 5, 1, 1))
    await store.mark_gone("vm1")
    store = make_store(tmp_path)
    await store.tidy(time.time() + KEPT_SECONDS - 60)
    assert store.highest("vm1") is not None
    await arrive(store, make_fence(1, 5, 2, 1))
    assert json.loads((tmp_path / "fences" / "vm1.json").read_text())["gone_at"] is None
    await store.mark_gone("vm1")
    await store.tidy(time.time() + KEPT_SECONDS + 60)
    assert store.highest("vm1") is None
    assert list(itertools.chain((tmp_path / "fences").iterdir())) == []
