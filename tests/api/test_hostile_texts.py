"""Names and texts that nobody honest sends, in every field, parameter and path of the API (S-17, S-20, S-45)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from model.join import JoinString
from model.text import clean_text
from tests.api.conftest import IMAGE, World, vm_body

JSON = {"content-type": "application/json"}
HOSTILE = {
    "newline": "web\n",
    "terminal": "\x1b]0;owned\x07\x1b[2J",
    "right to left": "web\u202egnp",
    "hidden": "we\u200bb",
    "html": "<img src=x onerror=alert(1)>",
    "terminal markup": "[link=https://evil.test]web[/link]",
    "sql": "x'; drop table vm; --",
    "path": "../../etc/passwd",
    "long": "a" * 70_000,
    "nul": "web\0",
    "other digits": "\u0661\u0662",
    "look-alike": "w\u0435b",
    "format": "{0.__class__}%n%s${jndi:ldap://x}",
    "half a surrogate": "\ud800",
}
BASES: dict[str, dict[str, Any]] = {
    "/v1/vms": vm_body(),
    "/v1/vms/{vm_id}": vm_body(),
    "/v1/images": {"name": "demo", "rootfs": IMAGE},
    "/v1/volumes": {"name": "data", "size_gib": 1},
    "/v1/tokens": {"name": "ci", "role": "viewer"},
    "/v1/hosts": {"name": "h9"},
}
"""Bodies that are accepted, so that a hostile text is judged beside good ones."""
PRINTABLE = frozenset({"html", "terminal markup", "sql", "path", "format"})
"""Printable ASCII, which a label's value, a reason and the like may be: data, shown as it is."""


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give a schema's alternatives, references followed."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    inner = schema.get("anyOf") or schema.get("oneOf")
    if inner:
        for each in inner:
            yield from resolve(document, each)
    else:
        yield schema


def wrong(document: dict[str, Any], schema: dict[str, Any], text: str, depth: int = 3) -> Iterator[Any]:
    """Give values that hold the text in each place where a value of the schema can hold one."""
    for each in resolve(document, schema):
        yield text
        if each.get("type") == "array":
            yield [text]
        elif each.get("type") == "object" and depth:
            yield {text: "x"}
            if "properties" not in each:
                yield {"key": text}
            for name, inner in each.get("properties", {}).items():
                for value in wrong(document, inner, text, depth - 1):
                    yield {name: value}


def bodies(document: dict[str, Any], path: str, operation: dict[str, Any], text: str) -> Iterator[Any]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return
    base = BASES.get(path, {})
    for value in wrong(document, content["schema"], text):
        yield {**base, **value} if isinstance(value, dict) else value


def is_verbatim(body: Any, text: str) -> bool:
    """Say whether the text stands where any text may: what cloud-init gets, and what a VM's own metadata say."""
    return isinstance(body, dict) and (body.get("user_data") == text or text in (body.get("metadata") or {}).values())


async def count_rows(world: World) -> dict[str, int]:
    tables = await world.pool.fetch("select tablename from pg_tables where schemaname = 'public'")
    return {t[0]: await world.pool.fetchval(f'select count(*) from "{t[0]}"') for t in tables}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
async def test_a_hostile_text_in_any_place_is_refused_or_data(world: World, kind: str) -> None:
    """S-20, S-17, A-1: a clear refusal, or data where any text may be; nothing that was there is lost."""
    text = HOSTILE[kind]
    await world.add_host(name="h2")
    kept = await world.create(host="h2")
    document = (await world.client.get("/openapi.json")).json()
    before = await count_rows(world)
    asked = 0
    for method, path, operation in operations(document):
        if method == "GET" or path.startswith("/v1/host/"):
            continue
        at = path.replace("{vm_id}", kept["id"]).replace("{host}", "h2")
        for body in bodies(document, path, operation, text):
            answer = await world.call(
                method, at.replace("{", "").replace("}", ""), content=json.dumps(body), headers=JSON
            )
            asked += 1
            if answer.is_success:
                assert kind in PRINTABLE or is_verbatim(body, text), (method, path, body)
    assert asked > 100
    for method, path, operation in operations(document):
        if "{" in path and "text/event-stream" not in str(operation):
            at = re.sub(r"\{[^}]*\}", quote(text[:2000].encode("utf-8", "surrogatepass"), safe=""), path)
            answer = await world.call(method, at)
            assert answer.status_code in (401, 403, 404, 405, 409, 422), (method, path, answer.status_code)
            assert "\x1b" not in answer.text
    after = await count_rows(world)
    assert all(after[table] >= before[table] for table in before)
    row = (await world.call("GET", f"/v1/vms/{kept['id']}")).json()
    assert (row["id"], row["name"]) == (kept["id"], kept["name"])


@pytest.mark.parametrize("kind", ["terminal", "right to left", "nul"])
async def test_what_a_joining_machine_calls_itself_is_data(world: World, kind: str) -> None:
    """S-17, S-20: escaped where it comes in, as in a host's reports."""
    token = (await world.call("POST", "/v1/hosts", json={"name": "h9"})).json()["join"]
    body = {"credential_digest": "a" * 64, "machine_id": HOSTILE[kind]}
    assert (await world.as_host(JoinString.parse(token).token, "POST", "/v1/host/join", json=body)).status_code == 201
    stored = await world.pool.fetchval("select machine_id from hosts where name = 'h9'")
    assert stored == clean_text(HOSTILE[kind])
    assert stored.isprintable()
