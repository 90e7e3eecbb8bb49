"""Fleet, sweep, images, tokens."""

from __future__ import annotations

from datetime import timedelta

import pytest

from model.errors import Conflict, NotFound
from model.passes import ClaimRequest, PassRef, StepNote
from model.vm import Phase
from store.audit import Actor
from store.database import Pool
from store.fleet import ensure_fleet, get_fleet
from store.floor import set_floor
from store.image import ImageStore
from store.passes import PassStore
from store.sweep import due_vms, only_sweeper, prune
from store.token import TokenStore
from tests.fixtures.rows import add_host, add_vm, vm_spec

ACTOR = Actor("tester")


async def test_a_fleet_is_made_once(pool: Pool) -> None:
    first = await ensure_fleet(pool)
    assert await ensure_fleet(pool) == first == await get_fleet(pool)
    assert (first.epoch, first.behind, first.frozen) == (1, False, False)


async def test_another_database_is_behind(pool: Pool) -> None:
    """H-R1: a restored or copied one; nothing is destroyed until a person has looked."""
    await pool.execute("update fleet set timeline = timeline + 1")
    assert (await ensure_fleet(pool)).behind


async def test_the_floor_reaches_the_row(pool: Pool) -> None:
    """H-S5."""
    await set_floor(pool, "1.4.0", ACTOR)
    vm_id = await add_vm(pool, await add_host(pool, worker_version="1.2.0"))
    row = await PassStore(pool).claim(ClaimRequest(vm_id=vm_id, run_id="run"))
    assert row is not None
    assert row.min_worker_version == "1.4.0"


async def test_what_is_due_longest_comes_first(pool: Pool) -> None:
    host_id = await add_host(pool)
    for vm_id, due in (("b", "-1 min"), ("a", "-90 s"), ("later", "1 min")):
        await add_vm(pool, host_id, id=vm_id)
        await pool.execute("update vms set due_at = now() + $1::text::interval where id = $2", due, vm_id)
    await add_vm(pool, host_id, id="done", due_at=None)
    await pool.execute("update vms set first_ready_at = now() where id = 'a'")
    assert [(due.vm_id, due.pass_type, due.stuck) for due in await due_vms(pool, 10)] == [
        ("a", "ConvergeVm", False),
        ("b", "CreateVm", False),
    ]
    assert [due.vm_id for due in await due_vms(pool, 1)] == ["a"]


async def test_what_no_run_claims_is_stuck(pool: Pool) -> None:
    """Whatever run holds its id, it is none that works: two minutes are more than a claim takes."""
    vm_id = await add_vm(pool, await add_host(pool))
    for past, stuck in (("1 min", False), ("121 s", True)):
        await pool.execute("update vms set due_at = now() - $1::text::interval where id = $2", past, vm_id)
        (due,) = await due_vms(pool, 10)
        assert due.stuck is stuck


async def test_a_run_that_renews_nothing_is_stuck(pool: Pool) -> None:
    vm_id = await add_vm(pool, await add_host(pool))
    await PassStore(pool).claim(ClaimRequest(vm_id=vm_id, run_id="run#2"))
    assert await due_vms(pool, 10) == ()
    for past, stuck in (("1 s", False), ("61 s", True)):
        await pool.execute("update vms set due_at = now() - $1::text::interval, claim_until = due_at", past)
        await pool.execute("update vms set claim_until = due_at")
        (due,) = await due_vms(pool, 10)
        assert (due.run_id, due.stuck) == ("run", stuck)


async def test_one_sweeps_at_a_time(pool: Pool) -> None:
    async with only_sweeper(pool) as first:
        assert first
        async with only_sweeper(pool) as second:
            assert not second
    async with only_sweeper(pool) as third:
        assert third


async def test_pruning_keeps_what_is_young_or_among_the_last_hundred(pool: Pool) -> None:
    """A-11."""
    host_id = await add_host(pool)
    vm_id = await add_vm(pool, host_id)
    passes = PassStore(pool)
    row = await passes.claim(ClaimRequest(vm_id=vm_id, run_id="old"))
    row = await passes.claim(ClaimRequest(vm_id=vm_id, run_id="new"))
    assert row is not None
    ref = PassRef(vm_id=vm_id, pass_number=row.status.pass_number)
    await passes.begin_step(StepNote(**ref.model_dump(), step=1, phase=Phase.READY, words="x"))
    await pool.execute("update claims set at = now() - interval '2 days'")
    await pool.execute(
        """insert into operations (id, vm_id, project, kind, generation, workflow_id, ended_at, result)
        select n::text, 'x', 'p', 'change', 1, 'w', now() - interval '91 days', 'settled'
        from generate_series(100, 202) n"""
    )
    await pool.execute("insert into gone values ('y', 'p', 'n', 'h', 1, now() - interval '31 days')")
    assert await prune(pool) == 5
    assert await pool.fetchval("select min(id) from operations where vm_id = 'x'") == "103"
    assert await pool.fetch("select claim_key from claims") == [("new",)]
    assert await prune(pool) == 0


async def test_a_projects_image_comes_before_the_public_one(pool: Pool) -> None:
    """S-19: names are a project's own; public ones are the operators'."""
    store = ImageStore(pool)
    spec = vm_spec().image
    public = await store.add(project="public", name="demo", spec=spec, secrets=b"1", actor=ACTOR)
    assert (await store.find("p", "demo")).id == public.id
    own = await store.add(project="p", name="demo", spec=spec, secrets=b"2", actor=ACTOR)
    assert (await store.find("p", "demo")).id == own.id
    assert (await store.find("p", "public/demo")).id == public.id
    assert (await store.find("q", "demo")).id == public.id
    with pytest.raises(Conflict):
        await store.add(project="p", name="demo", spec=spec, secrets=b"", actor=ACTOR)
    assert [image.id for image in await store.list("q")] == [public.id]
    assert [image.id for image in await store.list(None)] == [public.id, own.id]
    for refused in (store.get("q", own.id), store.remove("q", own.id, ACTOR), store.remove("q", public.id, ACTOR)):
        with pytest.raises(NotFound):
            await refused
    await store.remove("p", own.id, ACTOR)
    assert (await store.find("p", "demo")).id == public.id
    with pytest.raises(NotFound):
        await store.find("p", "other")


async def test_a_token_counts_until_it_expires_or_is_revoked(pool: Pool) -> None:
    """S-30."""
    store = TokenStore(pool)
    day = timedelta(days=1)
    made = await store.add(
        token_id="t1", digest=b"h" * 32, role="viewer", project="p", lifetime=day, actor=ACTOR, name="ci"
    )
    found = await store.find("t1")
    assert found is not None
    assert (found.hash, found.role, found.project, found.maker) == (b"h" * 32, "viewer", "p", "tester")
    again = await store.find("t1")
    assert again is not None
    assert again.last_used_at is not None
    assert made.last_used_at is None
    assert await store.find("t2") is None
    with pytest.raises(NotFound):
        await store.revoke("q", "t1", ACTOR)
    await store.revoke("p", "t1", ACTOR)
    assert await store.find("t1") is None
    await store.add(token_id="t3", digest=b"h" * 32, role="admin", project=None, lifetime=timedelta(0), actor=ACTOR)
    assert await store.find("t3") is None
    assert [token.id for token in await store.list("p")] == ["t1"]


async def test_a_database_that_is_not_there(database_url: str) -> None:
    from model.errors import Unavailable
    from store.database import open_pool

    with pytest.raises(Unavailable, match="not there"):
        await open_pool(database_url.replace("/t_", "/missing_"))
