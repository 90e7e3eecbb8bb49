"""The API called by its own surfaces: with the caller's token, from where they ask, through the same guard and gate."""

from __future__ import annotations

import httpx2
from starlette.requests import Request
from starlette.types import ASGIApp


def inner_client(api: ASGIApp, request: Request, authorization: str) -> httpx2.AsyncClient:
    """Return a client of the API in this process, for one request of a console or an assistant."""
    origin = (request.client.host, request.client.port) if request.client else ("127.0.0.1", 0)
    headers = {"authorization": authorization, "host": request.headers["host"]}
    transport = httpx2.ASGITransport(app=api, client=origin)
    return httpx2.AsyncClient(transport=transport, base_url="http://api", headers=headers)
