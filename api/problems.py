"""Errors as problem documents (RFC 9457): one handler for every error that Hostler raises on purpose (A-1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from model.errors import FieldError, HostlerError, Invalid, Malformed, NotFound
from model.text import clean_text

_log = structlog.get_logger(__name__)
MEDIA_TYPE = "application/problem+json"
LONGEST_ERRORS = 50


def problem(error: HostlerError) -> JSONResponse:
    """Turn an error of ours into its document. Foreign text in it was cleaned where it came in."""
    name = type(error).__name__
    kind = "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")
    body: dict[str, Any] = {
        "type": f"urn:hostler:problem:{kind}",
        "title": error.title,
        "status": error.status,
        "detail": clean_text(error.detail),
        "retryable": error.retryable,
    }
    if error.errors:
        body["errors"] = [{"pointer": e.pointer, "detail": clean_text(e.detail)} for e in error.errors[:LONGEST_ERRORS]]
    headers = {"Cache-Control": "no-store"}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status_code=error.status, media_type=MEDIA_TYPE, headers=headers)


def from_validation(errors: Sequence[Any]) -> HostlerError:
    """Turn pydantic's findings into one refusal: 400 for what cannot be read, 422 for values out of range.

    The input's own values never come back: a body may hold secrets.
    """
    found: list[FieldError] = []
    unreadable = False
    for error in errors:
        location = [str(part) for part in error["loc"]]
        unreadable = unreadable or error["type"] in ("json_invalid", "value_error.jsondecode")
        place, *path = location or ["body"]
        pointer = "/" + "/".join(p.replace("~", "~0").replace("/", "~1") for p in path) if path else ""
        text = "unknown field; remove it" if error["type"] == "extra_forbidden" else str(error["msg"])
        found.append(FieldError(pointer if place == "body" else f"{place}:{'/'.join(path)}", clean_text(text)))
    where = "; ".join(f"{e.pointer or 'the body'}: {e.detail}" for e in found[:3])
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    if unreadable:
        return Malformed("the body is not valid JSON; send one JSON object", errors=tuple(found))
    return Invalid(f"{where}{more}", errors=tuple(found))


def install(app: FastAPI) -> None:
    """Register the handlers on `app`."""

    async def ours(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HostlerError)  # noqa: S101
        return problem(error)

    async def validation(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        return problem(from_validation(error.errors()))

    async def http(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)  # noqa: S101
        if error.status_code == 404:
            return problem(NotFound("there is nothing at this path; /docs lists what there is"))
        refused = Malformed("this path does not take this method; /docs lists what it takes")
        response = problem(refused)
        response.status_code = error.status_code
        return response

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        _log.error("unexpected error", path=request.url.path, error=type(error).__name__, exc_info=error)
        return problem(HostlerError("something went wrong on our side; the log of the API says what"))

    app.add_exception_handler(HostlerError, ours)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)
