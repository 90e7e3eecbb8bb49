"""The API put together: one gate, one shape of error, one guard before everything."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Request
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import Response
from starlette.types import ASGIApp

from api import docs, health, host, host_side, image, operation, problems, vm
from api.guard import Guard
from api.parts import Parts
from model.versions import VERSION

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def create_app(parts: Parts, hosts: Sequence[str] = LOOPBACK_NAMES) -> ASGIApp:
    """Return the whole API behind its guard. `hosts` are the names that it may be called by."""
    app = bare_app(parts)
    return Guard(app, hosts)


def bare_app(parts: Parts | None = None) -> FastAPI:
    """Return the API without its guard: for its OpenAPI document, and for tests of its routes."""
    app = FastAPI(title="Hostler", version=VERSION, docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    app.state.parts = parts
    problems.install(app)
    for router in (vm, host, image, operation, host_side, health, docs):
        app.include_router(router.router)

    @app.middleware("http")
    async def never_store(request: Request, call_next: RequestResponseEndpoint) -> Response:  # pyright: ignore[reportUnusedFunction]
        response = await call_next(request)
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return app
