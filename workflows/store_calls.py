"""How a run asks the store: local activities, waited for as long as the claim lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from model.base import Lenient
from workflows import policies

T = TypeVar("T")


class StoreAway(Exception):
    """The store did not answer for as long as the claim lasts."""


class StoreCalls:
    """The part of a run that talks to the store."""

    async def store(self, method: Callable[[Any, Any], Awaitable[T]], request: Lenient) -> T:
        """Ask the store; while it does not answer, wait as long as the claim lasts."""
        deadline = workflow.now() + policies.CLAIM_LASTS
        pause = 1.0
        while True:
            try:
                return await workflow.execute_local_activity_method(
                    method, request, **policies.store_call(method.__name__)
                )
            except FailureError as error:
                if is_cancelled_exception(error):
                    raise asyncio.CancelledError from error
            if workflow.now() >= deadline:
                raise StoreAway
            await workflow.sleep(pause, summary="the store does not answer")
            pause = min(pause * 2, 15.0)
