"""The audit trail: who changed what, from where, written in the change's own transaction (S-37). Never a secret."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

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
    pool: Pool, project: str | None, *, subject: str | None = None, limit: int = 100, before: int | None = None
) -> tuple[AuditEntry, ...]:
    """List entries, newest first, from the one below the number `before` on; project None reads every project's."""
    async with reading(pool) as connection:
        records = await connection.fetch(
            """select number, at, project, actor, origin, action, object, before, after from audit
            where ($1::text is null or project = $1) and ($2::text is null or object = $2)
                and ($3::bigint is null or number < $3)
            order by number desc limit $4""",
            project,
            subject,
            before,
            limit,
        )
    return tuple(AuditEntry(**dict(record)) for record in records)
