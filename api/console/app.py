"""The console's pages and forms: each page is an answer of the API, each form one of its calls."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from api import problems
from api.console import session as sessions
from api.console.pages import PAGES, Refused, render
from api.console.session import Session
from api.inner import inner_client
from api.pace import Pace
from api.parts import Parts
from model.errors import Forbidden, NotFound

_STATIC = Path(__file__).parent / "static"
_FILES = {"htmx.min.js": "text/javascript", "console.css": "text/css"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
}
_LOGINS_AT_ONCE, _LOGIN_PAUSE_SECONDS = 10, 6
"""So many attempts from one address, then one in so many seconds (S-44)."""
# What a form may ask of the API: its place in the console, the call, and whether the visitor is asked once more.
ACTIONS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "vms/start": ("PATCH", "/v1/vms/{id}", {"power_state": "running"}),
    "vms/stop": ("PATCH", "/v1/vms/{id}", {"power_state": "stopped"}),
    "vms/restart": ("POST", "/v1/vms/{id}/restart", None),
    "vms/retry": ("POST", "/v1/vms/{id}/retry", None),
    "vms/delete": ("DELETE", "/v1/vms/{id}", None),
    "vms/undelete": ("POST", "/v1/vms/{id}/undelete", None),
    "hosts/cordon": ("POST", "/v1/hosts/{id}/cordon", None),
    "hosts/uncordon": ("POST", "/v1/hosts/{id}/uncordon", None),
}


class Console:
    """An ASGI wrapper that answers `/` and what lies below `/console/`, and passes everything else on."""

    def __init__(self, app: ASGIApp, api: ASGIApp, parts: Parts) -> None:
        self._app = app
        self._api = api
        self._parts = parts
        self._logins = Pace(per_second=1 / _LOGIN_PAUSE_SECONDS, ahead=_LOGINS_AT_ONCE - 1)
        self._console = Starlette(
            routes=[
                Route("/", self._page),
                Route("/console/login", self._login, methods=["GET", "POST"]),
                Route("/console/logout", self._logout, methods=["POST"]),
                Route("/console/static/{name}", self._static),
                Route("/console/{kind}/{id}/{verb}", self._act, methods=["POST"]),
                Route("/console/{kind}", self._page),
                Route("/console/{kind}/{id}", self._page),
            ]
        )
        problems.install(self._console)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_ours = scope["type"] == "http" and (path == "/" or path.startswith("/console/"))
        await (self._console if is_ours else self._app)(scope, receive, send)

    async def _page(self, request: Request) -> Response:
        kind = request.path_params.get("kind", "fleet")
        if kind not in PAGES:
            raise NotFound("there is no such page of the console")
        return await self._as_visitor(request, lambda api, known: self._show(request, api, known, kind))

    async def _show(
        self, request: Request, api: httpx2.AsyncClient, known: Session, kind: str, problem: str | None = None
    ) -> Response:
        found = await PAGES[kind](api, request.path_params.get("id"))
        path = quote(request.scope["path"] if problem is None else f"/console/{kind}/{request.path_params['id']}")
        page = render(kind, found | {"csrf": known.csrf, "problem": problem, "path": path})
        return HTMLResponse(page, status_code=409 if problem else 200, headers=_HEADERS)

    async def _act(self, request: Request) -> Response:
        kind, verb = request.path_params["kind"], request.path_params["verb"]
        if f"{kind}/{verb}" not in ACTIONS:
            raise NotFound("there is no such form of the console")
        return await self._as_visitor(request, lambda api, known: self._call(request, api, known))

    async def _call(self, request: Request, api: httpx2.AsyncClient, known: Session) -> Response:
        form = await _form(request)
        if not hmac.compare_digest(form.get("csrf", "").encode(), known.csrf.encode()):
            raise Forbidden("this form is of another session: open the page again")
        kind, vm_id = request.path_params["kind"], request.path_params["id"]
        method, path, body = ACTIONS[f"{kind}/{request.path_params['verb']}"]
        answer = await api.request(method, path.format(id=quote(vm_id, safe="")), json=body)
        if answer.status_code >= 400:
            return await self._show(request, api, known, kind, problem=answer.json()["detail"])
        return RedirectResponse(f"/console/{kind}/{quote(vm_id, safe='')}", status_code=303)

    async def _as_visitor(
        self, request: Request, answer: Callable[[httpx2.AsyncClient, Session], Awaitable[Response]]
    ) -> Response:
        """Answer somebody with a session, and keep it alive; anybody else is asked to log in."""
        known = sessions.read(self._parts.keys, request)
        if known is None:
            return RedirectResponse("/console/login", status_code=303)
        async with inner_client(self._api, request, known.authorization) as api:
            try:
                response = await answer(api, known)
            except Refused as refused:
                if refused.status == 401:
                    return RedirectResponse("/console/login", status_code=303)
                page = render("refused", {"problem": refused.detail, "csrf": known.csrf, "path": "/"})
                response = HTMLResponse(page, status_code=refused.status, headers=_HEADERS)
        sessions.write(self._parts.keys, response, known, secure=request.url.scheme == "https")
        return response

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            return HTMLResponse(render("login", {"problem": None}), headers=_HEADERS)
        if self._logins.place(request.client.host if request.client else "") is None:
            told = {"problem": f"too many attempts from here: try again in {_LOGIN_PAUSE_SECONDS} s"}
            headers = {**_HEADERS, "Retry-After": str(_LOGIN_PAUSE_SECONDS)}
            return HTMLResponse(render("login", told), status_code=429, headers=headers)
        token = (await _form(request)).get("token", "").strip()
        begun = sessions.begin(token)
        async with inner_client(self._api, request, begun.authorization) as api:
            answer = await api.get("/v1/vms", params={"limit": 1})
        if answer.status_code >= 400:
            problem = {"problem": answer.json()["detail"]}
            return HTMLResponse(render("login", problem), status_code=answer.status_code, headers=_HEADERS)
        response = RedirectResponse("/", status_code=303)
        sessions.write(self._parts.keys, response, begun, secure=request.url.scheme == "https")
        return response

    async def _logout(self, request: Request) -> Response:
        known = sessions.read(self._parts.keys, request)
        response = RedirectResponse("/console/login", status_code=303)
        if known is None or hmac.compare_digest((await _form(request)).get("csrf", "").encode(), known.csrf.encode()):
            sessions.end(response)
        return response

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _FILES:
            raise NotFound("there is no such file of the console")
        return FileResponse(_STATIC / name, media_type=_FILES[name])


async def _form(request: Request) -> dict[str, str]:
    """Read a plain form; what is none is an empty one."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
