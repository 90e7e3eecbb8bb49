"""Where an image comes from: one http(s) request at a time, by the rules of S-19.

Runs in the confined child. Every resolved address is checked, and the checked one connected to; every redirect is
checked anew, never leads from https to http, and carries credentials to no other host.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import socket
import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

MAX_REDIRECTS = 5
CONNECT_SECONDS = 10.0
STALL_SECONDS = 30.0
_REDIRECTS = (301, 302, 303, 307, 308)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Cut(Exception):
    """The connection failed or ended early: the same may work in a moment."""


class NotServed(Exception):
    """The server's answer is final for now; the text says what it was."""


class NotAllowed(Exception):
    """The rules forbid it; trying again cannot help."""


@dataclass(frozen=True)
class Answer:
    """An open download; start: the offset of the first byte that comes. total_bytes: None when unknown."""

    body: http.client.HTTPResponse
    start: int
    total_bytes: int | None
    validator: str | None


@contextmanager
def open_url(url: str, *, start: int, validator: str | None, allowed: Sequence[Network] | None) -> Generator[Answer]:
    """Ask for a file from byte `start` on, if the server still has the same one (RFC 9110, If-Range).

    allowed: the networks besides the public ones that may be connected to; None: any address. Raises Cut, NotServed or
    NotAllowed.
    """
    ranged = {"Range": f"bytes={start}-", "If-Range": validator} if start and validator else {}
    connection, response = _follow(url, ranged, allowed)
    try:
        yield _read_answer(response, start if ranged else 0)
    except (http.client.HTTPException, OSError) as error:
        raise Cut(type(error).__name__) from error
    finally:
        connection.close()


def check_url(url: str, came_from: SplitResult | None = None) -> SplitResult:
    """Split a URL that may be asked; raises NotAllowed. came_from: the URL that redirected here."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise NotAllowed("the address cannot be read") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NotAllowed("only http and https addresses are fetched")
    if any(c <= " " or c >= "\x7f" for c in url):
        raise NotAllowed("the address holds characters that must be escaped")
    if came_from is not None and came_from.scheme == "https" and parts.scheme != "https":
        raise NotAllowed("the server redirects from https to http")
    return parts


def credentials(parts: SplitResult, first: SplitResult) -> dict[str, str]:
    """Give the header for the user part of the first URL, if this one goes to the same place."""
    if _place(parts) != _place(first) or first.username is None:
        return {}
    pair = f"{unquote(first.username)}:{unquote(first.password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def is_allowed(address: str, allowed: Sequence[Network] | None) -> bool:
    """Tell whether an address is public or within what the operator allowed."""
    found = ipaddress.ip_address(address.split("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    if allowed is None:
        return True
    return (found.is_global and not found.is_multicast) or any(found in network for network in allowed)


def _follow(
    url: str, headers: dict[str, str], allowed: Sequence[Network] | None
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    first = parts = check_url(url)
    for _ in range(MAX_REDIRECTS + 1):
        connection = _connect(parts, allowed)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            fixed = {"Accept-Encoding": "identity", "User-Agent": "hostler", "Connection": "close"}
            connection.request("GET", target, headers=fixed | headers | credentials(parts, first))
            response = connection.getresponse()
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            raise Cut(type(error).__name__) from error
        if response.status not in _REDIRECTS:
            return connection, response
        connection.close()
        parts = check_url(urljoin(parts.geturl(), response.getheader("Location") or ""), parts)
    raise NotServed(f"the server redirects more than {MAX_REDIRECTS} times")


def _read_answer(response: http.client.HTTPResponse, wanted_start: int) -> Answer:
    status = response.status
    if status in (408, 425, 429) or status >= 500:
        raise Cut(f"status {status}")
    if status == 416 and wanted_start:
        return Answer(response, 0, 0, None)  # the file is another one now: nothing of this answer is used
    if status not in (200, 206):
        raise NotServed(f"the server answered with status {status}")
    length = response.getheader("Content-Length") or ""
    total = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None
    start = 0
    if status == 206:
        start, total = _content_range(response.getheader("Content-Range") or "")
        if start != wanted_start:
            raise NotServed("the server answered with another part than was asked for")
    return Answer(response, start, total, _validator(response))


def _content_range(text: str) -> tuple[int, int | None]:
    try:
        unit, _, rest = text.partition(" ")
        span, _, total = rest.partition("/")
        start = int(span.partition("-")[0])
        if unit != "bytes" or len(text) > 100:
            raise ValueError(unit)
        return start, None if total == "*" else int(total)
    except ValueError as error:
        raise NotServed("the server answered with a part that cannot be read") from error


def _validator(response: http.client.HTTPResponse) -> str | None:
    """Give what If-Range may carry: a strong entity tag, else the date of the last change."""
    tag = response.getheader("ETag") or ""
    if tag.startswith('"') and len(tag) <= 1024:
        return tag
    date = response.getheader("Last-Modified") or ""
    return date if not tag and 0 < len(date) <= 64 else None


def _connect(parts: SplitResult, allowed: Sequence[Network] | None) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    dialled = _dial(host, port, allowed)
    try:
        if secure:
            dialled = ssl.create_default_context().wrap_socket(dialled, server_hostname=host)
    except OSError as error:
        dialled.close()
        raise Cut(
            "the server cannot prove who it is" if isinstance(error, ssl.SSLCertVerificationError) else "TLS"
        ) from error
    dialled.settimeout(STALL_SECONDS)
    # The scheme's own port stays out of the Host header, as it does with any other client.
    connection = http.client.HTTPConnection(host, port)
    connection.default_port = 443 if secure else 80
    connection.sock = dialled
    return connection


def _dial(host: str, port: int, allowed: Sequence[Network] | None) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Cut("its name is not known") from error
    fitting = [entry for entry in found if is_allowed(str(entry[4][0]), allowed)]
    if not fitting:
        raise NotAllowed("the server's address is neither public nor allowed by the operator")
    last: OSError | None = None
    for family, kind, protocol, _, address in fitting:
        attempt = socket.socket(family, kind, protocol)
        attempt.settimeout(CONNECT_SECONDS)
        try:
            attempt.connect(address)
        except OSError as error:
            attempt.close()
            last = error
        else:
            return attempt
    raise Cut("no connection") from last


def _place(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
