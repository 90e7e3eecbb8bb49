"""A host's room as people read it: how much is held, by whom, of what, and what is wrong with it (H-P7, D-12)."""

from __future__ import annotations

from cli.document import Document, documents, inner
from model.capacity import DIMENSIONS, Caps, amount

WIDTH, SHORT_WIDTH = 20, 8
NEAR = 0.9
_NAMES = {"cpu_millicores": "cpu", "memory_mib": "memory", "disk_gib": "disk"}


def describe_room(host: Document) -> list[tuple[str, str]]:
    """Write a line for each dimension: a bar, what is held of how much, what is being torn down, what is over."""
    return [(_NAMES[name], _describe(host, name)) for name in DIMENSIONS]


def describe_conditions(host: Document) -> list[tuple[str, str]]:
    """Write a line for each thing that is wrong with a host, with what a person can do."""
    return [
        (str(each.get("condition")), f"{each.get('what')}; {each.get('advice')}")
        for each in documents(host, "conditions")
    ]


def short_room(host: Document, name: str) -> str:
    """Write one dimension for a list: a short bar, what is held of how much, and what is over."""
    live, leaving, limit, capped = _numbers(host, name)
    if live is None or limit is None:
        return "unknown"
    over = _over(name, live + leaving, limit, capped)
    bar = _bar(live, leaving, limit, SHORT_WIDTH)
    return f"{bar} {amount(name, live + leaving)} of {amount(name, limit, True)}{over}"


def _describe(host: Document, name: str) -> str:
    live, leaving, limit, capped = _numbers(host, name)
    if live is None:
        return "unknown"
    held = live + leaving
    torn = f", {amount(name, leaving, True)} of it being torn down" if leaving else ""
    if limit is None:
        return f"{amount(name, held, True)} held of an unknown size{torn}"
    told = f"{_bar(live, leaving, limit, WIDTH)} {amount(name, held)} of {amount(name, limit, True)} held{torn}"
    return told + (_over(name, held, limit, capped) if capped else ", no cap")


def _numbers(host: Document, name: str) -> tuple[int | None, int, int | None, bool]:
    """Read what is held by the living and the leaving, and of how much: of the cap, else of the machine's size."""
    held = inner(host, "held")
    live, leaving = inner(held, "live").get(name), inner(held, "leaving").get(name)
    cap = _cap(host, name)
    limit = cap if cap is not None else _size(inner(host, "capacity"), name)
    known = live if isinstance(live, int) else None
    return known, leaving if isinstance(leaving, int) else 0, limit, cap is not None


def _cap(host: Document, name: str) -> int | None:
    told = {key: value for key, value in inner(host, "caps").items() if isinstance(value, int)}
    return Caps.model_validate(told).limit(name)


def _size(capacity: Document, name: str) -> int | None:
    sizes = {
        "cpu_millicores": "cpu_millicores_total",
        "memory_mib": "memory_mib_total",
        "disk_gib": "storage_bytes_total",
    }
    size = capacity.get(sizes[name])
    if not isinstance(size, int):
        return None
    return size >> 30 if name == "disk_gib" else size


def _over(name: str, held: int, limit: int, capped: bool) -> str:
    if not capped:
        return ""
    if held > limit:
        return f", over by {amount(name, held - limit)}"
    return ", nearly full" if held >= NEAR * limit else ""


def _bar(live: int, leaving: int, limit: int, width: int) -> str:
    """Draw `#` for the living, `~` for the leaving, `.` for what is free; what is held at all shows."""
    if limit <= 0:
        return f"[{'#' * width}]"
    first = min(width, -(-live * width // limit))
    both = min(width, max(first + bool(leaving), -(-(live + leaving) * width // limit)))
    return f"[{'#' * first}{'~' * (both - first)}{'.' * (width - both)}]"
