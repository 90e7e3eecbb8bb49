"""The audit trail: who changed what, from where, written in the change's own transaction (S-37). Never a secret.

Each entry is chained to the one before by the database itself; whoever keeps a hash elsewhere can tell later that
nothing before it was changed or taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from model.errors import NotFound
from store.database import reading

if TYPE_CHECKING:
    from store.database import Connection, Pool


@dataclass(frozen=True)
class Actor:
    """Who acts: a token's id, `guest`, `operator` …; `origin`: the address that the request came from."""

    name: str
    origin: str | None = None


@dataclass(frozen=True)
class AuditEntry:
    """One entry of the trail."""

    number: int
    at: datetime
    project: str
    actor: str
    origin: str | None
    action: str
    object: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def id(self) -> str:
        return str(self.number)


@dataclass(frozen=True)
class AuditCheck:
    """Up to which position the chain holds, and its hash there. `broken`: the first entry that does not fit."""

    position: int
    hash: bytes | None
    broken: str | None


async def write_audit(
    connection: Connection,
    actor: Actor,
    *,
    project: str,
    action: str,
    subject: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Add an entry. `subject` names the object (`vm/<id>`); before and after hold what differs."""
    await connection.execute(
        """insert into audit (project, actor, origin, action, object, before, after)
        values ($1, $2, $3, $4, $5, $6, $7)""",
        project,
        actor.name,
        actor.origin,
        action,
        subject,
        before,
        after,
    )


async def list_audit(
    pool: Pool,
    project: str | None,
    *,
    subject: str | None = None,
    actor: str | None = None,
    limit: int = 100,
    before: int | None = None,
) -> tuple[AuditEntry, ...]:
    """List entries, newest first, from the one below the number `before` on; project None reads every project's."""
    async with reading(pool) as connection:
        records = await connection.fetch(
            """select number, at, project, actor, origin, action, object, before, after from audit
            where ($1::text is null or project = $1) and ($2::text is null or object = $2)
                and ($3::bigint is null or number < $3) and ($5::text is null or actor = $5)
            order by number desc limit $4""",
            project,
            subject,
            before,
            limit,
            actor,
        )
    return tuple(AuditEntry(**dict(record)) for record in records)


async def check_audit(pool: Pool, known_hash: bytes | None = None) -> AuditCheck:
    """Read the whole trail, and say whether every entry is what was chained.

    known_hash: one that was kept elsewhere; raises NotFound where the chain does not hold it.
    """
    position, last, is_known = 0, b"", known_hash is None
    while links := await _read_links(pool, position):
        for link in links:
            fits = link["text"] is not None and sha256(last + link["text"].encode()).digest() == link["hash"]
            if not fits or link["position"] != position + 1:
                what = f"entry {link['number']}" + (" is gone" if link["text"] is None else " is not what was written")
                return AuditCheck(position, last or None, f"{what}, or one before it is")
            position, last = link["position"], link["hash"]
            is_known = is_known or last == known_hash
    if not is_known:
        raise NotFound("no entry of the audit trail has that hash: it, or an entry before it, was changed or taken out")
    return AuditCheck(position, last or None, await _find_unchained(pool))


async def _read_links(pool: Pool, after: int) -> list[Any]:
    async with reading(pool) as connection:
        return await connection.fetch(
            """select c.position, c.number, c.hash, case when a.number is not null then audit_text(a) end as text
            from audit_chain c
            left join audit a using (number) where c.position > $1 order by c.position limit 2000""",
            after,
        )


async def _find_unchained(pool: Pool) -> str | None:
    """Say which entry was added around the chain."""
    async with reading(pool) as connection:
        number = await connection.fetchval(
            "select min(number) from audit a where not exists (select from audit_chain c where c.number = a.number)"
        )
    return None if number is None else f"entry {number} was never chained"
