"""A small HTTP server that stands in for the API where a test must say what rows look like, moment by moment.

It answers over real HTTP, and refuses bodies that the API's own models refuse.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ValidationError

from api.bodies import ChangeVmBody, NewImageBody, NewVmBody, RebuildBody

Document = dict[str, Any]
VM_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
HOST_ID = "01890a5d-ac96-774b-bcce-b302099a8001"
HOST_KEY = "ssh-ed25519 " + "A" * 68


def vm(**changes: Any) -> Document:
    """A row as the API shows it: running and settled; `changes` override."""
    return {
        "id": VM_ID,
        "project": "default",
        "name": "web-1",
        "phase": "ready",
        "power_state": "running",
        "desired_power_state": "running",
        "status_detail": None,
        "last_error": None,
        "last_exit": None,
        "last_known": {"phase": "ready", "power_state": "running", "seen_at": "2026-01-01T00:00:00+00:00"},
        "addresses": {"ip": "127.0.0.1", "ip6": None, "network_ip": None},
        "mac": "02:00:00:00:00:01",
        "ssh_host_key": HOST_KEY,
        "image": "demo",
        "cpu_millicores": 1500,
        "memory_mib": 512,
        "disk_gib": None,
        "ssh_authorized_keys": [HOST_KEY],
        "user_data": None,
        "labels": {},
        "metadata": {},
        "generation": 1,
        "settled": True,
        "host": {"id": HOST_ID, "name": "host-1"},
        "quarantine": None,
        "created_at": "2026-01-01T00:00:00+00:00",
        "operation": None,
        **changes,
    }


def step(words: str | None, **changes: Any) -> Document:
    """A row of a create that is at the step that `words` narrate."""
    return vm(phase="creating", power_state=None, settled=False, status_detail=words, **changes)


@dataclass
class Asked:
    """One request that came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Fleet:
    """What the server knows. `states` are the rows that GET of the one VM answers in turn, the last for ever."""

    states: list[Any] = field(default_factory=lambda: [vm()])
    listed: list[Document] | None = None
    hosts: list[Document] = field(default_factory=list)
    images: list[Document] = field(default_factory=list)
    answers: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    on_get: Callable[[], None] | None = None
    url: str = ""

    def answer(self, asked: Asked) -> tuple[int, Any]:
        fixed = self.answers.get((asked.method, asked.path))
        if fixed is not None:
            return fixed
        refused = validate(asked)
        if refused is not None:
            return 422, refused
        return self._answer_get(asked) if asked.method == "GET" else (201, self.states[0])

    def _answer_get(self, asked: Asked) -> tuple[int, Any]:
        if asked.path == "/v1/vms":
            items = self.listed if self.listed is not None else [self.states[0]]
            name = asked.query.get("name")
            return 200, {"items": [each for each in items if name in (None, each["name"])], "next_cursor": None}
        if asked.path in ("/v1/hosts", "/v1/images"):
            return 200, {"items": self.hosts if asked.path == "/v1/hosts" else self.images, "next_cursor": None}
        if asked.path == f"/v1/vms/{VM_ID}":
            if self.on_get is not None:
                self.on_get()
            state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
            return state if isinstance(state, tuple) else (200, state)
        return 404, problem(404, "there is nothing of this name")


def problem(status: int, detail: str, **more: Any) -> Document:
    return {"type": "urn:hostler:problem:test", "title": "A title", "status": status, "detail": detail, **more}


def validate(asked: Asked) -> Document | None:
    """Read a body with the API's model of it; return the problem if it does not fit."""
    kinds: dict[tuple[str, str], type[BaseModel]] = {
        ("POST", "/v1/vms"): NewVmBody,
        ("POST", "/v1/images"): NewImageBody,
        ("PATCH", f"/v1/vms/{VM_ID}"): ChangeVmBody,
        ("POST", f"/v1/vms/{VM_ID}/rebuild"): RebuildBody,
    }
    kind = kinds.get((asked.method, asked.path))
    if kind is None and asked.method == "PUT":
        kind = NewVmBody
    if kind is None:
        return None
    try:
        kind.model_validate_json(json.dumps(asked.body))
    except ValidationError as error:
        return problem(422, str(error))
    return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fleet: Fleet

    def _serve(self) -> None:
        length = int(self.headers.get("content-length", "0"))
        data = self.rfile.read(length)
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        headers = {key.lower(): value for key, value in self.headers.items()}
        asked = Asked(self.command, parts.path, query, headers, json.loads(data) if data else None)
        self.fleet.asked.append(asked)
        status, document = self.fleet.answer(asked)
        answer = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("location", "http://127.0.0.2:1/elsewhere")
        self.send_header("content-type", "application/json" if status < 400 else "application/problem+json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


def serve(fleet: Fleet) -> ThreadingHTTPServer:
    """Serve `fleet` on a free port of loopback, in threads, until `shutdown`."""
    handler = type("Handler", (_Handler,), {"fleet": fleet})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    fleet.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server
