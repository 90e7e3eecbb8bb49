"""How a host gets and loses its credential: join tokens, traded once; renewal; revocation (H-E1, S-40)."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg

from model.credential import Credential
from model.errors import Conflict, NotFound, Unauthenticated
from model.ids import new_id
from store.audit import Actor, write_audit
from store.database import transaction
from store.host import HOST_ID

if TYPE_CHECKING:
    from store.database import Connection, Pool

CREDENTIAL_LIFETIME = timedelta(days=90)


@dataclass(frozen=True)
class Invited:
    """Whom a join token is for, and until when it can be traded."""

    host_id: str
    name: str
    expires_at: datetime


@dataclass(frozen=True)
class Joined:
    """Who traded its token. `key_version`: of the key that seals its orders."""

    host_id: str
    name: str
    key_version: int


@dataclass(frozen=True)
class Joining:
    """What a host says of itself when it joins.

    credential_hash: the SHA-256 of the random part of the credential that it made. host_id: whose state directory it
    has, if any.
    """

    credential_hash: bytes
    machine_id: str
    host_id: str | None = None


class Enrolments:
    """Join tokens, and what they are traded for."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add(self, name: str, token: Credential, lifetime: timedelta, actor: Actor) -> Invited:
        """Register a host under a name and store its join token; a token before it that was not used ends.

        The same name again is the same host while it has not reported; raise Conflict for one that has.
        """
        async with transaction(self._pool) as connection:
            await connection.execute(
                "insert into hosts (id, name) values ($1, $2) on conflict do nothing", new_id(), name
            )
            host = await connection.fetchrow(
                "select * from hosts where name = $1 and status <> 'forgotten' for update", name
            )
            assert host is not None, "it was there, or was made"  # noqa: S101
            if host["instance_id"] is not None:
                raise Conflict(
                    f"there is a host {name} already, and it has joined: choose another name, or say `hostler host "
                    f"replace {name}` to let another machine, or this one with new credentials, take its place"
                )
            return await _invite(connection, host, token, lifetime, actor, "host.add")

    async def replace(self, host: str, token: Credential, lifetime: timedelta, actor: Actor) -> Invited:
        """Store a join token by which a machine takes a host's place: the credential before it ends with the trade."""
        async with transaction(self._pool) as connection:
            known = await _lock_host(connection, host)
            if known["status"] == "forgotten":
                raise Conflict(f"the host {known['name']} was given up: add a new one instead")
            return await _invite(connection, known, token, lifetime, actor, "host.replace")

    async def trade(self, token: Credential, joining: Joining) -> Joined:
        """Trade a join token for a credential, once; the same trade again is answered alike.

        Raise Unauthenticated for a token that is unknown, revoked, used or expired, Conflict for a state directory of
        another host.
        """
        async with transaction(self._pool) as connection:
            found = await connection.fetchrow(
                "select *, expires_at <= now() as expired from join_tokens where id = $1 for update", token.id
            )
            if found is None or not hmac.compare_digest(found["hash"], token.digest):
                raise Unauthenticated("this join token is unknown: `hostler host add NAME` prints one")
            host = await _lock_host(connection, found["host_id"])
            again = found["traded_for"] == joining.credential_hash and found["revoked_at"] is None
            if not again:
                _check_usable(found, host["name"])
                if joining.host_id not in (None, host["id"]):
                    raise Conflict(
                        f"this state directory belongs to host {joining.host_id}, the join token to {host['name']}: "
                        "join with an empty state directory, or with a token of that host's `hostler host replace`"
                    )
                await _give_credential(connection, token.id, host, joining)
        return Joined(host["id"], host["name"], host["key_version"])

    async def renew(self, host_id: str, used_hash: bytes, new_hash: bytes) -> None:
        """Give a host another credential for the next 90 days; the one it used stays good until the new one is used."""
        async with transaction(self._pool) as connection:
            await connection.execute(
                """update hosts set former_credential_hash = $2, credential_hash = $3, credential_until = now() + $4
                where id = $1""",
                host_id,
                used_hash,
                new_hash,
                CREDENTIAL_LIFETIME,
            )
            actor = Actor(f"host/{host_id}")
            await write_audit(connection, actor, project="public", action="host.renew", subject=f"host/{host_id}")

    async def revoke(self, host: str, actor: Actor) -> None:
        """End a host's credential and its open join tokens at once; its guests run on."""
        async with transaction(self._pool) as connection:
            known = await _lock_host(connection, host)
            await _end_tokens(connection, known["id"])
            await connection.execute(
                "update hosts set credential_revoked_at = coalesce(credential_revoked_at, now()) where id = $1",
                known["id"],
            )
            subject = f"host/{known['id']}"
            await write_audit(connection, actor, project="public", action="host.revoke", subject=subject)


async def _lock_host(connection: Connection, host: str) -> asyncpg.Record:
    found = await connection.fetchrow(f"select * from hosts where id = {HOST_ID} for update", host)
    if found is None:
        raise NotFound(f"there is no host {host}")
    return found


async def _invite(
    connection: Connection, host: asyncpg.Record, token: Credential, lifetime: timedelta, actor: Actor, action: str
) -> Invited:
    await _end_tokens(connection, host["id"])
    expires_at = await connection.fetchval(
        """insert into join_tokens (id, hash, host_id, maker, expires_at) values ($1, $2, $3, $4, now() + $5)
        returning expires_at""",
        token.id,
        token.digest,
        host["id"],
        actor.name,
        lifetime,
    )
    told = {"name": host["name"], "token": token.id, "expires_at": expires_at.isoformat()}
    await write_audit(connection, actor, project="public", action=action, subject=f"host/{host['id']}", after=told)
    return Invited(host["id"], host["name"], expires_at)


async def _end_tokens(connection: Connection, host_id: str) -> None:
    await connection.execute(
        "update join_tokens set revoked_at = now() where host_id = $1 and revoked_at is null and used_at is null",
        host_id,
    )


def _check_usable(token: asyncpg.Record, name: str) -> None:
    again = f"`hostler host add {name}`, or `hostler host replace {name}` if it has joined before, prints another one"
    if token["revoked_at"] is not None:
        raise Unauthenticated(f"this join token was revoked, or another one was made after it: {again}")
    if token["used_at"] is not None:
        raise Unauthenticated(
            f"this join token was used already, and is good for one host once: if that was not this machine, `hostler "
            f"host revoke {name}` ends what it got; {again}"
        )
    if token["expired"]:
        raise Unauthenticated(f"this join token has expired: {again}")


async def _give_credential(connection: Connection, token_id: str, host: asyncpg.Record, joining: Joining) -> None:
    await connection.execute(
        "update join_tokens set used_at = now(), traded_for = $2 where id = $1", token_id, joining.credential_hash
    )
    await connection.execute(
        """update hosts set credential_hash = $2, credential_until = now() + $3, credential_revoked_at = null,
            former_credential_hash = null, machine_id = $4 where id = $1""",
        host["id"],
        joining.credential_hash,
        CREDENTIAL_LIFETIME,
        joining.machine_id,
    )
    told = {"token": token_id, "machine_id": joining.machine_id}
    before = {"machine_id": host["machine_id"]}
    await write_audit(
        connection,
        Actor(f"host/{host['id']}"),
        project="public",
        action="host.join",
        subject=f"host/{host['id']}",
        before=before if host["machine_id"] is not None else None,
        after=told,
    )
