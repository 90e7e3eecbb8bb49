"""What each page shows: answers of the API, put into a template that escapes every text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import jinja2

from model.capacity import DIMENSIONS, Caps, amount
from model.text import clean_text

Found = dict[str, Any]
_NAMES = {"cpu_millicores": "CPU", "memory_mib": "memory", "disk_gib": "disk"}
_MOVING = ("creating", "destroying", "migrating")


class Refused(Exception):
    """The API's refusal, as the page shows it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


async def _get(api: httpx2.AsyncClient, path: str, **query: object) -> Found:
    answer = await api.get(path, params={name: str(value) for name, value in query.items()})
    if answer.status_code >= 400:
        raise Refused(answer.status_code, answer.json()["detail"])
    found: Found = answer.json()
    return found


async def _maybe(api: httpx2.AsyncClient, path: str, **query: object) -> list[Found]:
    """List what the visitor may see, nothing where they may not."""
    try:
        return (await _get(api, path, **query))["items"]
    except Refused as refused:
        if refused.status == 403:
            return []
        raise


async def _fleet(api: httpx2.AsyncClient, _: str | None) -> Found:
    vms = (await _get(api, "/v1/vms", limit=500))["items"]
    hosts = [host | {"bars": bars(host)} for host in await _maybe(api, "/v1/hosts", limit=500)]
    conditions = (await _get(api, "/v1/conditions"))["items"]
    phases = Counter(vm["phase"] for vm in vms)
    moving = [vm for vm in vms if vm["phase"] in _MOVING or not vm["settled"]]
    return {"vms": vms, "hosts": hosts, "conditions": conditions, "phases": sorted(phases.items()), "moving": moving}


async def _vm(api: httpx2.AsyncClient, vm_id: str | None) -> Found:
    return {"vm": await _get(api, f"/v1/vms/{quote(vm_id or '', safe='')}")}


async def _host(api: httpx2.AsyncClient, host_id: str | None) -> Found:
    host = await _get(api, f"/v1/hosts/{quote(host_id or '', safe='')}")
    vms = (await _get(api, "/v1/vms", host=host["id"], limit=500))["items"]
    return {"host": host | {"bars": bars(host)}, "vms": vms}


async def _quarantine(api: httpx2.AsyncClient, _: str | None) -> Found:
    return {"vms": (await _get(api, "/v1/vms", phase="quarantined", limit=500))["items"]}


async def _audit(api: httpx2.AsyncClient, _: str | None) -> Found:
    return {"entries": (await _get(api, "/v1/audit", limit=200))["items"]}


PAGES: dict[str, Callable[[httpx2.AsyncClient, str | None], Awaitable[Found]]] = {
    "fleet": _fleet,
    "vms": _vm,
    "hosts": _host,
    "quarantine": _quarantine,
    "audit": _audit,
}


def bars(host: Found) -> list[Found]:
    """Say of each dimension what is held of how much; unknown where nothing was reported (H-P7)."""
    caps = Caps.model_validate(host["caps"] or {})
    size: dict[str, int | None] = host["capacity"] or {}
    total = {
        "cpu_millicores": size.get("cpu_millicores_total"),
        "memory_mib": size.get("memory_mib_total"),
        "disk_gib": (size.get("storage_bytes_total") or 0) >> 30 or None,
    }
    return [_bar(host, name, caps.limit(name), total[name]) for name in DIMENSIONS]


def _bar(host: Found, name: str, cap: int | None, size: int | None) -> Found:
    held = host["held"]["live"][name] + host["held"]["leaving"][name]
    limit = cap if cap is not None else size
    over: int = host["over_by"][name] if host["over_by"] else 0
    told = f"{amount(name, held)} of {amount(name, limit, True) if limit is not None else 'an unknown size'}"
    leaving = host["held"]["leaving"][name]
    return {
        "name": _NAMES[name],
        "held": held,
        "limit": limit,
        "told": told + (f", {amount(name, leaving, True)} being torn down" if leaving else ""),
        "over": f"over by {amount(name, over, True)}" if over else None,
        "no_cap": cap is None,
    }


def moment(text: str | None) -> str:
    """Write a moment as people read it, in UTC."""
    return "" if not text else datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def left(text: str | None) -> str:
    """Write how long it is until a moment."""
    if not text:
        return ""
    seconds = int((datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds())
    if seconds <= 0:
        return "now"
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"


@cache
def _templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    found = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    found.filters |= {"moment": moment, "left": left, "clean": lambda text: clean_text(str(text)) if text else ""}
    return found


def render(name: str, found: Found) -> str:
    """Make a page."""
    return _templates().get_template(f"{name}.html").render(page=name, **found)
