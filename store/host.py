"""Hosts: enrolled, known by their credential, listed with what they reported (H-E2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import asyncpg

from model.capacity import Entitlement
from model.errors import Conflict, NotFound, Unauthenticated
from model.report import HostReport
from model.sync import Synced
from store.audit import Actor, write_audit
from store.database import reading, transaction
from store.fleet import BELOW_FLOOR
from store.room import HELD, held_of
from store.vm import GONE_FOR

if TYPE_CHECKING:
    from store.database import Pool

_COLUMNS = (
    *("id", "name", "labels", "status", "key_version", "instance_id", "machine_id", "boot_id", "worker_version"),
    *(
        "activity_names",
        "report_number",
        "last_report_at",
        "state_lost_at",
        "rolled_back_at",
        "joined_at",
        "maintenance_until",
        "credential_revoked_at",
    ),
    "forgotten_at",
)
_SELECT = f"""select {", ".join(f"h.{name}" for name in _COLUMNS)}, h.report, host_is_silent(h) as silent,
    (select f.min_worker_version from fleet f where {BELOW_FLOOR}) as floor, h.synced,
    (select count(*) from vms v where v.host_id = h.id and not v.deleted) as vms,
    (select count(*) from vms v where v.host_id = h.id and v.deleted) as vms_deleted,
    (select count(*) from volumes o where o.host_id = h.id) as volumes,
    (select count(*) from jsonb_array_elements(h.foreign_vms) f where f ->> 'choice' = 'braked') as vms_braked,
    (select count(*) from jsonb_array_elements(h.foreign_vms) f where f ->> 'placed_on' <> '') as vms_misplaced, held.*
