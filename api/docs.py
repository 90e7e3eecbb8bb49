"""Readable docs made from the OpenAPI document: plain HTML without a script of anybody's (S-34)."""

from __future__ import annotations

from html import escape
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{background:#8882;padding:.1em .3em;border-radius:.2em}h2{margin-top:2em}dt{margin-top:1em}
dd{margin-left:1.5em}:root{color-scheme:light dark}"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


@router.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> HTMLResponse:
    """Show every call with its parameters and its body."""
    schema = cast("dict[str, Any]", request.app.openapi())
    sections = "".join(
        _call(path, method, call) for path, calls in schema["paths"].items() for method, call in calls.items()
    )
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Hostler API</title>"
        f"<style>{_STYLE}</style><h1>Hostler API {escape(schema['info']['version'])}</h1>"
        "<p>The exact document is <a href=/openapi.json>openapi.json</a>. Errors are problem documents (RFC 9457); "
        f"send <code>Authorization: Bearer hst_…</code>.</p>{sections}{_schemas(schema)}"
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})


def _call(path: str, method: str, call: dict[str, Any]) -> str:
    text = escape(str(call.get("description", call.get("summary", ""))))
    parameters = "".join(
        f"<dt><code>{escape(p['name'])}</code> in {escape(p['in'])}</dt><dd>{escape(p.get('description', ''))}</dd>"
        for p in call.get("parameters", [])
    )
    body = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    name = str(body.get("$ref", "")).rpartition("/")[2]
    link = f"<p>Body: <a href=#{escape(name)}>{escape(name)}</a></p>" if name else ""
    return f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{text}</p><dl>{parameters}</dl>{link}"


def _schemas(schema: dict[str, Any]) -> str:
    found = cast("dict[str, Any]", schema.get("components", {}).get("schemas", {}))
    parts = [f"<h2 id={escape(name)}>{escape(name)}</h2>{_fields(body)}" for name, body in sorted(found.items())]
    return "".join(parts)


def _fields(body: dict[str, Any]) -> str:
    fields = cast("dict[str, Any]", body.get("properties", {}))
    rows = "".join(
        f"<dt><code>{escape(name)}</code></dt><dd>{escape(_kind(field))}</dd>" for name, field in fields.items()
    )
    return f"<p>{escape(str(body.get('description', '')))}</p><dl>{rows}</dl>"


def _kind(field: dict[str, Any]) -> str:
    kinds = [
        str(option.get("type", option.get("$ref", "")).rpartition("/")[2] or "any")
        for option in field.get("anyOf", [field])
    ]
    limits = {k: v for k, v in field.items() if k in ("minimum", "maximum", "maxLength", "maxItems", "default", "enum")}
    return " or ".join(kinds) + "".join(f", {name} {value}" for name, value in limits.items())
