"""What happens around every step, attached once: seal and fence checks, heartbeats, the mapping of errors."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from temporalio import activity
from temporalio.converter import create_payload_validation_error
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    WorkflowInterceptorClassInput,
)

from activities.progress import progress
from model.errors import BelowFloor, Fenced, HostlerError, Refused, StepFailed, Unavailable
from model.fence import Answer, Order
from model.temporal import host_of_queue, is_host_queue
from model.text import clean_text
from model.versions import VERSION, describe_floor, is_below
from runtime.guard import GuardedRun
from runtime.seal import Label, opened_order

HEARTBEAT_SECONDS = 2.0
_log = logging.getLogger("hostler.steps")


class HostInterceptor(Interceptor):
    """Let a step run only for an order that was sealed for it, and tell how it goes while it runs.

    `fleet_id` and the host and instance of the queue must be the fence's. The order that the step gets carries
    Temporal's attempt in its fence; the answer that it returns names the fence that it answers.
    """

    def __init__(self, *, fleet_id: str, worker_version: str = VERSION) -> None:
        self.fleet_id = fleet_id
        self.worker_version = worker_version

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap one step."""
        return _HostStep(next, self)


class _HostStep(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, host: HostInterceptor) -> None:
        super().__init__(next)
        self._host = host

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            order = self._admit(input)
            input.args = [order]
            async with _heartbeats():
                result = await super().execute_activity(input)
        except HostlerError as error:
            raise application_error(error) from None
        except asyncio.CancelledError:
            if _is_shutdown():
                raise application_error(
                    Unavailable("the host worker is shutting down: the step goes on after it")
                ) from None
            raise
        except FailureError:
            raise
        except Exception as error:
            raise application_error(_unexpected(error)) from None
        return result.model_copy(update={"answers": order.fence}) if isinstance(result, Answer) else result

    def _admit(self, input: ExecuteActivityInput) -> Order:
        info = activity.info()
        label = opened_order.get()
        if label is None or not _is_for(label, info, self._host.fleet_id) or len(input.args) != 1:
            raise create_payload_validation_error({"expected": "a sealed order", "problems": ["unsealed"]})
        order = cast("object", input.args[0])
        if not isinstance(order, Order):
            raise create_payload_validation_error({"expected": "an order", "problems": ["another type"]})
        fence = order.fence
        if (fence.fleet_id, fence.host_id, fence.instance_id) != (self._host.fleet_id, *host_of_queue(info.task_queue)):
            raise Fenced("the order is for another fleet, host or instance than this one: the row must be read again")
        if is_below(self._host.worker_version, order.min_worker_version):
            raise BelowFloor(describe_floor(self._host.worker_version, order.min_worker_version))
        return order.model_copy(update={"fence": fence.model_copy(update={"attempt": info.attempt})})


def _is_for(label: Label, info: activity.Info, fleet_id: str) -> bool:
    """Compare the label of what was opened with what Temporal called this step with."""
    return is_host_queue(info.task_queue) and (
        (label.fleet_id, label.namespace, label.workflow_id, label.activity_type, label.queue, label.side)
        == (fleet_id, info.namespace, info.workflow_id, info.activity_type, info.task_queue, "control")
    )


def _is_shutdown() -> bool:
    details = activity.cancellation_details()
    return details is not None and details.worker_shutdown and not details.cancel_requested


@asynccontextmanager
async def _heartbeats() -> AsyncGenerator[None]:
    """Heartbeat every two seconds with the newest words: without heartbeats no cancel ever arrives."""
    words: list[str] = []

    def say(text: str) -> None:
        words[:] = [clean_text(text, 512)]

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            activity.heartbeat(*({"words": text} for text in words[:1]))

    token = progress.set(say)
    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        progress.reset(token)
        task.cancel()


class ControlInterceptor(Interceptor):
    """Map the errors of the control worker's own activities, whose failures stand in clear in the history (S-8)."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap one local activity."""
        return _ControlStep(next)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[GuardedRun]:
        """Guard runs."""
        return GuardedRun


class _ControlStep(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except HostlerError as error:
            _log.warning("%s: %s: %s", activity.info().activity_type, type(error).__name__, clean_text(error.detail))
            raise application_error(error, detail=error.title) from None
        except FailureError:
            raise
        except Exception as error:
            raise application_error(_unexpected(error)) from None


def application_error(error: HostlerError, *, detail: str | None = None) -> ApplicationError:
    """Turn a model error into what Temporal carries: its class by name, and refusals are not tried again."""
    return ApplicationError(
        clean_text(error.detail if detail is None else detail),
        type=type(error).__name__,
        non_retryable=isinstance(error, Refused),
    )


def _unexpected(error: Exception) -> StepFailed:
    """Say an unforeseen error by its class alone: its text may hold paths, inputs or secrets."""
    frames = traceback.extract_tb(error.__traceback__)
    where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-8:]))
    _log.error("unexpected %s in %s at %s", type(error).__name__, activity.info().activity_type, where)
    return StepFailed(f"an unexpected {type(error).__name__} in {activity.info().activity_type}: see the worker's log")
