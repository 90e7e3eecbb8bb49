"""Hosts are reserved under their row's lock: no cap is passed, nobody waits for ever, nothing is left behind (H-P6)."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model.capacity import Caps, Entitlement
from model.errors import Conflict, NoRoom, Unavailable
from model.generations import VmChange
from model.placement import Policy
from store.audit import Actor
from store.database import Pool, open_pool, reading
from store.host import HostStore
from store.placement import Placing, view_hosts
from store.vm_change import VmChanges
from store.vm_create import create_vm
from tests.fixtures.rows import add_host, add_vm, new_vm, vm_spec
from tests.store.test_host_report import report

ACTOR = Actor("test")
HOSTS, ROOM, ASKED = 5, 24, 200


def told(caps: Caps | None) -> dict[str, Any]:
    return report(1, caps=caps).model_dump(mode="json", exclude={"vms"})


async def add_capped(pool: Pool, name: str, **caps: int) -> str:
    return await add_host(pool, name=name, report=told(Caps(**caps)), worker_version="1.0.0")


async def stopped_vm(pool: Pool, host_id: str, **columns: Any) -> str:
    seen = {"power_state": "stopped", "observed_power_state": "stopped", "observed_instance": "one"}
    return await add_vm(pool, host_id, **{"first_ready_at": datetime.now(UTC), "disk_gib": 2, **seen, **columns})


async def count(pool: Pool) -> list[int]:
    tables = ("vms", "operations", "audit")
    return [await pool.fetchval(f"select count(*) from {table}") for table in tables]


async def test_two_hundred_creates_at_once_fill_five_hosts_exactly(pool: Pool, database_url: str) -> None:
    """H-P6, case G6: room for 120 of 200: 24 on each, the rest refused with every host's reason; no deadlock."""
    for number in range(HOSTS):
        await add_capped(pool, f"h{number}", max_memory_mib=ROOM * 512)
    wide = await open_pool(database_url, largest=16)
    before = await pool.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
    places = asyncio.Semaphore(16)

    async def create() -> Exception | None:
        async with places:
            try:
                await create_vm(wide, new_vm("").model_copy(update={"host_id": None}), ACTOR)
            except NoRoom as error:
                return error
        return None

    try:
        answers = await asyncio.gather(*(create() for _ in range(ASKED)))
    finally:
        await wide.close()
    refused = [answer.detail for answer in answers if isinstance(answer, NoRoom)]
    assert len(refused) == ASKED - HOSTS * ROOM
    for name in range(HOSTS):
        assert all(
            f"h{name} (" in each and "memory: needs 512 MiB, holds 12288 of 12288 MiB" in each for each in refused
        )
    placed = Counter(record["host_id"] for record in await pool.fetch("select host_id from vms"))
    assert set(placed.values()) == {ROOM}
    assert await count(pool) == [HOSTS * ROOM] * 3
    after = await pool.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
    assert after == before


async def test_a_refused_create_leaves_nothing_behind(pool: Pool) -> None:
    """H-P4: no row, name, operation or audit entry; and the name is free for the next one."""
    host_id = await add_capped(pool, "h1", max_memory_mib=512)
    for named in (host_id, None):
        with pytest.raises(NoRoom, match="memory: needs 1024 MiB, holds 0 of 512 MiB; its operator set that limit"):
            await create_vm(pool, named_vm(named, name="web", spec=vm_spec(memory_mib=1024)), ACTOR)
    assert await count(pool) == [0, 0, 0]
    assert (await create_vm(pool, named_vm(host_id, name="web"), ACTOR)).changed


def named_vm(host_id: str | None, **changed: Any):
    return new_vm("", **changed).model_copy(update={"host_id": host_id})


async def test_name_and_id_are_refused_before_the_host(pool: Pool) -> None:
    """H-P6: the order of refusals."""
    host_id = await add_capped(pool, "h1", max_memory_mib=512)
    await create_vm(pool, named_vm(host_id, name="web", vm_id="one"), ACTOR)
    await HostStore(pool).cordon("h1", ACTOR)
    with pytest.raises(Conflict, match="the name web is held by the live VM one"):
        await create_vm(pool, named_vm(host_id, name="web"), ACTOR)
    with pytest.raises(Conflict, match="another specification"):
        await create_vm(pool, named_vm(host_id, name="other", vm_id="one"), ACTOR)
    with pytest.raises(Conflict, match="is cordoned"):
        await create_vm(pool, named_vm(host_id), ACTOR)
    await HostStore(pool).uncordon("h1", ACTOR)
    with pytest.raises(NoRoom):
        await create_vm(pool, named_vm(host_id), ACTOR)


