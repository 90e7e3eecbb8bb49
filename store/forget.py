"""Give up a host that is dead: what its rows hold is released, and what it still runs is stopped if it returns (L-R10).

The rows move to their entries in `gone`, so nothing counts them any more. The fence is one pass number for the host,
drawn after every order that was ever sent there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg

from model.errors import Conflict, FieldError, Invalid, NotFound
from store.audit import Actor, write_audit
from store.certificate import revoke_certificates
from store.database import reading, transaction
from store.operation import end_operations
from store.vm import GONE_FOR

if TYPE_CHECKING:
    from store.database import Connection, Pool

SILENT_FOR = timedelta(minutes=10)

_LOCK = """
select h.*, host_is_silent(h) as silent, f.heard_at >= now() - interval '30 seconds' as hearing,
    greatest(coalesce(h.last_report_at, h.joined_at), f.hearing_since) < now() - $2::interval as long_enough
from hosts h cross join fleet f where h.id = $1 for update of h"""


@dataclass(frozen=True)
class ForgottenVm:
    """What is kept of a VM whose host was given up."""

    id: str
    project: str
    name: str
    power_state: str
    deleted: bool
    at: datetime


async def forget_host(pool: Pool, host_id: str, typed_name: str, actor: Actor) -> None:
    """Give up a host and all VMs on it; raise Invalid for another name than its own, Conflict where it may live.

    A pass that is under way finds no row and ends.
    """
    async with transaction(pool) as connection:
        host = await connection.fetchrow(_LOCK, host_id, SILENT_FOR)
        if host is None:
            raise NotFound(f"there is no host {host_id}")
        _refuse(host, typed_name)
        fence, vm_ids = await release_vms(connection, actor, host_id)
        volumes = await connection.fetch("delete from volumes where host_id = $1 returning id", host_id)
        await connection.execute(
            "update hosts set status = 'forgotten', forgotten_at = now(), forgotten_pass = $2 where id = $1",
            host_id,
            fence,
        )
        await write_audit(
            connection,
            actor,
            project="public",
            action="host.forget",
            subject=f"host/{host_id}",
            before={"name": host["name"], "status": host["status"]},
            after={"status": "forgotten", "pass": fence, "vms": vm_ids, "volumes": [each["id"] for each in volumes]},
        )


async def list_forgotten(
    pool: Pool, host_id: str, *, limit: int = 100, after: str | None = None
) -> tuple[ForgottenVm, ...]:
    """List what is kept of the VMs of a host that was given up, by id, from the one above `after` on."""
    async with reading(pool) as connection:
        records = await connection.fetch(
            f"""select vm_id as id, project, name, forgotten ->> 'power_state' as power_state,
                (forgotten ->> 'deleted')::boolean as deleted, at
            from gone where host_id = $1 and forgotten is not null and at > now() - {GONE_FOR}
                and ($2::text is null or vm_id > $2) order by vm_id limit $3""",
            host_id,
            after,
            limit,
        )
    return tuple(ForgottenVm(**dict(record)) for record in records)


def _refuse(host: asyncpg.Record, typed_name: str) -> None:
    """Raise what keeps a host from being given up: the wrong name, or that it may be alive."""
    name, heard_at = host["name"], host["last_report_at"]
    if typed_name != name:
        text = f"the host is called {name}: give exactly this name to give it up with all VMs on it"
        raise Invalid(f"name: {text}", errors=(FieldError("/name", text),))
    if host["status"] == "forgotten":
        raise Conflict(f"the host {name} was given up at {host['forgotten_at']:%Y-%m-%dT%H:%M:%SZ} already")
    if host["silent"] and host["long_enough"]:
        return
    minutes = SILENT_FOR // timedelta(minutes=1)
    rule = f"a host is given up only after {minutes} minutes of silence that the control plane could hear"
    if host["silent"]:
        since = f"silent since {heard_at:%Y-%m-%dT%H:%M:%SZ}" if heard_at else "one that has never reported"
        raise Conflict(f"the host {name} is {since}, which is not long enough: {rule}; try again then")
    if not host["hearing"]:
        raise Conflict(f"nobody hears hosts now, so nobody knows whether {name} is dead: {rule}")
    raise Conflict(
        f"the host {name} is not known to be dead, it reported at {heard_at:%Y-%m-%dT%H:%M:%SZ}: {rule}; "
        "one that lives is cordoned and emptied instead"
    )


async def release_vms(
    connection: Connection, actor: Actor, host_id: str, *, vm_id: str | None = None
) -> tuple[int, list[str]]:
    """Give up a host's VMs, or one: what they hold is free, their rows are kept beside. Return fence and ids."""
    fence: int = await connection.fetchval("select nextval('pass')")
    where = "host_id = $1 and ($2::text is null or id = $2)"
    vms = await connection.fetch(f"select id, project from vms where {where} order by id for update", host_id, vm_id)
    await connection.execute(
        f"""insert into gone (vm_id, project, name, host_id, pass_number, forgotten)
        select v.id, v.project, v.name, v.host_id, $3, to_jsonb(v) from vms v where {where}
        on conflict (vm_id) do update set project = excluded.project, name = excluded.name, at = now(),
            host_id = excluded.host_id, pass_number = excluded.pass_number, forgotten = excluded.forgotten""",
        host_id,
        vm_id,
        fence,
    )
    for vm in vms:
        await revoke_certificates(connection, vm["id"])
        await end_operations(connection, vm["id"], "gone")
        await write_audit(connection, actor, project=vm["project"], action="vm.forget", subject=f"vm/{vm['id']}")
    await connection.execute(f"delete from vms where {where}", host_id, vm_id)
    return fence, [vm["id"] for vm in vms]
