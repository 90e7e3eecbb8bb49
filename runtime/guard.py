"""What happens around every run in the control worker: calls that do not fit are refused instead of wedging it."""

from __future__ import annotations

import inspect
from typing import Any, cast

from temporalio import workflow
from temporalio.converter import create_payload_validation_error
from temporalio.worker import (
    ExecuteWorkflowInput,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

from model.fence import Answer, Order
from model.temporal import is_host_queue


class GuardedRun(WorkflowInboundInterceptor):
    """Refuse a start whose number of arguments is not its function's: a TypeError would wedge the run."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """Guard what the run sends out as well."""
        super().init(_GuardedOrders(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        """Run the workflow if its arguments fit."""
        if not _fits(input.run_fn, len(input.args) + 1):
            raise create_payload_validation_error({"expected": "one argument", "problems": ["another number"]})
        return await super().execute_workflow(input)


def _fits(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*([None] * count))
    except TypeError:
        return False
    return True


class _GuardedOrders(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        handle = super().start_activity(input)
        order = cast("object", input.args[0]) if input.args else None
        if input.task_queue is None or not is_host_queue(input.task_queue) or not isinstance(order, Order):
            return handle
        return _AnsweredHandle(handle, order)


class _AnsweredHandle(workflow.ActivityHandle[Any]):
    """Take an answer only if it names the order that it answers: one sealed for an earlier order proves nothing.

    A cancel goes to the step itself, also before this task has begun.
    """

    def __init__(self, handle: workflow.ActivityHandle[Any], order: Order) -> None:
        self._handle = handle
        super().__init__(_answer(handle, order))

    def cancel(self, msg: Any | None = None) -> bool:
        return self._handle.cancel(msg)


async def _answer(handle: workflow.ActivityHandle[Any], order: Order) -> Any:
    result = await handle
    if isinstance(result, Answer):
        answered = result.answers
        if answered is None or answered.model_copy(update={"attempt": order.fence.attempt}) != order.fence:
            raise create_payload_validation_error({"expected": "this order's answer", "problems": ["another's"]})
    return result
