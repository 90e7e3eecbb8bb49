"""Tokens, join tokens and host credentials: recognisable, checkable, found by id, compared by digest (S-30)."""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from typing import Literal, NamedTuple, cast

Kind = Literal["hst", "hsh", "hsj"]
_SHAPE = re.compile(r"(hst|hsh|hsj)_([a-z0-9]{16})_([0-9a-f]{64})([0-9a-f]{8})", re.ASCII)


class Credential(NamedTuple):
    """A credential taken apart. `digest` is the SHA-256 of its random part: all of it that is ever stored."""

    kind: Kind
    id: str
    digest: bytes


def new_credential(kind: Kind) -> tuple[str, Credential]:
    """Make a token (`hst`), a host's credential (`hsh`) or its join token (`hsj`) of 256 random bits.

    Return it, and what to store of it.
    """
    identity, secret = secrets.token_hex(8), secrets.token_hex(32)
    body = f"{kind}_{identity}_{secret}"
    return body + _checksum(body), Credential(kind, identity, _digest(secret))


def parse_credential(text: str) -> Credential | None:
    """Take a credential apart; None for what cannot be one, a mistyped one included."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        return None
    kind, identity, secret, checksum = match.groups()
    if checksum != _checksum(f"{kind}_{identity}_{secret}"):
        return None
    return Credential(cast("Kind", kind), identity, _digest(secret))


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
