"""A whole VM held for an operation, by whoever has its token (L-G12)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from model.errors import Conflict, Gone, NotFound
from model.passes import ClaimRequest, Finish, Outcome, PassRef
from model.vm import Phase
from model.waiting import Waiting
from store.audit import Actor
from store.database import Pool
from store.hold import HoldStore
from store.passes import PassStore
from store.vm_change import VmChanges
from tests.fixtures.rows import add_host, add_vm

ACTOR = Actor("tester")


@pytest.fixture
def holds(pool: Pool) -> HoldStore:
    return HoldStore(pool)


@pytest.fixture
async def vm_id(pool: Pool) -> str:
    return await add_vm(pool, await add_host(pool))


async def own(pool: Pool, vm_id: str, run: str = "run") -> PassRef:
    row = await PassStore(pool).claim(ClaimRequest(vm_id=vm_id, run_id=run))
    assert row is not None
    return PassRef(vm_id=vm_id, pass_number=row.status.pass_number)


async def test_one_of_many_gets_it_and_the_others_are_told_its_name(pool: Pool, holds: HoldStore, vm_id: str) -> None:
    """L-G12: taken in one statement."""
    asked = (holds.take(vm_id, by=f"drain {n}", token=f"t{n}") for n in range(8))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    (winner,) = [n for n, answer in enumerate(answers) if answer is None]
    refused = [answer for answer in answers if isinstance(answer, Conflict)]
    assert len(refused) == 7
    assert all(f"held by drain {winner}" in refusal.detail for refusal in refused)
    (hold,) = await holds.list()
    assert (hold.vm_id, hold.by) == (vm_id, f"drain {winner}")


async def test_only_who_took_it_releases_it_and_that_wakes_the_vm(pool: Pool, holds: HoldStore, vm_id: str) -> None:
    """L-G12: a repeated take or release by the same token is as good as one."""
    await holds.take(vm_id, by="a drain", token="mine")
    since = (await holds.list())[0].since
    await holds.take(vm_id, by="a drain", token="mine")
    assert (await holds.list())[0].since == since
    assert not await holds.release(vm_id, token="another's")
    assert len(await holds.list()) == 1
    await pool.execute("update vms set due_at = null")
    wake = await pool.fetchval("select wake from vms")
    assert await holds.release(vm_id, token="mine")
    assert not await holds.release(vm_id, token="mine")
    assert await pool.fetchval("select wake = $1 + 1 and due_at <= now() and not held from vms", wake)
    assert await holds.list() == ()


async def test_a_pass_that_is_at_work_loses_the_row_and_the_next_look_tells_it(
    pool: Pool, holds: HoldStore, vm_id: str
) -> None:
    """L-G12: what it still writes is refused; the hold is at rest once another pass has looked."""
    passes = PassStore(pool)
    late = await own(pool, vm_id)
    await holds.take(vm_id, by="a drain", token="mine")
    row = await passes.write_outcome(Outcome(**late.model_dump(), step=1, phase=Phase.READY, completed=True))
    assert row is not None
    assert (row.owner, row.status.phase, row.status.held) == (False, Phase.CREATING, True)
    assert not (await holds.list())[0].at_rest
    ref = await own(pool, vm_id, "next")
    await passes.write_outcome(Outcome(**ref.model_dump(), step=1, phase=Phase.CREATING, waits=Waiting.HOLD))
    assert (await holds.list())[0].at_rest


async def test_an_attempt_that_a_hold_ended_is_given_back(pool: Pool, holds: HoldStore, vm_id: str) -> None:
    """L-G12, L-C5: once, and one that had come to an end of its own is not."""
    passes = PassStore(pool)
    ref = await own(pool, vm_id)
    await passes.take_attempt(ref)
    await holds.take(vm_id, by="a drain", token="mine")
    await own(pool, vm_id, "looks")
    assert await pool.fetchval("select create_attempts from vms") == 0
    await holds.release(vm_id, token="mine")
    ref = await own(pool, vm_id, "works")
    await passes.take_attempt(ref)
    failed = Outcome(**ref.model_dump(), step=1, phase=Phase.CREATING, write_error=True, error="x", attempt_used=True)
    await passes.write_outcome(failed)
    await holds.take(vm_id, by="a drain", token="mine")
    await own(pool, vm_id, "looks again")
    assert await pool.fetchval("select create_attempts from vms") == 1


async def test_a_delete_waits_and_is_not_lost(pool: Pool, holds: HoldStore, vm_id: str) -> None:
    """L-G12, L-R4: a held VM passes no point of no return, and a retry does not hurry it."""
    changes, passes = VmChanges(pool), PassStore(pool)
    await holds.take(vm_id, by="a drain", token="mine")
    assert (await changes.delete(None, vm_id, ACTOR, grace=timedelta(0))).changed
    ref = await own(pool, vm_id)
    row = await passes.mark_destroying(ref)
    assert row is not None
    assert not row.status.destroying
    with pytest.raises(Conflict, match="a drain"):
        await changes.retry(None, vm_id, ACTOR)
    assert (await passes.finish(Finish(**ref.model_dump(), wake=row.wake, due_at=None, result="waiting"))).ended
    await holds.release(vm_id, token="mine")
    row = await passes.mark_destroying(await own(pool, vm_id, "after"))
    assert row is not None
    assert row.status.destroying


async def test_what_is_being_destroyed_or_gone_is_not_held(pool: Pool, holds: HoldStore, vm_id: str) -> None:
    """L-G12, L-R4."""
    await pool.execute("update vms set destroying = true")
    with pytest.raises(Gone):
        await holds.take(vm_id, by="a drain", token="mine")
    with pytest.raises(NotFound):
        await holds.take("no-such-vm", by="a drain", token="mine")
    assert not await holds.release("no-such-vm", token="mine")
