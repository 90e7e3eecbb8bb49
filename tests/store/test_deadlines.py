"""By when a VM's work should be done, and what tells that it is not (L-G13)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from model.deadlines import EXPECTED, RIGHTFUL
from model.generations import VmChange
from model.passes import ClaimRequest, Finish, Outcome, PassRef, PassResult, StepNote
from model.vm import Phase
from model.waiting import Waiting
from store.audit import Actor
from store.database import Pool
from store.hold import HoldStore
from store.passes import PassStore
from store.vm import VmFilter, VmStore
from store.vm_change import VmChanges
from store.vm_create import create_vm
from tests.fixtures.rows import add_host, add_vm, new_vm

ACTOR = Actor("tester")
CREATE, CONVERGE, DESTROY = EXPECTED["CreateVm"], EXPECTED["ConvergeVm"], EXPECTED["ReapVm"]
LATE = "expected_by = now() - interval '1 minute'"


@pytest.fixture
async def vm_id(pool: Pool) -> str:
    """A VM that is made and settled."""
    return await add_vm(pool, await add_host(pool), phase="ready", due_at=None)


async def made(pool: Pool) -> None:
    await pool.execute("update vms set first_ready_at = now()")


async def left(pool: Pool, since: str = "now()") -> timedelta | None:
    """How long the work has from `since` on, to the second."""
    found: timedelta | None = await pool.fetchval(f"select expected_by - {since} from vms")
    return None if found is None else timedelta(seconds=round(found.total_seconds()))


async def own(pool: Pool, vm_id: str, run: str = "run") -> PassRef:
    row = await PassStore(pool).claim(ClaimRequest(vm_id=vm_id, run_id=run))
    assert row is not None
    return PassRef(vm_id=vm_id, pass_number=row.status.pass_number)


async def end(pool: Pool, ref: PassRef, result: PassResult, due: str | None = None) -> None:
    row = await PassStore(pool).read(ref)
    assert row is not None
    due_at = None if due is None else await pool.fetchval(f"select now() + interval '{due}'")
    assert (await PassStore(pool).finish(Finish(**ref.model_dump(), wake=row.wake, due_at=due_at, result=result))).ended


def outcome(ref: PassRef, **changes: Any) -> Outcome:
    return Outcome(**{**ref.model_dump(), "step": 1, "phase": Phase.READY, **changes})


async def test_the_deadline_is_stored_with_the_wish(pool: Pool) -> None:
    """L-G13, case G13: in the transaction that asks for the work, so that no crash leaves none."""
    made_vm = await create_vm(pool, new_vm(await add_host(pool)), ACTOR)
    assert await left(pool, "created_at") == CREATE
    await made(pool)
    changes = VmChanges(pool)
    await changes.change(None, made_vm.vm_id, VmChange(labels={"a": "b"}), ACTOR)
    assert await left(pool, "updated_at") == CONVERGE
    await changes.delete(None, made_vm.vm_id, ACTOR, grace=timedelta(hours=1))
    assert await left(pool, "updated_at") == DESTROY
    await changes.undelete(None, made_vm.vm_id, ACTOR)
    assert await left(pool, "updated_at") == CONVERGE


async def test_work_that_goes_on_keeps_its_deadline(pool: Pool, vm_id: str) -> None:
    """L-G13: however many passes try it, and however often they fail."""
    await pool.execute(f"update vms set {LATE}")
    before = await pool.fetchval("select expected_by from vms")
    ref = await own(pool, vm_id)
    passes = PassStore(pool)
    await passes.begin_step(StepNote(**ref.model_dump(), step=1, phase=Phase.READY, words="x"))
    await passes.write_outcome(outcome(ref, write_error=True, error="x", failures=1, waits=Waiting.STEP_PAUSE))
    await end(pool, ref, "waiting", "1 minute")
    await own(pool, vm_id, "again")
    assert await pool.fetchval("select expected_by from vms") == before


async def test_work_that_nobody_asked_for_gets_one_when_a_pass_begins(pool: Pool, vm_id: str) -> None:
    """L-G13: as after its host's reboot; it is gone once all is there."""
    await made(pool)
    ref = await own(pool, vm_id)
    assert await left(pool, "(claim_until - interval '2 minutes')") == CONVERGE
    await end(pool, ref, "settled")
    assert await left(pool) is None
    ref = await own(pool, vm_id, "keeps a disk")
    await end(pool, ref, "settled", "1 hour")
    assert await left(pool, "due_at") == CONVERGE, "what begins then has its deadline now"


async def test_a_destruction_has_its_deadline_before_it_begins(pool: Pool, vm_id: str) -> None:
    """L-G13: while the grace lasts, that is its end and the time for the work; the first step begins it once."""
    await VmChanges(pool).delete(None, vm_id, ACTOR, grace=timedelta(hours=1))
    ref = await own(pool, vm_id)
    passes = PassStore(pool)
    await passes.write_outcome(outcome(ref, phase=Phase.QUARANTINED, waits=Waiting.GRACE))
    await end(pool, ref, "waiting", "1 hour")
    assert await left(pool, "due_at") == DESTROY
    await pool.execute("update vms set destroy_at = now()")
    ref = await own(pool, vm_id, "destroys")
    await passes.begin_step(StepNote(**ref.model_dump(), step=1, phase=Phase.QUARANTINED, words="x"))
    await passes.mark_destroying(ref)
    assert timedelta(0) < (await left(pool) or timedelta(0)) <= DESTROY
    await pool.execute(f"update vms set {LATE}")
    await passes.mark_destroying(ref)
    assert (await VmStore(pool).get(None, vm_id)).overdue


@pytest.mark.parametrize("word", list(Waiting))
async def test_who_waits_by_right_is_not_overdue(pool: Pool, vm_id: str, word: Waiting) -> None:
    """L-G13: rest, grace, hold, a refusal; and its time begins when the wait is over."""
    await made(pool)
    await pool.execute(f"update vms set {LATE}")
    ref = await own(pool, vm_id)
    await PassStore(pool).write_outcome(outcome(ref, waits=word))
    shown = await VmStore(pool).get(None, vm_id)
    assert shown.overdue is (word not in RIGHTFUL)
    found = await VmStore(pool).list(None, VmFilter(overdue=True))
    assert [vm.id for vm in found] == ([] if word in RIGHTFUL else [vm_id])
    await PassStore(pool).begin_step(StepNote(**ref.model_dump(), step=2, phase=Phase.READY, words="x"))
    assert (await VmStore(pool).get(None, vm_id)).overdue is (word not in RIGHTFUL)


async def test_a_held_vm_is_not_overdue(pool: Pool, vm_id: str) -> None:
    """L-G13, L-G12: from the moment it is held, and its time begins anew with the release."""
    await made(pool)
    await pool.execute(f"update vms set {LATE}")
    holds = HoldStore(pool)
    assert (await VmStore(pool).get(None, vm_id)).overdue
    await holds.take(vm_id, by="a drain", token="mine")
    assert not (await VmStore(pool).get(None, vm_id)).overdue
    await holds.release(vm_id, token="mine")
    assert await left(pool, "due_at") == CONVERGE
