"""Workflows for the tests of runtime/: a pass that sends one order to a host, and others that misuse what there is."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from model.base import Lenient
from model.record import HostOrder, View


class Script(Lenient):
    """What a scripted pass does."""

    order: HostOrder
    queue: str
    step: str = "find_vm"
    attempts: int = 1
    catch: bool = True
    wait: bool = False


class Told(Lenient):
    """What a scripted pass tells: the view, or the type and message of the step's error."""

    view: View | None = None
    error: str | None = None
    message: str | None = None
    final: bool = False


@workflow.defn
class ScriptedPass:
    def __init__(self) -> None:
        self.looks = 0

    @workflow.signal
    def look_again(self) -> None:
        self.looks += 1

    @workflow.run
    async def run(self, script: Script) -> Told:
        if script.wait:
            await workflow.wait_condition(lambda: self.looks > 0)
        try:
            view = await workflow.execute_activity(
                script.step,
                script.order,
                result_type=View,
                task_queue=script.queue,
                schedule_to_close_timeout=timedelta(seconds=30),
                schedule_to_start_timeout=timedelta(seconds=20),
                heartbeat_timeout=timedelta(seconds=10),
                retry_policy=RetryPolicy(maximum_attempts=script.attempts, initial_interval=timedelta(milliseconds=50)),
            )
        except ActivityError as error:
            if not script.catch:
                raise
            cause = error.cause
            if isinstance(cause, ApplicationError):
                return Told(error=cause.type, message=cause.message, final=cause.non_retryable)
            return Told(error=type(cause).__name__, message=str(cause))
        return Told(view=view)


@workflow.defn
class CreateVm:
    """Stands in for a pass in the tests of the poke."""

    def __init__(self) -> None:
        self.looks = 0

    @workflow.signal
    def look_again(self) -> None:
        self.looks += 1

    @workflow.query
    def count(self) -> int:
        return self.looks

    @workflow.run
    async def run(self, start: dict[str, str]) -> int:
        await workflow.wait_condition(lambda: self.looks >= 2)
        return self.looks


@workflow.defn
class LocalPass:
    """Asks the control worker's own activity."""

    @workflow.run
    async def run(self, what: str) -> Told:
        try:
            await workflow.execute_local_activity(
                what,
                start_to_close_timeout=timedelta(seconds=2),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except ApplicationError as error:
            # The error of a local activity comes bare, that of a remote one as the cause of an ActivityError.
            return Told(error=error.type, message=error.message, final=error.non_retryable)
        return Told()


@workflow.defn
class WaitsThreeDays:
    @workflow.run
    async def run(self) -> str:
        await workflow.sleep(timedelta(hours=72))
        return "done"
