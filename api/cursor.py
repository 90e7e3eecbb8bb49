"""Pages of a list: a cursor names the last item seen, and works although that item is gone (A-5)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from fastapi import Query

from model.errors import Invalid
from model.ids import check_label

Limit = Annotated[int, Query(ge=1, le=500, description="The most items of one page")]
Cursor = Annotated[str | None, Query(max_length=128, description="The next_cursor of the page before")]
_PREFIX = b"after:"


class HasId(Protocol):
    @property
    def id(self) -> str: ...


def read_cursor(cursor: str | None) -> str | None:
    """Return the id that a cursor names; raise Invalid for one that this API did not make."""
    if cursor is None:
        return None
    try:
        plain = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        if not plain.startswith(_PREFIX):
            raise ValueError("another prefix")
        return check_label(plain.removeprefix(_PREFIX).decode())
    except (ValueError, binascii.Error, UnicodeError) as error:
        raise Invalid("cursor: not one of this API; start again without it") from error


def page(items: Sequence[HasId], documents: list[Any], limit: int) -> dict[str, Any]:
    """Return a page; `items` hold one more than `limit` where there is a next one."""
    more = len(items) > limit
    cursor = base64.urlsafe_b64encode(_PREFIX + items[limit - 1].id.encode()).decode().rstrip("=") if more else None
    return {"items": documents[:limit], "next_cursor": cursor}
