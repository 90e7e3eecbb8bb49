"""JSON documents that come from outside: read so that a part of another type counts as one that is not there."""

from __future__ import annotations

from typing import Any, cast

Document = dict[str, Any]


def inner(document: Document, key: str) -> Document:
    """Return the object at `key`, or an empty one."""
    found = document.get(key)
    return cast("Document", found) if isinstance(found, dict) else {}


def things(document: Document, key: str) -> list[Any]:
    """Return the list at `key`, or an empty one."""
    found = document.get(key)
    return cast("list[Any]", found) if isinstance(found, list) else []


def documents(document: Document, key: str) -> list[Document]:
    """Return the objects of the list at `key`."""
    return [cast("Document", each) for each in things(document, key) if isinstance(each, dict)]
