"""A reading that many ask for at once, made once for all of them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedRead(Generic[T]):
    """Answer each call with a reading that began after it; calls that come while one is made share the next.

    So a crowd of looks costs two readings and not one each, and the newest change before a call is always seen.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._next: asyncio.Task[T] | None = None
        self._now: asyncio.Task[T] | None = None

    async def read(self) -> T:
        """Return a reading that began after this call. Cancelling a call leaves the others theirs."""
        if self._next is None:
            # Its own context: the reading is nobody's in particular, whichever job asked for it first.
            self._next = asyncio.create_task(self._after(self._now), context=contextvars.Context())
            self._next.add_done_callback(_retrieve)
        return await asyncio.shield(self._next)

    async def _after(self, earlier: asyncio.Task[T] | None) -> T:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._now, self._next = self._next, None
        return await self._read()


def _retrieve(task: asyncio.Task[T]) -> None:
    """Take note of an error that perhaps nobody waits for any more."""
    if not task.cancelled():
        task.exception()
