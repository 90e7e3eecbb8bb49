"""The join string: where a new host finds the API, and the token that it trades for a credential there (H-E1, S-40)."""

from __future__ import annotations

import re
from typing import Self
from urllib.parse import urlsplit

from model.base import Frozen, Lenient
from model.credential import parse_credential
from model.errors import Invalid

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_NO_JOIN_STRING = (
    "this is no join string: it is one line, an http(s) URL, '#' and a token that begins with hsj_; "
    "`hostler host add NAME` prints one"
)
LONGEST = 1024


class JoinString(Frozen):
    """What a host is given. `fingerprint`: of the API's CA, where it has one: `sha256:` and 64 hexadecimal digits."""

    url: str
    token: str
    fingerprint: str | None = None

    def __str__(self) -> str:
        """Return it as one line without spaces."""
        return "#".join(filter(None, (self.url, self.token, self.fingerprint)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Take one apart; raise Invalid, which tells nothing of it."""
        url, *words = text.strip()[: LONGEST + 1].split("#")
        try:
            parts = urlsplit(url)
            placed = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            placed = False
        token = parse_credential(words[0]) if words else None
        if not placed or token is None or token.kind != "hsj" or len(text) > LONGEST or len(words) > 2:
            raise Invalid(_NO_JOIN_STRING)
        if len(words) == 2 and (not _FINGERPRINT.fullmatch(words[1]) or not url.startswith("https:")):
            raise Invalid(_NO_JOIN_STRING)
        return cls(url=url, token=words[0], fingerprint=words[1] if len(words) == 2 else None)


class JoinedHost(Lenient):
    """What a join token is traded for: who the host is, the key of its orders (base64, S-3), where it gets them.

    `temporal_address` is the gateway's, `host:port` or `https://host:port` (S-7).
    """

    fleet_id: str
    host_id: str
    name: str
    sealing_key: str
    key_version: int
    temporal_address: str
    namespace: str
