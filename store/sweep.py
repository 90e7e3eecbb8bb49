"""What is due: lost pokes, terminated runs and stuck ones are found by one indexed query (design: Sweep)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from model.campaign import CampaignKind
from model.passes import PassType
from store.change import pass_type_of
from store.database import ACQUIRE_TIMEOUT_SECONDS, reading, translated

if TYPE_CHECKING:
    from store.database import Pool

_LOCK = 0x7377656570  # "sweep": who sweeps holds this advisory lock


@dataclass(frozen=True)
class DueVm:
    """A VM to poke. `stuck`: no run has claimed it for two minutes, or its run let its claim lapse a minute ago."""

    vm_id: str
    pass_type: PassType
    due_at: datetime
    run_id: str | None
    stuck: bool


async def due_vms(pool: Pool, limit: int, after: DueVm | None = None) -> tuple[DueVm, ...]:
    """Return what is due by Postgres' clock, the longest due first; with `after`, what comes after that one."""
    async with reading(pool) as connection:
        records = await connection.fetch(
            """select id, deleted, first_ready_at, due_at, run_id,
                coalesce(claim_until < now() - interval '1 minute', due_at < now() - interval '2 minutes') as stuck
            from vms where due_at <= now() and ($2::timestamptz is null or (due_at, id) > ($2, $3))
            order by due_at, id limit $1""",
            limit,
            after and after.due_at,
            after and after.vm_id,
        )
    return tuple(
        DueVm(
            vm_id=record["id"],
            pass_type=pass_type_of(record),
            due_at=record["due_at"],
            run_id=record["run_id"],
            stuck=record["stuck"],
        )
        for record in records
    )


@dataclass(frozen=True)
class DueCampaign:
    """A campaign whose run is to be poked. `stuck`: none has looked for two minutes past its time."""

    campaign_id: str
    kind: CampaignKind
    host_id: str | None
    stuck: bool


async def due_campaigns(pool: Pool) -> tuple[DueCampaign, ...]:
    """Return the campaigns that are due, and the drains whose VMs moved on: deleted while held, or back on a host."""
    async with reading(pool) as connection:
        records = await connection.fetch(
            """select id as campaign_id, kind, host_id,
                coalesce(due_at < now() - interval '2 minutes', false) as stuck
            from campaigns c where due_at <= now() or (due_at is null and kind = 'drain' and state <> 'cancelled' and (
                exists (select 1 from vms v where v.held and v.hold_token = c.id and v.deleted)
                or (state = 'done' and policy = 'stop' and exists (
                    select 1 from vms v where v.host_id = c.host_id and not v.deleted and not v.held))))
            order by due_at"""
        )
    return tuple(DueCampaign(**dict(record)) for record in records)


@dataclass(frozen=True)
class DueHost:
    """A host whose sync is to be poked. `stuck`: no run has drawn a number for two minutes past its time."""

    host_id: str
    stuck: bool


async def due_hosts(pool: Pool, limit: int) -> tuple[DueHost, ...]:
    """Return the hosts whose sync is due, the longest due first."""
    async with reading(pool) as connection:
        records = await connection.fetch(
            """select id as host_id, due_at < now() - interval '2 minutes' as stuck
            from hosts where due_at <= now() and status <> 'forgotten' order by due_at, id limit $1""",
            limit,
        )
    return tuple(DueHost(**dict(record)) for record in records)


@asynccontextmanager
async def only_sweeper(pool: Pool) -> AsyncGenerator[bool]:
    """Hold the sweepers' lock for the block; yields False where another process holds it.

    The lock ends with its connection, so a sweeper that dies hands it on.
    """
    with translated():
        async with pool.acquire(timeout=ACQUIRE_TIMEOUT_SECONDS) as connection:
            held = bool(await connection.fetchval("select pg_try_advisory_lock($1)", _LOCK))
            try:
                yield held
            finally:
                if held and not connection.is_closed():
                    await connection.execute("select pg_advisory_unlock($1)", _LOCK)


async def prune(pool: Pool, limit: int = 500) -> int:
    """Remove a small batch of what is kept long enough (A-11), and return how many rows went.

    Operations 90 days, of each VM the last 100 always; ids of gone VMs 30 days; stored answers and claims a day.
    """
    removed = 0
    for statement in _PRUNE:
        async with reading(pool) as connection:
            status = await connection.execute(statement, limit)
        removed += int(status.rsplit(" ", 1)[-1])
    return removed


_PRUNE = (
    """delete from operations where id in (
        select o.id from operations o where o.ended_at < now() - interval '90 days' and (
            select count(*) from operations n where n.vm_id = o.vm_id and n.id > o.id) >= 100 limit $1)""",
    "delete from gone where vm_id in (select vm_id from gone where at < now() - interval '30 days' limit $1)",
    """delete from idempotency where (project, token_id, key) in (
        select project, token_id, key from idempotency where at < now() - interval '1 day' limit $1)""",
    """delete from claims where (vm_id, claim_key) in (
        select c.vm_id, c.claim_key from claims c join vms v on v.id = c.vm_id
        where c.at < now() - interval '1 day' and c.pass_number <> v.pass_number limit $1)""",
)
