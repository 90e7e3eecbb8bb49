"""Whose credential it is, for a process that is asked again and again while calls stay open (S-40)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from model.credential import Credential, parse_credential
from model.errors import Unauthenticated, Unavailable
from store.host import KnownHost

LOOK_SECONDS = 10.0
"""How long a credential is believed without a look at its row."""

STALE_SECONDS = 50.0
"""How long while Postgres does not answer: a revocation counts within a minute in any case."""

MOST_KNOWN = 10_000
_UNKNOWN = "this takes the credential of an enrolled host"


class Find(Protocol):
    """Find the host of a credential; as `HostStore.by_credential`."""

    def __call__(self, credential_hash: bytes, /) -> Awaitable[KnownHost | None]: ...


class HostCredentials:
    """Look credentials up, each at most every ten seconds."""

    def __init__(self, find: Find, clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._clock = clock
        self._known: dict[bytes, tuple[float, KnownHost]] = {}

    async def host_of(self, authorization: str) -> KnownHost:
        """Return the host whose credential this is. Raises Unauthenticated, or Unavailable when that cannot be told."""
        scheme, _, text = authorization.partition(" ")
        credential = parse_credential(text) if scheme.lower() == "bearer" else None
        if credential is None or credential.kind != "hsh":
            raise Unauthenticated(_UNKNOWN)
        looked_at, host = self._known.get(credential.digest, (0.0, None))
        age = self._clock() - looked_at
        # Before its first report a host has no instance, and no queue yet: it is not made to wait for one it has.
        if host is not None and host.instance_id is not None and age <= LOOK_SECONDS:
            return host
        try:
            return await self._look(credential)
        except Unavailable:
            if host is None or age > STALE_SECONDS:
                raise
            return host

    async def _look(self, credential: Credential) -> KnownHost:
        now = self._clock()
        try:
            host = await self._find(credential.digest)
        except Unauthenticated:
            self._known.pop(credential.digest, None)
            raise
        if host is None:
            self._known.pop(credential.digest, None)
            raise Unauthenticated(_UNKNOWN)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[credential.digest] = (now, host)
        return host
