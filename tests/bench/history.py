"""Where the time of a create goes, by the history that Temporal keeps of its run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from model.temporal import vm_workflow_id


@dataclass(frozen=True)
class Step:
    """One activity of a run, in seconds since the epoch by the server's clock.

    until_next: until the next one was scheduled, or the run ended: workflow tasks and the store.
    """

    name: str
    scheduled: float
    started: float
    completed: float
    until_next: float


@dataclass(frozen=True)
class Timeline:
    """A run from its start to its end, and its activities in their order."""

    started: float
    ended: float
    steps: tuple[Step, ...]


def fetch_timeline(address: str, vm_id: str, run_id: str) -> Timeline:
    """Fetch the history of a run that has ended and read it."""

    async def fetch() -> Timeline:
        client = await Client.connect(address)
        handle = client.get_workflow_handle(vm_workflow_id(vm_id), run_id=run_id)
        await handle.describe()
        return read_timeline([event async for event in handle.fetch_history_events(wait_new_event=True)])

    return asyncio.run(fetch())


def read_timeline(events: list[HistoryEvent]) -> Timeline:
    """Read the activities of a history; a pure function of it. A step that never completed is left out."""
    scheduled: dict[int, tuple[str, float]] = {}
    started: dict[int, float] = {}
    found: list[tuple[str, float, float, float]] = []
    for event in events:
        now = event.event_time.ToNanoseconds() / 1e9
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            scheduled[event.event_id] = (name, now)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started[event.activity_task_started_event_attributes.scheduled_event_id] = now
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            number = event.activity_task_completed_event_attributes.scheduled_event_id
            found.append((*scheduled[number], started[number], now))
    first, last = events[0].event_time.ToNanoseconds() / 1e9, events[-1].event_time.ToNanoseconds() / 1e9
    following = [each[1] for each in found[1:]] + [last]
    steps = [Step(*each, until_next=after - each[3]) for each, after in zip(found, following, strict=True)]
    return Timeline(first, last, tuple(steps))
