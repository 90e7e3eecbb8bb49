"""Who is woken when a host has room again: the oldest that fits, one at a time (L-C3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model.capacity import Caps, Entitlement
from model.passes import ClaimRequest, PassRef, StepNote
from model.vm import Phase
from store.audit import Actor
from store.database import Pool
from store.host_report import store_report
from store.passes import PassStore
from store.vm_change import VmChanges
from tests.fixtures.rows import add_host, add_vm, vm_spec
from tests.store.test_host_report import report

CAPS = Caps(max_memory_mib=4096)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def host_id(pool: Pool) -> str:
    return await add_host(pool, instance_id="one", machine_id="m", report_number=1)


async def tell(
    pool: Pool, host_id: str, number: int, held_mib: int, caps: Caps | None = CAPS, **told: Any
) -> list[str]:
    """Take a report of what the host's ledger holds; return who is woken by it."""
    whole = report(number, caps=caps, held=Entitlement(memory_mib=held_mib), **told)
    return [poke.vm_id for poke in (await store_report(pool, host_id, whole)).pokes]


async def add(pool: Pool, host_id: str, vm_id: str, memory_mib: int, **columns: Any) -> str:
    spec = vm_spec(memory_mib=memory_mib, disk_gib=1).model_dump(mode="json")
    return await add_vm(pool, host_id, id=vm_id, **{"spec": spec, "due_at": None, "disk_gib": 1, **columns})


async def add_refused(pool: Pool, host_id: str, vm_id: str, memory_mib: int, age: int, **columns: Any) -> str:
    since = {"created_at": BEGAN - timedelta(minutes=age), "waiting_since": datetime.now(UTC)}
    return await add(pool, host_id, vm_id, memory_mib, phase="failed", waiting_for="refused", **since, **columns)


async def test_the_oldest_that_fits_one_at_a_time(pool: Pool, host_id: str) -> None:
    """L-C3: one that can't fit keeps no younger one waiting, and nobody is woken while one is on its way."""
    await add(pool, host_id, "lives", 2048, phase="ready", first_ready_at=BEGAN)
    await add_refused(pool, host_id, "young", 1024, age=1)
    await add_refused(pool, host_id, "large", 4096, age=3)
    await add_refused(pool, host_id, "old", 1024, age=2)
    assert await tell(pool, host_id, 2, 4096) == [], "the host holds more than the rows say"
    assert await tell(pool, host_id, 3, 2048) == ["old"]
    assert await tell(pool, host_id, 4, 2048) == [], "the one that was woken has not been judged yet"
    store = PassStore(pool)
    row = await store.claim(ClaimRequest(vm_id="old", run_id="run"))
    assert row is not None
    number = row.status.pass_number
    await store.begin_step(StepNote(vm_id="old", pass_number=number, step=1, phase=Phase.CREATING, words="preparing"))
    assert await tell(pool, host_id, 5, 3072) == ["young"], "beside the one before, as the rows know"


async def test_caps_that_rise_wake_and_none_wakes_all_in_turn(pool: Pool, host_id: str) -> None:
    """L-C3, H-S8."""
    await add_refused(pool, host_id, "one", 8192, age=2)
    assert await tell(pool, host_id, 2, 0) == []
    assert await tell(pool, host_id, 3, 0, Caps(max_memory_mib=8192)) == ["one"]


async def test_it_is_woken_by_the_end_of_another_vm(pool: Pool, host_id: str) -> None:
    """L-C3, L-R6: the host's report may come before the row's end: whichever is last wakes."""
    await add(pool, host_id, "leaves", 4096, ssh_host_key="key", first_ready_at=BEGAN)
    await add_refused(pool, host_id, "waits", 1024, age=1)
    await VmChanges(pool).delete(None, "leaves", Actor("test"), grace=timedelta(0))
    assert await tell(pool, host_id, 2, 0) == [], "its row says that it may still run"
    store = PassStore(pool)
    row = await store.claim(ClaimRequest(vm_id="leaves", run_id="run"))
    assert row is not None
    await store.note_stopped(PassRef(vm_id="leaves", pass_number=row.status.pass_number))
    due = await pool.fetchval("select due_at <= now() from vms where id = 'waits'")
    assert due is True


async def test_a_refusal_that_cannot_be_foreseen_is_tried_once_a_minute(pool: Pool, host_id: str) -> None:
    """L-C3: a root disk as large as its image is judged by the host alone."""
    await add_refused(pool, host_id, "one", 1024, age=1, disk_gib=None)
    assert await tell(pool, host_id, 2, 0) == []
    await pool.execute("update vms set waiting_since = now() - interval '2 minutes'")
    assert await tell(pool, host_id, 3, 0) == ["one"]


async def test_what_the_host_holds_of_it_already_does_not_count_against_it(pool: Pool, host_id: str) -> None:
    """L-C3, H-A2: an earlier attempt was admitted, then more was asked for: only its host knows how much more."""
    await add_refused(pool, host_id, "one", 4096, age=2, ssh_host_key="key")
    await pool.execute("update vms set waiting_since = now() - interval '2 minutes'")
    await add(pool, host_id, "lives", 2048, phase="ready", first_ready_at=BEGAN)
    assert await tell(pool, host_id, 2, 4096) == [], "the other one is still there"
    await pool.execute("delete from vms where id = 'lives'")
    assert await tell(pool, host_id, 3, 2048) == ["one"]


async def test_a_cap_that_is_exceeded_already_keeps_no_rebuild_waiting(pool: Pool, host_id: str) -> None:
    """L-C3, H-P7: a cap that was lowered touches what is held as little as the host itself judges it (H-A2)."""
    spec = {"first_ready_at": BEGAN, "ssh_host_key": "key"}
    await add_refused(pool, host_id, "one", 8192, age=2, **spec)
    await pool.execute("update vms set waiting_since = now() - interval '2 minutes'")
    caps = Caps(max_memory_mib=4096, max_disk_gib=1)
    assert await tell(pool, host_id, 2, 8192, caps) == ["one"]


async def test_a_host_that_comes_back_wakes_whom_it_refused_only_when_it_has_room(pool: Pool, host_id: str) -> None:
    """L-C3, H-S12: also then one at a time."""
    await add_refused(pool, host_id, "one", 8192, age=2)
    await add(pool, host_id, "other", 1024, phase="failed")
    await pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 day'")
    await pool.execute("update hosts set last_report_at = now() - interval '1 hour'")
    await tell(pool, host_id, 2, 0)
    due = await pool.fetch("select id from vms where due_at is not null")
    assert [record["id"] for record in due] == ["other"]


async def test_a_host_without_room_for_a_disk_is_not_tried_again_at_every_report(pool: Pool, host_id: str) -> None:
    """L-C3, H-A4: without disk overcommit the host says how much its ledger lets disks take."""
    await add_refused(pool, host_id, "one", 1024, age=1, disk_gib=8)
    assert await tell(pool, host_id, 2, 0, Caps(), disk_room_gib=7) == []
    assert await tell(pool, host_id, 3, 0, Caps(), disk_room_gib=8) == ["one"]
