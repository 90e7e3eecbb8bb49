"""The API put together: one gate, one shape of error, one guard before everything."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.types import ASGIApp

from api import (
    audit,
    conditions,
    docs,
    drain,
    floor,
    freeze,
    health,
    host,
    host_foreign,
    host_side,
    image,
    joining,
    metrics,
    openapi,
    operation,
    problems,
    project,
    restore,
    roll,
    sets,
    ssh_ca,
    token,
    upgrade,
    vm,
    vm_verbs,
    volume,
)
from api.console.app import Console
from api.guard import Guard
from api.mcp import Assistants
from api.parts import Parts
from model.versions import VERSION

ROUTERS = tuple(
    each.router
    for each in (
        vm,
        vm_verbs,
        volume,
        host,
        host_foreign,
        sets,
        drain,
        floor,
        freeze,
        image,
        operation,
        restore,
        roll,
        ssh_ca,
        token,
        project,
        audit,
        conditions,
        metrics,
        upgrade,
        joining,
        host_side,
        health,
    )
)
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def create_app(parts: Parts, hosts: Sequence[str] = LOOPBACK_NAMES) -> ASGIApp:
    """Return the whole API behind its guard. `hosts` are the names that it may be called by."""
    app = bare_app(parts)
    api = Guard(app, hosts)
    return Guard(Console(Assistants(app, api, parts), api, parts), hosts)


def bare_app(parts: Parts | None = None) -> FastAPI:
    """Return the API without its guard: for its OpenAPI document."""
    app = FastAPI(title="Hostler", version=VERSION, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.parts = parts
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router, responses=openapi.PROBLEM)
    app.include_router(docs.router)
    openapi.install(app)
    return app