async def test_what_rows_hold_is_what_the_ledger_holds(pool: Pool) -> None:
    """H-P3, H-A1: live and being deleted apart; what the host refused, or never had, is held by nobody."""
    host_id = await add_capped(pool, "h1")
    until = datetime(2030, 1, 1, tzinfo=UTC)
    leaves = {
        "deleted": True,
        "quarantine_kind": "tombstone",
        "quarantine_since": until,
        "quarantine_grace": timedelta(hours=1),
        "destroy_at": until,
    }
    await add_vm(pool, host_id, disk_gib=2)
    await add_vm(pool, host_id, disk_gib=4, waiting_for="refused")
    await add_vm(pool, host_id, disk_gib=4, **leaves)
    await add_vm(pool, host_id, disk_gib=8, ssh_host_key="key", **leaves)
    later = {**leaves, "destroy_at": until + timedelta(hours=1)}
    await add_vm(pool, host_id, disk_gib=16, ssh_host_key="key", quarantine_stopped_at=until, **later)
    async with reading(pool) as connection:
        (view,) = await view_hosts(connection)
    assert view.live == Entitlement(cpu_millicores=1000, memory_mib=512, disk_gib=2)
    assert view.leaving == Entitlement(cpu_millicores=1000, memory_mib=512, disk_gib=24)
    assert (view.leaving_vms, view.leaving_until) == (2, until + timedelta(hours=1))


async def test_a_host_is_chosen_among_those_that_take_it(pool: Pool) -> None:
    """H-P1, H-P8, case G8: by its load; none visible is no want of room."""
    with pytest.raises(Unavailable, match="no host is visible"):
        await create_vm(pool, named_vm(None), ACTOR)
    full, empty = await add_capped(pool, "a", max_memory_mib=1024), await add_capped(pool, "b", max_memory_mib=1024)
    await add_host(pool, name="c", status="cordoned")
    await add_host(pool, name="d", status="joining", last_report_at=None)
    await add_vm(pool, full)
    made = await create_vm(pool, named_vm(None), ACTOR)
    assert await pool.fetchval("select host_id from vms where id = $1", made.vm_id) == empty
    packed = await create_vm(pool, named_vm(None), ACTOR, Placing(Policy(strategy="pack")))
    assert await pool.fetchval("select host_id from vms where id = $1", packed.vm_id) == full


@pytest.mark.parametrize("caps", [{}, {"max_memory_mib": 4096}])
async def test_case_g6_a_group_in_parallel_is_spread_over_the_hosts(
    pool: Pool, database_url: str, caps: dict[str, int]
) -> None:
    """H-P1, case G6: one on each host, as long as there is one without; one more is not refused."""
    for name in ("a", "b", "c"):
        await add_capped(pool, name, **caps)
    wide = await open_pool(database_url, largest=3)

    async def create(**changes: Any) -> str:
        new = named_vm(None, anti_affinity_group="web", **changes)
        return (await create_vm(wide, new, ACTOR, Placing(Policy(strategy="pack")))).vm_id

    try:
        await create(project="other")
        apart = await asyncio.gather(*(create() for _ in range(3)))
        placed = await pool.fetch("select host_id from vms where id = any($1)", apart)
        assert len({record["host_id"] for record in placed}) == 3
        await create()
    finally:
        await wide.close()


async def test_an_increase_passes_the_hosts_caps_again(pool: Pool) -> None:
    """L-V8, H-P2: its own part does not count; a decrease is never judged; a project reads its wish alone (S-32)."""
    host_id = await add_capped(pool, "h1", max_memory_mib=2048, max_disk_gib=4)
    vm_id = await stopped_vm(pool, host_id, spec=vm_spec(disk_gib=2).model_dump(mode="json"), project="p")
    await add_vm(pool, host_id)
    changes = VmChanges(pool)
    with pytest.raises(NoRoom) as refused:
        await changes.change(None, vm_id, VmChange(memory_mib=1537, disk_gib=5), ACTOR)
    assert refused.value.detail == (
        f"host h1 ({host_id}) refuses: memory: needs 1537 MiB, holds 512 of 2048 MiB; disk: needs 5 GiB, holds 0 of 4 "
        "GiB; its operator set that limit: ask for less, delete a VM there, or go elsewhere"
    )
    with pytest.raises(NoRoom) as refused:
        await changes.change("p", vm_id, VmChange(memory_mib=1537), ACTOR)
    assert refused.value.detail == "its host refuses: memory: needs 1537 MiB"
    assert (await changes.change(None, vm_id, VmChange(memory_mib=1536, disk_gib=4), ACTOR)).changed
    await pool.execute("update hosts set report = $1", told(Caps(max_memory_mib=64)))
    assert (await changes.change(None, vm_id, VmChange(memory_mib=1024), ACTOR)).changed


async def test_a_cordon_holds_until_it_is_lifted(pool: Pool) -> None:
    """H-P1, H-E2: a report changes nothing of it; one that never reported goes on joining."""
    store = HostStore(pool)
    fresh = await add_host(pool, name="h1", status="joining", instance_id=None)
    assert (await store.cordon("h1", ACTOR)).status == "cordoned"
    assert (await store.uncordon("h1", ACTOR)).status == "joining"
    await pool.execute("update hosts set status = 'draining' where id = $1", fresh)
    with pytest.raises(Conflict, match="draining"):
        await store.cordon("h1", ACTOR)
