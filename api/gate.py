"""The one gate: each route says which role it takes, and gets the caller's project with it (S-31)."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Request

from api.guard import NOTICES
from api.parts import Parts, parts_of
from model.credential import Credential, parse_credential
from model.errors import Forbidden, TooOften, Unauthenticated
from store.audit import Actor
from store.host import KnownHost

Role = Literal["viewer", "operator", "admin"]
_RANK: dict[Role, int] = {"viewer": 0, "operator": 1, "admin": 2}
DEFAULT_PROJECT = "default"


@dataclass(frozen=True)
class Caller:
    """Whose token it is. `project` None reaches every project."""

    token_id: str
    role: Role
    project: str | None
    origin: str | None

    @property
    def actor(self) -> Actor:
        return Actor(f"token/{self.token_id}", self.origin)

    def check_reach(self, role: Role, project: str | None) -> None:
        """Raise Forbidden for what has more rights than this caller (S-30). project None: every project."""
        if _RANK[role] > _RANK[self.role]:
            raise Forbidden(f"this takes a token with the role {role}; this one's is {self.role}")
        if self.project is not None and project != self.project:
            raise Forbidden("this takes a token that belongs to no project, or to that one")

    @property
    def home(self) -> str:
        """The project that new things go to."""
        return self.project or DEFAULT_PROJECT


def allow(role: Role, *, fleet: bool = False) -> Callable[..., Awaitable[Caller]]:
    """Let callers of at least `role` pass; `fleet`: only those whose token belongs to no project."""

    async def gate(request: Request, parts: Annotated[Parts, Depends(parts_of)]) -> Caller:
        caller: Caller = await _once(request, lambda: authenticate(request, parts))
        if _RANK[caller.role] < _RANK[role]:
            raise Forbidden(f"this takes a token with the role {role}; this one's is {caller.role}")
        if fleet and caller.project is not None:
            raise Forbidden("this takes a token that belongs to no project")
        return caller

    gate.hostler_role = role  # type: ignore[attr-defined]  # the test of the one gate reads it
    return gate


async def authenticate(request: Request, parts: Parts) -> Caller:
    """Return whose token a request has; raise Unauthenticated without one that counts."""
    credential = parse_credential(_bearer(request))
    token = await parts.tokens.find(credential.id) if credential and credential.kind == "hst" else None
    if credential is None or token is None or not hmac.compare_digest(token.hash, credential.digest):
        raise Unauthenticated("send a valid token as 'Authorization: Bearer hst_…'; this one is unknown or has ended")
    request.scope[NOTICES].extend(freeze.sentence for freeze in await parts.freezes.list())
    origin = request.client.host if request.client else None
    return Caller(token.id, token.role, token.project, origin)


def _bearer(request: Request) -> str:
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


async def host_gate(request: Request, parts: Annotated[Parts, Depends(parts_of)]) -> KnownHost:
    """Let a host pass by its own credential, which is good for its own reports, inputs and consoles alone."""
    host: KnownHost = await _once(request, lambda: _find_host(request, parts))
    if host.forgotten:
        raise Forbidden(
            "this host was given up: its credential is good for its reports alone; to use the machine again, enrol it "
            "anew with an empty state directory"
        )
    return host


async def report_gate(request: Request, parts: Annotated[Parts, Depends(parts_of)]) -> KnownHost:
    """Let a host pass to report, also one that was given up: it must hear that it is to stop what it runs (L-R10).

    More than four a second are refused before their bodies are read (S-6): what they tell comes with the next one.
    """

    async def find() -> KnownHost:
        host = await _find_host(request, parts)
        if parts.reports.place(host.id) is None:
            raise TooOften("a host reports at most four times a second: send this report again, with what moved since")
        return host

    host: KnownHost = await _once(request, find)
    return host


async def _find_host(request: Request, parts: Parts) -> KnownHost:
    credential = parse_credential(_bearer(request))
    if credential and credential.kind == "hsh":
        host = await parts.hosts.by_credential(credential.digest, forgotten=True)
        if host is not None:
            return host
    raise Unauthenticated("this takes the credential of an enrolled host")


async def join_gate(request: Request, _parts: Annotated[Parts, Depends(parts_of)]) -> Credential:
    """Let a new host pass by what may be a join token; whether it counts is settled where it is traded."""

    async def find() -> Credential:
        token = parse_credential(_bearer(request))
        if token is None or token.kind != "hsj":
            raise Unauthenticated("this takes a join token: `hostler host add NAME` prints one")
        return token

    token: Credential = await _once(request, find)
    return token


async def _once(request: Request, find: Callable[[], Awaitable[Any]]) -> Any:
    """The route asks before it reads anything, the call itself once more: it is the same caller."""
    if not hasattr(request.state, "caller"):
        request.state.caller = await find()
    return request.state.caller


host_gate.hostler_role = "host"  # type: ignore[attr-defined]
report_gate.hostler_role = "host"  # type: ignore[attr-defined]
join_gate.hostler_role = "join"  # type: ignore[attr-defined]
Viewer = Annotated[Caller, Depends(allow("viewer"))]
Operator = Annotated[Caller, Depends(allow("operator"))]
Admin = Annotated[Caller, Depends(allow("admin"))]
FleetViewer = Annotated[Caller, Depends(allow("viewer", fleet=True))]
FleetOperator = Annotated[Caller, Depends(allow("operator", fleet=True))]
FleetAdmin = Annotated[Caller, Depends(allow("admin", fleet=True))]
EnrolledHost = Annotated[KnownHost, Depends(host_gate)]
ReportingHost = Annotated[KnownHost, Depends(report_gate)]
JoinToken = Annotated[Credential, Depends(join_gate)]
PartsOf = Annotated[Parts, Depends(parts_of)]
