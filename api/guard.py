"""What every request must pass before anything reads it: its Host, its Origin, its size (S-34, A-8)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_LIMIT = 256 << 10
REPORT_LIMIT = 4 << 20
_REPORT_PATH = "/v1/host/"


class Guard:
    """An ASGI wrapper that refuses foreign hosts and origins, and bodies over their limit.

    `hosts` are the names, without a port, that this API may be called by; a page of another origin that reaches it
    through a name of its own (DNS rebinding) is refused.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, value)
        refusal = self._refuse(headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        limit = REPORT_LIMIT if str(scope["path"]).startswith(_REPORT_PATH) else BODY_LIMIT
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            await _answer(send, 413, "Too large", f"the body is over its limit of {limit} bytes; send less")
            return
        await self._app(scope, _Bounded(receive, limit), send)

    def _refuse(self, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        if _name_of(headers.get(b"host", b"").decode("latin-1")) not in self._hosts:
            return 403, "Not allowed", "this API is not called by the name in the Host header; use its configured name"
        origin = headers.get(b"origin")
        if origin is not None and not self._is_own(origin.decode("latin-1"), headers):
            return 403, "Not allowed", "requests from pages of another origin are refused"
        return None

    def _is_own(self, origin: str, headers: dict[bytes, bytes]) -> bool:
        return urlsplit(origin).netloc == headers.get(b"host", b"").decode("latin-1")


class _Bounded:
    """Hand on a body until it is over its limit, whatever its length header said; then it ends as cut off."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                return {"type": "http.disconnect"}
        return message


def _name_of(host: str) -> str:
    """Return the host's name without its port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


async def _answer(send: Send, status: int, title: str, detail: str) -> None:
    body = json.dumps(
        {"type": "urn:hostler:problem:guard", "title": title, "status": status, "detail": detail, "retryable": False}
    ).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
