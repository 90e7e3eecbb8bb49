"""Attacks on the orders and answers of a sealed fleet, on a real server (S-3, S-4, S-45, E1, E2, E6, E7)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflowservice.v1 import (
    RecordActivityTaskHeartbeatByIdRequest,
    RespondActivityTaskCompletedByIdRequest,
    RespondActivityTaskFailedByIdRequest,
)
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from model.errors import Busy, Permanent
from model.record import HostOrder, View
from runtime.failures import PAYLOAD_ERROR
from tests.runtime.fleet import SECRET_WORDS, Fleet, a_view, an_order, running_fleet
from tests.runtime.flows import Told
from tests.runtime.odd import odd_failures, odd_results

BOUND = 20


@pytest_asyncio.fixture
async def fleet(temporal_address: str, temporal_namespace: str) -> AsyncIterator[Fleet]:
    async with running_fleet(temporal_address, temporal_namespace, ("a", "b")) as running:
        yield running


@workflow.defn(name="Forged")
class Forged:
    """The attacker's own workflow: schedules one activity with a payload as it stands."""

    @workflow.run
    async def run(self, target: list[str], payloads: list[str]) -> str:
        args = [RawValue(Payload.FromString(bytes.fromhex(each))) for each in payloads]
        try:
            await workflow.execute_activity(
                target[1],
                args=args,
                task_queue=target[0],
                result_type=RawValue,
                schedule_to_close_timeout=timedelta(seconds=10),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except ActivityError as error:
            return str(getattr(error.cause, "type", type(error.cause).__name__))
        return "ran"


async def forge(fleet: Fleet, queue: str, step: str, *payloads: Payload, workflow_id: str | None = None) -> str:
    own_queue = f"attacker-{uuid.uuid4().hex[:6]}"
    async with Worker(
        fleet.attacker, task_queue=own_queue, workflows=[Forged], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        return await asyncio.wait_for(
            fleet.attacker.execute_workflow(
                Forged.run,
                args=[[queue, step], [payload.SerializeToString().hex() for payload in payloads]],
                id=workflow_id or f"attacker/{uuid.uuid4().hex[:6]}",
                task_queue=own_queue,
            ),
            BOUND,
        )


def plain_order(host: str = "a") -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=an_order(host).model_dump_json().encode())


async def scheduled_input(handle: WorkflowHandle[object, object]) -> Payload:
    history = await handle.fetch_history()
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            return event.activity_task_scheduled_event_attributes.input.payloads[0]
    raise AssertionError("nothing was scheduled")


async def completed_result(handle: WorkflowHandle[object, object]) -> Payload:
    history = await handle.fetch_history()
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            return event.activity_task_completed_event_attributes.result.payloads[0]
    raise AssertionError("nothing completed")


async def outcome(handle: WorkflowHandle[object, Told]) -> Told:
    """What the run came to, within a bound: a wedged run is a time-out here."""
    try:
        return await asyncio.wait_for(handle.result(), BOUND)
    except WorkflowFailureError as error:
        cause = error.cause
        assert isinstance(cause, ApplicationError)
        return Told(error=cause.type, message=cause.message)


async def held(fleet: Fleet, host: str = "a", **script: object) -> tuple[WorkflowHandle[object, Told], asyncio.Event]:
    """Start a pass whose step runs until the event is set."""
    release = asyncio.Event()

    async def body(order: HostOrder) -> View:
        await release.wait()
        return a_view()

    fleet.hosts[host].body = body
    handle = await fleet.start(host, **script)
    await asyncio.wait_for(fleet.hosts[host].started.wait(), BOUND)
    return handle, release


async def test_an_order_runs_and_its_answer_is_taken(fleet: Fleet) -> None:
    """S-3: the honest way works; the step's fence carries Temporal's attempt, the view names the fence."""
    told = await outcome(await fleet.start("a"))
    assert told.view is not None
    assert told.view.answers == an_order("a").fence
    assert [order.fence.attempt for order in fleet.hosts["a"].ran] == [1]


async def test_nothing_of_an_order_stands_in_clear(fleet: Fleet) -> None:
    """S-3, S-8: neither order nor answer nor a failure's text is in the history."""

    async def body(order: HostOrder) -> View:
        if len(fleet.hosts["a"].ran) == 1:
            raise Busy(f"held {SECRET_WORDS}")
        return a_view(guest_ended=SECRET_WORDS)

    fleet.hosts["a"].body = body
    handle = await fleet.control.start_workflow(
        "ScriptedPass",
        {"order": json.loads(an_order("a").model_dump_json()), "queue": fleet.queues["a"], "attempts": 3},
        id="vm/clear",
        task_queue="control",
    )
    await asyncio.wait_for(handle.result(), BOUND)
    events = [
        event for event in (await handle.fetch_history()).events if "ACTIVITY" in EventType.Name(event.event_type)
    ]
    text = b"".join(event.SerializeToString() for event in events)
    assert events
    assert SECRET_WORDS.encode() not in text
    assert b"vm-1" not in text
    assert [order.fence.attempt for order in fleet.hosts["a"].ran] == [1, 2]


async def test_a_sealed_text_does_not_leave_in_clear_with_a_failed_run(fleet: Fleet) -> None:
    """S-8: a run that raises its step's error shows the type, not the text."""

    async def body(order: HostOrder) -> View:
        raise Permanent(f"bad {SECRET_WORDS}")

    fleet.hosts["a"].body = body
    handle = await fleet.start("a", catch=False)
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(handle.result(), BOUND)
    text = b"".join(event.SerializeToString() for event in (await handle.fetch_history()).events)
    assert SECRET_WORDS.encode() not in text
    assert b"Permanent" in text


@pytest.mark.parametrize("shape", ["plain", "none", "null", "two", "sealed-look"])
async def test_a_forged_order_of_an_own_workflow_runs_nothing(fleet: Fleet, shape: str) -> None:
    """E1, E6: payloads that nobody with the key sealed."""
    payloads = {
        "plain": [plain_order()],
        "none": [],
        "null": [Payload(metadata={"encoding": b"binary/null"})],
        "two": [plain_order(), plain_order()],
        "sealed-look": [
            Payload(
                metadata={"encoding": b"binary/sealed", "sealed-by": b"control", "key-version": b"1"}, data=bytes(64)
            )
        ],
    }[shape]
    assert await forge(fleet, fleet.queues["a"], "find_vm", *payloads) != "ran"
    assert fleet.hosts["a"].ran == []


async def test_a_standalone_activity_runs_nothing(fleet: Fleet) -> None:
    """E1, E3: an activity without a workflow, with and without an argument."""
    for args in ([], [an_order("a")]):
        handle = await fleet.attacker.start_activity(
            "find_vm",
            args=args,
            id=f"alone-{uuid.uuid4().hex[:6]}",
            task_queue=fleet.queues["a"],
            schedule_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        with pytest.raises(Exception, match=r".*"):
            await asyncio.wait_for(handle.result(), BOUND)
    assert fleet.hosts["a"].ran == []


@pytest.mark.parametrize("other", ["workflow", "activity", "host"])
async def test_a_replayed_order_runs_nothing_elsewhere(fleet: Fleet, other: str) -> None:
    """E6: the sealed input of one step, in another run, activity or host."""
    handle = await fleet.start("a", workflow_id="vm/honest")
    assert (await outcome(handle)).view is not None
    sealed = await scheduled_input(handle)
    ran_before = len(fleet.hosts["a"].ran)
    queue = fleet.queues["b" if other == "host" else "a"]
    step = "ensure_booted" if other == "activity" else "find_vm"
    workflow_id = None if other == "workflow" else "vm/honest"
    assert await forge(fleet, queue, step, sealed, workflow_id=workflow_id) == PAYLOAD_ERROR
    assert len(fleet.hosts["a"].ran) == ran_before
    assert fleet.hosts["b"].ran == []


async def test_an_answer_is_no_order(fleet: Fleet) -> None:
    """S-3: the sealing side is bound in."""
    handle = await fleet.start("a", workflow_id="vm/honest")
    await outcome(handle)
    ran_before = len(fleet.hosts["a"].ran)
    answer = await completed_result(handle)
    assert await forge(fleet, fleet.queues["a"], "find_vm", answer, workflow_id="vm/honest") == PAYLOAD_ERROR
    assert len(fleet.hosts["a"].ran) == ran_before


async def complete_by_id(fleet: Fleet, handle: WorkflowHandle[object, object], result: Payload) -> None:
    await fleet.attacker.workflow_service.respond_activity_task_completed_by_id(
        RespondActivityTaskCompletedByIdRequest(
            namespace=fleet.namespace, workflow_id=handle.id, activity_id="1", result=Payloads(payloads=[result])
        )
    )


async def fail_by_id(fleet: Fleet, handle: WorkflowHandle[object, object], failure: Failure) -> None:
    await fleet.attacker.workflow_service.respond_activity_task_failed_by_id(
        RespondActivityTaskFailedByIdRequest(
            namespace=fleet.namespace, workflow_id=handle.id, activity_id="1", failure=failure
        )
    )


@pytest.mark.parametrize("shape", sorted(odd_results()))
async def test_a_result_by_id_is_a_payload_error(fleet: Fleet, shape: str) -> None:
    """E2, E6, E7: nothing that was not sealed by the host is believed, nothing wedges the run."""
    handle, release = await held(fleet)
    await complete_by_id(fleet, handle, odd_results()[shape])
    told = await outcome(handle)
    release.set()
    assert told.view is None
    assert told.error == PAYLOAD_ERROR


async def test_the_order_itself_is_no_result(fleet: Fleet) -> None:
    """S-3: what the control plane sealed is not its own answer."""
    handle, release = await held(fleet)
    await complete_by_id(fleet, handle, await scheduled_input(handle))
    told = await outcome(handle)
    release.set()
    assert told.error == PAYLOAD_ERROR


async def test_an_earlier_answer_is_no_answer_to_a_later_order(fleet: Fleet) -> None:
    """S-4: a sealed result of the same step of the same VM, kept from an earlier pass."""
    first = await fleet.start("a", workflow_id="vm/again")
    await outcome(first)
    kept = await completed_result(first)
    fleet.hosts["a"].started.clear()
    second, release = await held(fleet, workflow_id="vm/again", order=an_order("a", pass_number=8))
    await complete_by_id(fleet, second, kept)
    told = await outcome(second)
    release.set()
    assert told.view is None
    assert told.error == PAYLOAD_ERROR


@pytest.mark.parametrize("shape", sorted(odd_failures()))
async def test_a_failure_by_id_proves_nothing(fleet: Fleet, shape: str) -> None:
    """S-4, E7: its type and text are not believed, and nothing wedges the run."""
    handle, release = await held(fleet)
    try:
        await fail_by_id(fleet, handle, odd_failures()[shape])
    except RPCError:
        # The server itself refuses some shapes: then the step goes on.
        release.set()
        assert (await outcome(handle)).view is not None
        return
    told = await outcome(handle)
    release.set()
    assert told.view is None
    assert told.error != "Permanent"
    assert "forged" not in (told.message or "")


async def test_a_heartbeat_by_id_does_no_more_than_end_the_step(fleet: Fleet) -> None:
    """S-3: heartbeat details that do not open, found by the next attempt."""
    failed = asyncio.Event()

    async def body(order: HostOrder) -> View:
        await failed.wait()
        raise Busy("held")

    fleet.hosts["a"].body = body
    handle = await fleet.start("a", attempts=2)
    await asyncio.wait_for(fleet.hosts["a"].started.wait(), BOUND)
    await fleet.attacker.workflow_service.record_activity_task_heartbeat_by_id(
        RecordActivityTaskHeartbeatByIdRequest(
            namespace=fleet.namespace,
            workflow_id=handle.id,
            activity_id="1",
            details=Payloads(payloads=[odd_results()["unknown"]]),
        )
    )
    failed.set()
    told = await outcome(handle)
    assert told.error in (PAYLOAD_ERROR, "Busy")


async def test_a_fence_of_another_host_runs_nothing(fleet: Fleet) -> None:
    """L-G5: fleet, host and instance must be equal."""
    told = await outcome(await fleet.start("a", order=an_order("b")))
    assert told.error == "Fenced"
    assert told.final
    assert fleet.hosts["a"].ran == []


async def test_a_host_below_the_floor_runs_nothing(fleet: Fleet) -> None:
    """H-S5."""
    told = await outcome(await fleet.start("a", order=an_order("a", min_worker_version="99.0")))
    assert told.error == "BelowFloor"
    assert fleet.hosts["a"].ran == []


async def test_errors_come_back_by_their_class(fleet: Fleet) -> None:
    """Refused and failed errors keep class, text and whether they are tried again; unforeseen ones show no text."""
    cases = {
        "Permanent": Permanent("cannot ever"),
        "Busy": Busy("an earlier step runs"),
        "StepFailed": FileNotFoundError(f"/private/{SECRET_WORDS}"),
    }
    for name, error in cases.items():

        async def body(order: HostOrder, error: Exception = error) -> View:
            raise error

        fleet.hosts["a"].body = body
        told = await outcome(await fleet.start("a"))
        assert told.error == name
        assert told.final == (name == "Permanent")
        assert SECRET_WORDS not in (told.message or "")
        if name != "StepFailed":
            assert told.message == str(error)
