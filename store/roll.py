"""Restart VMs one batch after the other, over the fleet, a host or those with given labels (H-D3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.errors import Conflict, HostlerError, NotFound
from model.ids import new_id
from model.vm import Phase
from store.audit import Actor, write_audit
from store.campaign import WAKE, StoredCampaign, audit_campaign, lock_campaign, members_of, to_campaign
from store.change import WokenVm, find_woken, lock_vm, refuse_unless_changeable
from store.database import transaction
from store.host import HOST_ID
from store.vm_change import restart_locked

if TYPE_CHECKING:
    from store.database import Connection, Pool

LISTED = 50


class RollStore:
    """Begin, list and cancel rolling restarts; what goes on in between is a campaign."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def begin(
        self, *, labels: dict[str, str], host: str | None, batch_size: int, most_failures: int, actor: Actor
    ) -> str:
        """Take up the VMs that are wanted running now, and return the campaign's id; raise Conflict without any."""
        campaign_id = new_id()
        async with transaction(self._pool) as connection:
            host_id = None if host is None else await _find_host(connection, host)
            await connection.execute(
                """insert into campaigns (id, kind, host_id, selector, batch_size, most_failures, made_by)
                values ($1, 'roll', $2, $3, $4, $5, $6)""",
                campaign_id,
                host_id,
                labels,
                batch_size,
                most_failures,
                actor.name,
            )
            taken = await connection.fetch(
                """insert into campaign_vms (campaign_id, vm_id) select $1, v.id from vms v
                where not v.deleted and v.power_state = 'running' and ($2::text is null or v.host_id = $2)
                    and v.labels @> $3 returning vm_id""",
                campaign_id,
                host_id,
                labels,
            )
            if not taken:
                raise Conflict("no VM that is wanted running is meant by this; see `hostler vm ls`")
            after = {"labels": labels, "host": host_id, "vms": len(taken), "batch_size": batch_size}
            subject = f"roll/{campaign_id}"
            await write_audit(connection, actor, project="public", action="roll.begin", subject=subject, after=after)
        return campaign_id

    async def restart(self, campaign_id: str, vm_ids: tuple[str, ...]) -> tuple[WokenVm, ...]:
        """Ask for the restart of those of these VMs that had none yet; return whom to poke.

        One that cannot be restarted now, or had failed before, is passed over with the reason.
        """
        asked: list[str] = []
        async with transaction(self._pool) as connection:
            campaign = await lock_campaign(connection, campaign_id)
            if campaign is None or campaign["state"] != "running":
                return ()
            todo = {m["vm_id"] for m in await members_of(connection, campaign) if m["state"] == "todo"}
            for vm_id in sorted(todo & set(vm_ids)):
                operation_id, skipped = await _restart(connection, vm_id, Actor(campaign["made_by"]))
                await connection.execute(
                    "update campaign_vms set operation_id = $3, skipped = $4 where campaign_id = $1 and vm_id = $2",
                    campaign_id,
                    vm_id,
                    operation_id,
                    skipped,
                )
                if operation_id is not None:
                    asked.append(vm_id)
            return await find_woken(connection, tuple(asked))

    async def cancel(self, campaign_id: str, actor: Actor) -> None:
        """Begin no more restarts; those that were asked for are done. Raise Conflict for one that is over."""
        async with transaction(self._pool) as connection:
            campaign = await lock_campaign(connection, campaign_id)
            if campaign is None or campaign["kind"] != "roll":
                raise NotFound(f"there is no rolling restart {campaign_id}")
            if campaign["state"] == "cancelled":
                return
            if campaign["state"] == "done":
                raise Conflict("the rolling restart is done: there is nothing to be cancelled")
            await connection.execute(
                f"update campaigns set state = 'cancelled', ended_at = now(), {WAKE} where id = $1", campaign_id
            )
            await audit_campaign(connection, actor, campaign, "cancel")

    async def list(self) -> tuple[StoredCampaign, ...]:
        """List the newest rolling restarts."""
        async with transaction(self._pool) as connection:
            found = await connection.fetch(
                "select * from campaigns where kind = 'roll' order by id desc limit $1", LISTED
            )
            return tuple([to_campaign(each, await members_of(connection, each)) for each in found])


async def _find_host(connection: Connection, host: str) -> str:
    host_id = await connection.fetchval(f"select {HOST_ID}", host)
    if host_id is None:
        raise NotFound(f"there is no host {host}")
    return str(host_id)


async def _restart(connection: Connection, vm_id: str, actor: Actor) -> tuple[str | None, str | None]:
    """Return the operation that the restart is, or why there is none."""
    try:
        record = await lock_vm(connection, None, vm_id, None)
        refuse_unless_changeable(record)
        if record["phase"] == Phase.FAILED:
            return None, "it had failed before"
        accepted = await restart_locked(connection, record, actor)
    except HostlerError as error:
        return None, error.detail
    return accepted.operation_id, None
