"""Speak with the API. The token goes to the one URL that was chosen: no redirect and no proxy is ever followed."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any, cast
from uuid import UUID

import httpx2

from cli.document import Document, documents, things
from cli.failures import NoSuchThing, NotReachable, Problem, Unsuccessful
from cli.output import say
from cli.place import Place, find_place
from model.errors import Conflict
from model.text import clean_text

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 75.0
_PAGE = 500
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


class Api:
    """One connection to the API.

    Errors of every call: Problem, when the API refuses or fails; NotReachable, when it does not answer.
    """

    def __init__(self, place: Place | None = None) -> None:
        self.place = place or find_place()
        self._noticed: set[str] = set()
        headers = {"Accept": "application/json"}
        if self.place.token is not None:
            headers["Authorization"] = f"Bearer {self.place.token}"
        try:
            self._client = httpx2.Client(
                base_url=self.place.url,
                headers=headers,
                timeout=httpx2.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
                trust_env=False,
                follow_redirects=False,
            )
        except httpx2.InvalidURL as error:
            raise NotReachable("HOSTLER_URL is no URL: it must be such as http://127.0.0.1:8460") from error

    def __enter__(self) -> Api:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def get(self, path: str, **query: object) -> Document:
        return self.call("GET", path, query=query)

    def call(self, method: str, path: str, *, query: Document | None = None, body: Document | None = None) -> Document:
        """Call and return the answer's document. Of `query`, what is None is left out."""
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            answer = self._client.request(method, path, params=cast("Any", asked), json=body)
        except (httpx2.TransportError, httpx2.InvalidURL, httpx2.DecodingError) as error:
            raise NotReachable(self._unreachable(method, error)) from error
        self._pass_on(answer)
        return self._read(answer)

    def _pass_on(self, answer: httpx2.Response) -> None:
        """Say what every answer tells, such as that the fleet is frozen, once (H-R3)."""
        for notice in answer.headers.get_list("hostler-notice"):
            if notice not in self._noticed:
                self._noticed.add(notice)
                say(f"note: {notice}")

    def list(self, path: str, *, most: int | None = None, **query: object) -> Document:
        """Return all pages of a list as one, or its first `most` items."""
        items: list[Any] = []
        cursor: str | None = None
        while True:
            room = _PAGE if most is None else min(_PAGE, most - len(items))
            found = self.get(path, **query, limit=room, cursor=cursor)
            items += things(found, "items")
            cursor = found.get("next_cursor")
            if not cursor or (most is not None and len(items) >= most):
                return {"items": items, "next_cursor": cursor}

    def find_vm(self, name: str) -> Document:
        """Return the VM with this name or id; a name wins unless it is a UUID. Errors: NoSuchThing, Conflict."""
        if not _LABEL.fullmatch(name):
            raise NoSuchThing(f"there is no VM '{clean_text(name, 256)}': names and ids are of a-z, 0-9 and '-'")
        looks = (self._by_id, self._by_name) if _is_uuid(name) else (self._by_name, self._by_id)
        for look in looks:
            found = look(name)
            if found is not None:
                return found
        raise NoSuchThing(f"there is no VM with the name or id {name}; `hostler vm ls` lists those that are there")

    def find_vm_id(self, name: str) -> str:
        """Return the id of the VM with this name or id."""
        return str(self.find_vm(name)["id"])

    def _by_name(self, name: str) -> Document | None:
        items = documents(self.get("/v1/vms", name=name, limit=_PAGE), "items")
        if len(items) > 1:
            ids = ", ".join(f"{vm.get('id')} (project {vm.get('project')})" for vm in items)
            raise Conflict(f"several VMs are called {name}; give the id of one: {ids}")
        return items[0] if items else None

    def _by_id(self, vm_id: str) -> Document | None:
        try:
            return self.get(f"/v1/vms/{vm_id}")
        except Problem as problem:
            if problem.http_status in (404, 422):
                return None
            raise

    def _read(self, answer: httpx2.Response) -> Document:
        try:
            document: Any = answer.json() if answer.content else {}
        except ValueError:
            document = None
        if answer.is_success and isinstance(document, dict):
            return cast("Document", document)
        if isinstance(document, dict) and not answer.is_redirect:
            raise Problem(answer.status_code, cast("Document", document))
        if answer.is_redirect:
            raise Unsuccessful("the API answered with a redirect, which is not followed: set HOSTLER_URL to its place")
        raise Unsuccessful(f"what answers at HOSTLER_URL is not Hostler's API: HTTP {answer.status_code}, no JSON")

    def _unreachable(self, method: str, error: Exception) -> str:
        where = clean_text(self._client.base_url.host, 256)
        port = f":{self._client.base_url.port}" if self._client.base_url.port else ""
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return f"the API at {where}{port} is not reachable: `hostler status` says what is up"
        arrived = "" if method == "GET" else "; whether it got the request is not known, so look before you repeat it"
        return f"the API at {where}{port} stopped answering{arrived}"


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
