"""Errors as problem documents (RFC 9457): one handler for every error that Hostler raises on purpose (A-1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from model.errors import FieldError, HostlerError, Invalid, Malformed, NotFound
from model.text import clean_text

MEDIA_TYPE = "application/problem+json"
LONGEST_ERRORS = 50
REQUEST_ID = "hostler.request_id"
"""Where the guard leaves a request's id in the scope."""

_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
_TEXT_LIMIT = 1024
_PYDANTIC = "Value error, "
_WORDS = {
    "extra_forbidden": "unknown field; remove it",
    "missing": "is missing; give it",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} entries",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number that is not so large",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
}
"""Pydantic's findings in the words of somebody who sent JSON: what must be."""


def problem(error: HostlerError, status: int | None = None) -> JSONResponse:
    """Turn an error of ours into its document. Foreign text in it was cleaned where it came in."""
    name = type(error).__name__
    kind = "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")
    body: dict[str, Any] = {
        "type": f"urn:hostler:problem:{kind}",
        "title": error.title,
        "status": status or error.status,
        "detail": clean_text(error.detail),
        "retryable": error.retryable,
    }
    if error.errors:
        body["errors"] = [_shown(each) for each in error.errors[:LONGEST_ERRORS]]
    headers = _HEADERS.get(error.status)
    return JSONResponse(body, status_code=body["status"], media_type=MEDIA_TYPE, headers=headers)


def _shown(error: FieldError) -> dict[str, str]:
    """A field of the body by its JSON pointer (RFC 6901); a parameter, written `query:name`, by its name and place."""
    detail = clean_text(error.detail, _TEXT_LIMIT)
    if error.pointer in ("",) or error.pointer.startswith("/"):
        return {"pointer": clean_text(error.pointer, _TEXT_LIMIT), "detail": detail}
    place, _, name = error.pointer.partition(":")
    return {"in": place, "parameter": clean_text(name, _TEXT_LIMIT), "detail": detail}


def from_validation(errors: Sequence[Any], body: object = None) -> Invalid:
    """Turn pydantic's findings into one refusal that names every bad field.

    The input's own values never come back: a body may hold secrets (S-33).
    """
    found = tuple(_field_error(error, body) for error in errors)
    where = "; ".join(f"{e.pointer.partition(':')[2] or e.pointer or 'the body'}: {e.detail}" for e in found[:3])
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return Invalid(f"{where}{more}", errors=found)


def _field_error(error: Any, body: object) -> FieldError:
    kind, (place, *path) = error["type"], error["loc"] or ("body",)
    text = _WORDS[kind].format(**error.get("ctx", {})) if kind in _WORDS else str(error["msg"]).removeprefix(_PYDANTIC)
    if place != "body":
        return FieldError(f"{place}:{'/'.join(str(part) for part in path)}", text)
    return FieldError(_pointer(path, body, missing=kind == "missing"), text)


def _pointer(path: Sequence[object], body: object, *, missing: bool) -> str:
    """Follow the path through what was sent: pydantic's own words for choices and keys of maps are no part of it."""
    pointer, here = "", body
    for number, part in enumerate(path):
        last = number == len(path) - 1
        if isinstance(here, dict) and part in here:
            here = cast("dict[object, object]", here)[part]
        elif isinstance(here, list) and isinstance(part, int) and part < len(cast("list[object]", here)):
            here = cast("list[object]", here)[part]
        elif not (missing and last):
            continue
        pointer += "/" + str(part).replace("~", "~0").replace("/", "~1")
    return pointer


def our_fault(request_id: str) -> HostlerError:
    """Return what is said of an error that nobody expected."""
    return HostlerError(
        f"something went wrong on our side; the log of the API says what, under the request {request_id}"
    )


def install(app: Starlette) -> None:
    """Register the handlers on `app`."""

    async def ours(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HostlerError)  # noqa: S101
        return problem(error)

    async def validation(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        return problem(from_validation(error.errors(), error.body))

    async def http(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)  # noqa: S101
        if error.status_code == 404:
            return problem(NotFound("there is nothing at this path; /docs lists what there is"))
        if error.status_code != 405:
            return problem(Malformed("the request cannot be read; /docs says what each call takes"))
        response = problem(Malformed("this path does not take this method; /docs lists what it takes"), 405)
        response.headers.update(error.headers or {})
        return response

    async def unexpected(request: Request, _error: Exception) -> JSONResponse:
        # Raised again behind this by Starlette: the guard logs it.
        return problem(our_fault(request.scope[REQUEST_ID]))

    app.add_exception_handler(Exception, unexpected)
    app.add_exception_handler(HostlerError, ours)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
