"""Pages of a list: a cursor names the last item seen, and works although that item is gone (A-5)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol, TypeVar

from fastapi import Depends, Query

from api.documents.base import Page
from model.errors import FieldError, Invalid
from model.ids import check_label

Limit = Annotated[int, Query(ge=1, le=500, description="The most items of one page")]
_PREFIX = b"after:"
_NOT_OURS = "not one of this API; start again without it"


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Stored = TypeVar("Stored", bound=HasId)
Item = TypeVar("Item")


def _read(
    cursor: Annotated[str | None, Query(max_length=128, description="The next_cursor of the page before")] = None,
) -> str | None:
    """Return the id that a cursor names; raise Invalid for one that this API did not make."""
    if cursor is None:
        return None
    try:
        plain = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        if not plain.startswith(_PREFIX):
            raise ValueError("another prefix")
        return check_label(plain.removeprefix(_PREFIX).decode())
    except ValueError as error:
        raise Invalid(f"cursor: {_NOT_OURS}", errors=(FieldError("query:cursor", _NOT_OURS),)) from error


After = Annotated[str | None, Depends(_read)]


def page(items: Sequence[Stored], limit: int, view: Callable[[Stored], Item]) -> Page[Item]:
    """Return a page; `items` hold one more than `limit` where there is a next one."""
    cursor = None
    if len(items) > limit:
        cursor = base64.urlsafe_b64encode(_PREFIX + items[limit - 1].id.encode()).decode().rstrip("=")
    return Page(items=[view(item) for item in items[:limit]], next_cursor=cursor)
