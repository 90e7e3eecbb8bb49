"""What every request passes first: its Host, its Origin, its size (S-34, A-8); and its one log line."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import REQUEST_ID, our_fault, problem
from model.errors import Forbidden, HostlerError, Malformed, TooLarge
from runtime.log import describe_exception

BODY_LIMIT = 256 << 10
REPORT_LIMIT = 4 << 20
_FOR_HOSTS = "/v1/host/"
NOTICES = "hostler.notices"
"""In a request's scope: what every answer tells, whatever was asked (H-R3)."""
_QUIET = (_FOR_HOSTS, "/healthz", "/readyz")
_HEADERS = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_log = logging.getLogger("hostler.api")


class Guard:
    """An ASGI wrapper that refuses foreign hosts and origins, and bodies over their limit.

    `hosts` are the names, without a port, that this API may be called by; a page of another origin that reaches it
    through a name of its own (DNS rebinding) is refused. Whatever goes wrong behind it is answered, and logged once.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        began = time.monotonic()
        try:
            self._check(scope)
            limit = limit_of(str(scope["path"]))
            _check_length(scope, limit)
            await self._app(
                {**scope, REQUEST_ID: answer.request_id, NOTICES: answer.notices}, _Bounded(receive, limit), answer
            )
        except HostlerError as error:
            await answer.give(scope, receive, error)
        except Exception as error:
            _log.error("unexpected error: %s", describe_exception(error), extra={"request": answer.request_id})
            await answer.give(scope, receive, our_fault(answer.request_id))
        finally:
            _note(scope, answer, began)

    def _check(self, scope: Scope) -> None:
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or _name_of(hosts[0]) not in self._hosts:
            raise Forbidden("this API is not called by the name in the Host header; use its configured name")
        if any(origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}") for origin in _values(scope, b"origin")):
            raise Forbidden("requests from pages of another origin are refused")


def limit_of(path: str) -> int:
    """Return how many bytes a body to `path` may have."""
    return REPORT_LIMIT if path.startswith(_FOR_HOSTS) else BODY_LIMIT


class _Answer:
    """What is sent back: with the headers that every answer has, once, and known by its request's id."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.request_id = secrets.token_hex(8)
        self.status: int | None = None
        self.notices: list[str] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            ours = {name for name, _ in _HEADERS}
            kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in ours]
            told = [(b"hostler-notice", notice.encode("ascii", "replace")) for notice in self.notices]
            message = {**message, "headers": [*kept, *_HEADERS, *told, (b"x-request-id", self.request_id.encode())]}
        await self._send(message)

    async def give(self, scope: Scope, receive: Receive, error: HostlerError) -> None:
        """Answer with a problem, unless an answer has begun: then nothing more can be said."""
        if self.status is None:
            await problem(error)(scope, receive, self)


class _Bounded:
    """Hand on a body until it is over its limit, whatever its length header said."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._read = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._limit:
                raise _over(self._limit)
        return message


def _check_length(scope: Scope, limit: int) -> None:
    for length in _values(scope, b"content-length"):
        if not (length.isascii() and length.isdigit()):
            raise Malformed("the Content-Length header must be a number of bytes")
        if len(length) > 18 or int(length) > limit:
            raise _over(limit)


def _over(limit: int) -> TooLarge:
    return TooLarge(f"the body is over its limit of {limit} bytes; send less")


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted]


def _name_of(host: str) -> str:
    """Return the host's name without its port; an IPv6 address keeps its brackets."""
    name, bracket, _ = host.partition("]") if host.startswith("[") else (host.partition(":")[0], "", "")
    return (name + bracket).lower()


def _note(scope: Scope, answer: _Answer, began: float) -> None:
    """One line a request, without its query: that may hold what was not meant for a log."""
    path = str(scope["path"])
    quiet = path.startswith(_QUIET) and (answer.status or 500) < 400
    _log.log(
        logging.DEBUG if quiet else logging.INFO,
        "%s %s: %s",
        scope["method"],
        path,
        answer.status,
        extra={"request": answer.request_id, "milliseconds": round((time.monotonic() - began) * 1000)},
    )
