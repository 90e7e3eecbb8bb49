"""What the API says of itself: health, OpenAPI, readable docs (S-34, A-1)."""

from __future__ import annotations

import json
import re
from typing import Any

from api.app import bare_app
from tests.api.conftest import World


async def test_health_and_readiness_say_no_more_than_that(world: World) -> None:
    """S-34."""
    assert (await world.client.get("/healthz")).json() == {"status": "ok"}
    answer = await world.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "degraded"})


async def test_docs_hold_no_script_and_load_nothing(world: World) -> None:
    """S-34: scripts of the docs are ours: there is none."""
    answer = await world.client.get("/docs")
    page = answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"<script|javascript:|\son\w+=|src=|@import|url\(|http://|<link", page, re.IGNORECASE)
    for path in bare_app().openapi()["paths"]:
        assert path in page
    for word in ("user_data", "NewVmBody", "ssh_authorized_keys", "OneVmDocument"):
        assert word in page


def test_every_answer_and_body_has_a_shape() -> None:
    """A-1: no answer without a schema; every error is a problem; every call says how to authenticate."""
    document = bare_app().openapi()
    schemas = document["components"]["schemas"]
    assert document["openapi"].startswith("3.1")
    assert "HTTPValidationError" not in schemas
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            assert call["description"], path
            assert list(call["responses"]["default"]["content"]) == ["application/problem+json"]
            good = [response for status, response in call["responses"].items() if status.startswith("2")]
            assert len(good) == 1
            schema = good[0]["content"]["application/json"]["schema"]
            assert "$ref" in schema, (method, path, schema)
            assert ("security" in call) == path.startswith("/v1/")
    for reference in re.findall(r"#/components/schemas/([^'\"]+)", str(document)):
        assert reference in schemas, reference


def test_limits_are_stated_in_the_schema() -> None:
    """A-8."""
    schemas = bare_app().openapi()["components"]["schemas"]
    body: dict[str, Any] = schemas["NewVmBody"]["properties"]
    assert body["cpu_millicores"]["maximum"] == 32_000
    assert (body["ssh_authorized_keys"]["maxItems"], body["ssh_authorized_keys"]["items"]["maxLength"]) == (16, 8192)
    assert body["metadata"]["maxProperties"] == 16
    assert "65536" in str(body["user_data"])
    for name, schema in schemas.items():
        if name.endswith("Body"):
            assert schema["additionalProperties"] is False, name
    secret = {"user_data", "secrets", "credential", "hash", "sealing_key"}
    shown = {name: set(schema.get("properties", {})) & secret for name, schema in schemas.items()}
    assert shown.pop("JoinedHost") == {"sealing_key"}
    assert schemas["UserData"]["properties"].keys() == {"bytes", "digest"}
    given = {"NewVmBody", "VmDocument", "OneVmDocument", "VmInput"}
    assert {name for name, found in shown.items() if found} == given


def test_the_ids_of_our_rules_are_not_for_callers() -> None:
    """A rule's id tells a caller nothing; only what it says does."""
    text = json.dumps(bare_app().openapi())
    assert not re.search(r"\([A-Z]-[A-Z]?[0-9]+", text)
