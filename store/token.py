"""Tokens: found by id, compared by hash, never stored (S-30)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from model.errors import NotFound
from store.audit import Actor, write_audit
from store.database import reading, transaction

if TYPE_CHECKING:
    import asyncpg

    from store.database import Pool

Role = Literal["admin", "operator", "viewer"]
_COLUMNS = "id, hash, role, project, name, maker, created_at, expires_at, last_used_at, revoked_at"


@dataclass(frozen=True)
class StoredToken:
    """A token without itself. `hash` is the SHA-256 of its random part; project None reaches every project."""

    id: str
    hash: bytes
    role: Role
    project: str | None
    name: str
    maker: str | None
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class TokenStore:
    """The tokens."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add(
        self,
        *,
        token_id: str,
        digest: bytes,
        role: Role,
        project: str | None,
        lifetime: timedelta,
        actor: Actor,
        name: str = "",
    ) -> StoredToken:
        """Store a new token by the SHA-256 of its random part; it counts for `lifetime` by Postgres' clock."""
        async with transaction(self._pool) as connection:
            record = await connection.fetchrow(
                f"""insert into tokens (id, hash, role, project, name, maker, expires_at)
                values ($1, $2, $3, $4, $5, $6, now() + $7) returning {_COLUMNS}""",
                token_id,
                digest,
                role,
                project,
                name,
                actor.name,
                lifetime,
            )
            assert record is not None, "an insert returns its row"  # noqa: S101
            after = {"role": role, "project": project, "name": name}
            await write_audit(
                connection,
                actor,
                project=project or "public",
                action="token.add",
                subject=f"token/{token_id}",
                after=after,
            )
        return StoredToken(**dict(record))

    async def find(self, token_id: str) -> StoredToken | None:
        """Return a token that counts now (not expired, not revoked), or None, and note its use once a minute."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                f"""select {_COLUMNS}, last_used_at is null or last_used_at < now() - interval '1 minute' as note
                from tokens where id = $1 and revoked_at is null and expires_at > now()""",
                token_id,
            )
            if record is None:
                return None
            if record["note"]:
                await connection.execute("update tokens set last_used_at = now() where id = $1", token_id)
        return StoredToken(**{name: record[name] for name in StoredToken.__dataclass_fields__})

    async def list(self, project: str | None, *, limit: int = 100, after: str | None = None) -> tuple[StoredToken, ...]:
        """List tokens by id; project None lists every project's."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                f"""select {_COLUMNS} from tokens where ($1::text is null or project = $1)
                and ($2::text is null or id > $2) order by id limit $3""",
                project,
                after,
                limit,
            )
        return tuple(StoredToken(**dict(record)) for record in records)

    async def get(self, project: str | None, token_id: str) -> StoredToken:
        """Return a token, one that has ended too; raise NotFound, also for another project's."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                f"select {_COLUMNS} from tokens where id = $1 and ($2::text is null or project = $2)", token_id, project
            )
        return _found(record, token_id)

    async def revoke(self, project: str | None, token_id: str, actor: Actor) -> StoredToken:
        """End a token at once; raise NotFound, also for another project's."""
        async with transaction(self._pool) as connection:
            record = await connection.fetchrow(
                f"""update tokens set revoked_at = coalesce(revoked_at, now())
                where id = $1 and ($2::text is null or project = $2) returning {_COLUMNS}""",
                token_id,
                project,
            )
            token = _found(record, token_id)
            await write_audit(
                connection,
                actor,
                project=token.project or "public",
                action="token.revoke",
                subject=f"token/{token_id}",
            )
        return token


def _found(record: asyncpg.Record | None, token_id: str) -> StoredToken:
    if record is None:
        raise NotFound(f"there is no token {token_id}")
    return StoredToken(**dict(record))
