"""A route behind the gate: who calls is settled before anything that was sent is read (S-31), then the body is read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from api.parts import parts_of
from model.errors import FieldError, Invalid, Malformed

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class GatedRoute(APIRoute):
    """Each route names its gate among its dependencies; one without is a defect that shows at import."""

    def get_route_handler(self) -> Handler:
        """Return the handler: gate, names of query parameters, JSON, and then FastAPI's own."""
        handle, known = super().get_route_handler(), _query_names(self.dependant)
        gate, has_body = gate_of(self), self.body_field is not None

        async def gated(request: Request) -> Response:
            await gate(request, parts_of(request))
            _refuse_unknown(request, known)
            return await handle(await _Read.from_request(request) if has_body else request)

        return gated


def gate_of(route: APIRoute) -> Callable[..., Any]:
    """Return the one gate of a route; it has the attribute `hostler_role`."""
    gates = [found for found in _calls(route.dependant) if hasattr(found, "hostler_role")]
    if len(gates) != 1:
        raise TypeError(f"{route.path} must have one gate, it has {len(gates)}")
    return gates[0]


class _Read(Request):
    """A request whose body was read and is JSON; FastAPI takes it from here."""

    document: Any
    content: bytes

    @classmethod
    async def from_request(cls, request: Request) -> _Read:
        read = cls(request.scope, request.receive)
        read.content = await request.body()
        if read.content:
            _check_content_type(request)
            read.document = parse_json(read.content)
        return read

    async def body(self) -> bytes:
        return self.content

    async def json(self) -> Any:
        return self.document


def parse_json(content: bytes) -> Any:
    """Read one JSON document in UTF-8 (RFC 8259); raise Malformed for what is none, halves of surrogates included."""
    try:
        text = content.decode()
        document = json.loads(text, parse_constant=_refuse_constant)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeError:
        raise Malformed("the body must be Unicode text in UTF-8; it holds something else") from None
    except RecursionError:
        raise Malformed("the body is nested too deeply; send one flat JSON object") from None
    except ValueError:
        raise Malformed("the body is not valid JSON; send one JSON object") from None
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _check_content_type(request: Request) -> None:
    message = Message()
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    if message.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise Malformed("the body must be JSON; send it with 'Content-Type: application/json'")


def _refuse_unknown(request: Request, known: frozenset[str]) -> None:
    given = Counter(name for name, _ in request.query_params.multi_items())
    wrong = [
        FieldError(f"query:{name}", "given twice; give it once" if name in known else "unknown parameter; remove it")
        for name, count in sorted(given.items())
        if count > 1 or name not in known
    ]
    if wrong:
        first = wrong[0]
        raise Invalid(f"{first.pointer.removeprefix('query:')}: {first.detail}", errors=tuple(wrong))


def _query_names(dependant: Dependant) -> frozenset[str]:
    names = {field.alias for field in dependant.query_params}
    for inner in dependant.dependencies:
        names |= _query_names(inner)
    return frozenset(names)


def _calls(dependant: Dependant) -> list[Callable[..., Any]]:
    found: list[Callable[..., Any]] = []
    for inner in dependant.dependencies:
        found.extend([inner.call] if inner.call else [])
        found.extend(_calls(inner))
    return found
