"""Campaigns: what is wanted of each, how far it is, and what its runs write (H-D1, H-D3).

How far a campaign is, is read out of its VMs' rows, so that nothing has to be kept in step with them. Everything that a
run writes is void once the campaign is paused or cancelled: it is checked under the lock of the campaign's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import asyncpg

from model.campaign import CampaignFinish, CampaignKind, CampaignLook, CampaignState, DrainPolicy
from model.errors import Conflict, NotFound
from store.audit import Actor, write_audit
from store.campaign_members import MEMBERS
from store.change import WokenVm, find_woken
from store.database import changed, reading, transaction
from store.hold import hold_vms, release_vms

if TYPE_CHECKING:
    from store.database import Connection, Pool

TOLD_VMS = 20
"""So many VMs that failed are named; the number says how many there are."""
HELD_BY = "a drain of its host"
"""Shown to a VM's project, so it names no host."""

_COUNTS = ("creating", "todo", "working", "done", "left", "failed")
_DUE_AFTER = "interval '30 seconds'"


@dataclass(frozen=True)
class Member:
    """A VM of a campaign that something is to be told of. `why`: its project's text, or ours."""

    vm_id: str
    name: str
    why: str | None


@dataclass(frozen=True)
class StoredCampaign:
    """A campaign and how far it is. The counts are those of `model.campaign.CampaignLook`."""

    id: str
    kind: CampaignKind
    host_id: str | None
    policy: DrainPolicy | None
    selector: dict[str, Any] | None
    batch_size: int
    most_failures: int | None
    state: CampaignState
    paused_by: str | None
    made_by: str
    created_at: datetime
    ended_at: datetime | None
    total: int
    creating: int
    todo: int
    working: int
    done: int
    left: int
    failed: int
    failures: tuple[Member, ...]


