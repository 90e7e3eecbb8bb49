"""Threads that are waited for, whatever is cancelled.

`async with lock: await to_thread(…)`, cancelled, frees the lock at once while the thread goes on. So whoever holds a
lock asks here, or lets `OwnedExecutor` note which job began a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Owner(Protocol):
    """Whoever must not be over before its last thread has ended."""

    def own(self, thread: Future[Any]) -> None: ...


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class OwnedExecutor(ThreadPoolExecutor):
    """Tell the owner in whose context a thread is begun about it; as a loop's default it sees each `to_thread`."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        owner = OWNER.get()
        if owner is not None:
            owner.own(future)
        return future


async def finish(work: Awaitable[T]) -> T:
    """Await `work` to its end even while being cancelled; the cancel is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: the cancel comes first
        raise cancelled
    return task.result()


async def in_thread(fn: Callable[..., T], /, *args: Any) -> T:
    """Run a blocking call in a thread and return only when it has ended, also when cancelled."""
    return await finish(asyncio.to_thread(fn, *args))