from hosts h cross join lateral ({HELD}) held"""


@dataclass(frozen=True)
class StoredHost:
    """A host. `report` is the last one, without its VMs; `silent` is computed now (H-S10).

    `floor`: the fleet's, where the host is below it (H-S5).
    `vms_braked` have no row and wait for an operator's choice, of `vms_misplaced` the row names another host (H-R2).
    `live` and `leaving` are what the rows of its VMs hold: of those that live, and of those being deleted (H-P3).
    """

    id: str
    name: str
    labels: Mapping[str, str]
    status: str
    key_version: int
    instance_id: str | None
    machine_id: str | None
    boot_id: str | None
    worker_version: str | None
    activity_names: tuple[str, ...]
    report_number: int
    last_report_at: datetime | None
    state_lost_at: datetime | None
    rolled_back_at: datetime | None
    joined_at: datetime
    maintenance_until: datetime | None
    credential_revoked_at: datetime | None
    forgotten_at: datetime | None
    report: HostReport | None
    silent: bool
    floor: str | None
    synced: Synced
    vms: int
    vms_deleted: int
    volumes: int
    vms_braked: int
    vms_misplaced: int
    live: Entitlement
    leaving: Entitlement
    leaving_vms: int
    leaving_until: datetime | None


@dataclass(frozen=True)
class KnownHost:
    """Whose credential it is. One that was given up may only report, and be told to stop what it runs (L-R10).

    `renew`: the credential ends within 30 days, or nobody knows when: the host is to renew it (S-40).
    """

    id: str
    name: str
    key_version: int
    credential_hash: bytes
    renew: bool
    forgotten: bool = False
    instance_id: str | None = None


HOST_ID = """(select id from hosts where id = $1 or name = $1
    order by id = $1 desc, status = 'forgotten', forgotten_at desc limit 1)"""
"""The id of the host that $1 is, or is called; one that was given up may share its name."""


class HostStore:
    """The hosts."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def by_credential(self, credential_hash: bytes, *, forgotten: bool = False) -> KnownHost | None:
        """Return the host of a credential by its SHA-256, or None; `forgotten`: also one that was given up.

        Raise Unauthenticated, with what to do, for one that was revoked or has expired. The use of a renewed credential
        ends the one before it (S-40).
        """
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                """select id, name, key_version, instance_id, status = 'forgotten' as forgotten,
                    credential_revoked_at is not null as revoked,
                    status <> 'forgotten' and credential_until <= now() as expired,
                    credential_until is null or credential_until < now() + interval '30 days' as renew,
                    credential_hash = $1 and former_credential_hash is not null as renewed
                from hosts
                where (credential_hash = $1 or former_credential_hash = $1) and ($2 or status <> 'forgotten')""",
                credential_hash,
                forgotten,
            )
            if record is None:
                return None
            if record["revoked"] or record["expired"]:
                what = "was revoked" if record["revoked"] else "has expired"
                raise Unauthenticated(
                    f"the credential of host {record['name']} {what}: `hostler host replace {record['name']}` lets it "
                    "join again"
                )
            if record["renewed"]:
                await connection.execute(
                    "update hosts set former_credential_hash = null where credential_hash = $1", credential_hash
                )
        named = {name: record[name] for name in ("id", "name", "key_version", "renew", "forgotten", "instance_id")}
        return KnownHost(credential_hash=credential_hash, **named)

    async def get(self, host: str) -> StoredHost:
        """Return a host by its id or its name, which one that was given up may share; raise NotFound."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(f"{_SELECT} where h.id = {HOST_ID}", host)
        if record is None:
            raise NotFound(f"there is no host {host}")
        return _to_host(record)

    async def list(self, *, limit: int = 100, after: str | None = None) -> tuple[StoredHost, ...]:
        """List hosts by id, from the one above the id `after` on; those given up for 30 days."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                f"""{_SELECT} where ($1::text is null or h.id > $1)
                    and (h.status <> 'forgotten' or h.forgotten_at is null or h.forgotten_at > now() - {GONE_FOR})
                order by h.id limit $2""",
                after,
                limit,
            )
        return tuple(_to_host(record) for record in records)

    async def count(self) -> tuple[int, int]:
        """Return how many hosts there are and how many of them are silent: all that a project may know (A-2)."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                """select count(*) as hosts,
                    count(*) filter (where host_is_silent(h) and not silence_is_expected(h)) as silent
                from hosts h where status <> 'forgotten'"""
            )
        return (record["hosts"], record["silent"]) if record else (0, 0)

    async def cordon(self, host: str, actor: Actor) -> StoredHost:
        """Let nothing new come to a host; raise Conflict for one that is drained, or in maintenance (H-E2)."""
        return await self._set_status(host, "cordoned", "host.cordon", actor)

    async def uncordon(self, host: str, actor: Actor) -> StoredHost:
        """Let new VMs come to a host again, maintenance over; one that has not reported yet goes on joining."""
        return await self._set_status(host, "ready", "host.uncordon", actor)

    async def label(self, host: str, labels: Mapping[str, str], actor: Actor) -> StoredHost:
        """Give a host these labels, and none besides; VMs that are there stay (H-P1)."""
        known = await self.get(host)
        async with transaction(self._pool) as connection:
            before = await connection.fetchval("select labels from hosts where id = $1 for update", known.id)
            if before != labels:
                await connection.execute("update hosts set labels = $2 where id = $1", known.id, dict(labels))
                told = {"before": {"labels": before}, "after": {"labels": dict(labels)}}
                await write_audit(
                    connection, actor, project="public", action="host.label", subject=f"host/{known.id}", **told
                )
        return await self.get(known.id)

    async def _set_status(self, host: str, status: str, action: str, actor: Actor) -> StoredHost:
        known = await self.get(host)
        async with transaction(self._pool) as connection:
            before = await connection.fetchval("select status from hosts where id = $1 for update", known.id)
            ends = ("joining", "ready", "cordoned", *(("maintenance",) if status == "ready" else ()))
            if before not in ends:
                raise Conflict(f"the host {known.name} is {before}: end that first")
            after = await connection.fetchval(
                """update hosts set status = case when $2 = 'ready' and instance_id is null then 'joining' else $2 end
                where id = $1 returning status""",
                known.id,
                status,
            )
            if after != before:
                told = {"before": {"status": before}, "after": {"status": after}}
                await write_audit(
                    connection, actor, project="public", action=action, subject=f"host/{known.id}", **told
                )
        return await self.get(known.id)


def _to_host(record: asyncpg.Record) -> StoredHost:
    plain: dict[str, Any] = {name: record[name] for name in _COLUMNS}
    plain["activity_names"] = tuple(plain["activity_names"])
    report = HostReport.model_validate(record["report"]) if record["report"] else None
    return StoredHost(
        **plain,
        report=report,
        silent=record["silent"],
        floor=record["floor"],
        synced=Synced.model_validate(record["synced"]),
        vms=record["vms"],
        vms_deleted=record["vms_deleted"],
        volumes=record["volumes"],
        vms_braked=record["vms_braked"],
        vms_misplaced=record["vms_misplaced"],
        **held_of(record),
    )