class CampaignStore:
    """The campaigns, as their runs and their operators see them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def look(self, campaign_id: str) -> CampaignLook | None:
        """Look at the rows of all its VMs, and say that a run lives: the sweep looks after it in half a minute."""
        async with transaction(self._pool) as connection:
            campaign = await connection.fetchrow(
                f"update campaigns set due_at = now() + {_DUE_AFTER} where id = $1 returning *", campaign_id
            )
            if campaign is None:
                return None
            members = await members_of(connection, campaign)
            if campaign["kind"] == "drain":
                await _note_stopped(connection, campaign_id, members)
        ids = {state: [m["vm_id"] for m in members if m["state"] == state] for state in ("todo", "deleted")}
        return CampaignLook(
            **{name: campaign[name] for name in ("state", "batch_size", "most_failures", "wake")},
            **count(members),
            next_ids=tuple(ids["todo"][: campaign["batch_size"]]),
            deleted_ids=tuple(ids["deleted"]),
        )

    async def hold(self, campaign_id: str, vm_ids: tuple[str, ...]) -> tuple[WokenVm, ...]:
        """Hold VMs of a drain that goes on, and have their guests stopped; return whom to poke."""
        async with transaction(self._pool) as connection:
            campaign = await lock_campaign(connection, campaign_id)
            if campaign is None or campaign["state"] in ("paused", "cancelled"):
                return ()
            todo = {m["vm_id"] for m in await members_of(connection, campaign) if m["state"] == "todo"}
            wanted = sorted(todo & set(vm_ids))
            held = await hold_vms(connection, wanted, by=HELD_BY, token=campaign_id, stops=True)
            return await find_woken(connection, held)

    async def let_go(self, campaign_id: str, vm_ids: tuple[str, ...]) -> tuple[WokenVm, ...]:
        """Let go of those of these VMs that were deleted since they were held."""
        async with transaction(self._pool) as connection:
            deleted = await connection.fetch("select id from vms where id = any($1) and deleted", list(vm_ids))
            released = await release_vms(connection, campaign_id, [record["id"] for record in deleted])
            return await find_woken(connection, released)

    async def note_done(self, campaign_id: str) -> None:
        """Note that every VM has had its turn, where that is so still; a host that was drained is `drained` by it."""
        async with transaction(self._pool) as connection:
            campaign = await lock_campaign(connection, campaign_id)
            if campaign is None or campaign["state"] != "running":
                return
            found = count(await members_of(connection, campaign))
            is_drain = campaign["kind"] == "drain"
            if found["creating"] or found["todo"] or found["working"] or (is_drain and found["failed"]):
                return
            if is_drain:
                await connection.execute(
                    "update hosts set status = 'drained' where id = $1 and status = 'draining'", campaign["host_id"]
                )
            await connection.execute("update campaigns set state = 'done', ended_at = now() where id = $1", campaign_id)

    async def pause_itself(self, campaign_id: str) -> None:
        """Pause a campaign of which too many VMs failed; who resumes it has looked."""
        async with reading(self._pool) as connection:
            await connection.execute(
                """update campaigns set state = 'paused', paused_by = 'itself, for what failed'
                where id = $1 and state = 'running'""",
                campaign_id,
            )

    async def finish(self, finish: CampaignFinish) -> bool:
        """End a run with the time of the next one, only if nobody woke the campaign since `wake` was read."""
        async with reading(self._pool) as connection:
            status = await connection.execute(
                """update campaigns set due_at = now() + make_interval(secs => $3)
                where id = $1 and wake = $2""",
                finish.campaign_id,
                finish.wake,
                finish.due_seconds,
            )
        return changed(status) == 1

    async def get(self, campaign_id: str) -> StoredCampaign:
        """Return a campaign and how far it is; raise NotFound."""
        async with transaction(self._pool) as connection:
            campaign = await connection.fetchrow("select * from campaigns where id = $1", campaign_id)
            if campaign is None:
                raise NotFound(f"there is no campaign {campaign_id}")
            return to_campaign(campaign, await members_of(connection, campaign))

    async def drains(self, host_ids: Sequence[str]) -> dict[str, StoredCampaign]:
        """Return the drains that these hosts are under, by host."""
        async with transaction(self._pool) as connection:
            found = await connection.fetch(
                "select * from campaigns where host_id = any($1) and kind = 'drain' and state <> 'cancelled'",
                list(host_ids),
            )
            return {each["host_id"]: to_campaign(each, await members_of(connection, each)) for each in found}

    async def pause(self, campaign_id: str, kind: CampaignKind, actor: Actor) -> None:
        """Begin with no more VMs until it is resumed; those in hand go on, those that are held stay held."""
        await self._set_state(campaign_id, kind, "running", "paused", actor)

    async def resume(self, campaign_id: str, kind: CampaignKind, actor: Actor) -> None:
        """Go on with a campaign that was paused, or paused itself; what has failed by now is put up with."""
        await self._set_state(campaign_id, kind, "paused", "running", actor)

    async def _set_state(
        self, campaign_id: str, kind: CampaignKind, before: CampaignState, after: CampaignState, actor: Actor
    ) -> None:
        name = "drain" if kind == "drain" else "rolling restart"
        async with transaction(self._pool) as connection:
            campaign = await lock_campaign(connection, campaign_id)
            if campaign is None:
                raise NotFound(f"there is no campaign {campaign_id}")
            if campaign["kind"] != kind:
                raise NotFound(f"there is no {name} {campaign_id}")
            if campaign["state"] not in (before, after):
                done = "resumed" if before == "paused" else "paused"
                raise Conflict(f"the {name} is {campaign['state']}: there is nothing to be {done}")
            if campaign["state"] == before:
                failed = count(await members_of(connection, campaign))["failed"] if after == "running" else 0
                await connection.execute(
                    f"""update campaigns set state = $2, paused_by = $3, most_failures = greatest(most_failures,
                        case when most_failures is not null then $4::integer end), {WAKE} where id = $1""",
                    campaign_id,
                    after,
                    actor.name if after == "paused" else None,
                    failed,
                )
                await audit_campaign(connection, actor, campaign, "pause" if after == "paused" else "resume")


WAKE = "wake = wake + 1, due_at = now()"


async def lock_campaign(connection: Connection, campaign_id: str) -> asyncpg.Record | None:
    """Lock a campaign's row; that of its host before, as everything does that writes a host's VMs."""
    await connection.execute(
        """select 1 from hosts where id = (select host_id from campaigns where id = $1 and kind = 'drain')
        for no key update""",
        campaign_id,
    )
    return await connection.fetchrow("select * from campaigns where id = $1 for update", campaign_id)


async def audit_campaign(connection: Connection, actor: Actor, campaign: asyncpg.Record, verb: str) -> None:
    """Write what an operator did to a campaign under the object that it is about."""
    is_drain = campaign["kind"] == "drain"
    subject = f"host/{campaign['host_id']}" if is_drain else f"roll/{campaign['id']}"
    action = f"host.drain.{verb}" if is_drain else f"roll.{verb}"
    await write_audit(connection, actor, project="public", action=action, subject=subject)


async def members_of(connection: Connection, campaign: asyncpg.Record) -> list[asyncpg.Record]:
    """Read how each VM of a campaign stands."""
    return await connection.fetch(MEMBERS[campaign["kind"]], campaign["id"])


async def _note_stopped(connection: Connection, campaign_id: str, members: list[asyncpg.Record]) -> None:
    """Whom the drain has stopped stays so while it is held, also when its host is silent, or is being rebooted."""
    await connection.execute(
        """insert into campaign_vms (campaign_id, vm_id) select $1, unnest($2::text[]) on conflict do nothing""",
        campaign_id,
        [m["vm_id"] for m in members if m["state"] == "done"],
    )


def count(members: list[asyncpg.Record]) -> dict[str, Any]:
    """Count a campaign's VMs by what is done for them; one that was deleted does not count."""
    counts = dict.fromkeys(_COUNTS, 0)
    for member in members:
        if member["state"] in counts:
            counts[member["state"]] += 1
    return {**counts, "total": sum(counts.values())}


def to_campaign(campaign: asyncpg.Record, members: list[asyncpg.Record]) -> StoredCampaign:
    """Make a StoredCampaign of its row and its VMs."""
    names = StoredCampaign.__dataclass_fields__.keys() & set(campaign.keys())
    plain: dict[str, Any] = {name: campaign[name] for name in names}
    failures = [Member(m["vm_id"], m["name"], m["why"]) for m in members if m["state"] == "failed"]
    return StoredCampaign(**plain, **count(members), failures=tuple(failures[:TOLD_VMS]))
