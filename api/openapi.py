"""The OpenAPI document: what FastAPI derives, with how to authenticate and what an error looks like."""

from __future__ import annotations

import re
from typing import Any, cast

from fastapi import FastAPI

from api.documents.base import Problem
from api.problems import MEDIA_TYPE

PROBLEM: dict[int | str, dict[str, Any]] = {"default": {"model": Problem, "description": "A problem (RFC 9457)"}}
_RULE_IDS = re.compile(r" \((?:[A-Z]-[A-Z]?[0-9]+(?:, )?)+\)")
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token: hst_…"},
    "host": {"type": "http", "scheme": "bearer", "description": "The credential of an enrolled host: hsh_…"},
    "join": {"type": "http", "scheme": "bearer", "description": "The join token of a new host: hsj_…"},
}


def install(app: FastAPI) -> None:
    """Make `app` describe itself so."""
    derived = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = describe(derived())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """Add to FastAPI's document what it does not know, and leave out what only we do: the ids of our rules."""
    _drop_rule_ids(document)
    document.setdefault("components", {})["securitySchemes"] = _SCHEMES
    for path, calls in document["paths"].items():
        for call in calls.values():
            if path.startswith("/v1/"):
                call["security"] = [{_scheme_of(path): []}]
            problem = call["responses"].get("default", {})
            if "application/json" in problem.get("content", {}):
                problem["content"] = {MEDIA_TYPE: problem["content"]["application/json"]}
    return document


def _scheme_of(path: str) -> str:
    if path == "/v1/host/join":
        return "join"
    return "host" if path.startswith("/v1/host/") else "token"


def _drop_rule_ids(node: Any) -> None:
    if isinstance(node, dict):
        for key, value in cast("dict[str, Any]", node).items():
            if key == "description" and isinstance(value, str):
                node[key] = _RULE_IDS.sub("", value)
            else:
                _drop_rule_ids(value)
    elif isinstance(node, list):
        for value in cast("list[Any]", node):
            _drop_rule_ids(value)
