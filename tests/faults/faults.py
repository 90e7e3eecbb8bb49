"""Faults at the activities of a pass, planted from outside: the product's code is the real one and knows of none.

A point is the n-th use of one activity within one life; what is tried again, or replayed, is the same use. The points
of a life are those that its plain run meets, so that a step that is added tomorrow is covered without anybody listing
it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

NOT_COUNTED = frozenset({"renew_claim", "read_vm"})
"""Uses that come by the clock or by a poke: whether a plain run meets them is chance."""

KILLED = "killed"
"""The fault of a worker that is killed while another one has the activity in hand."""

Call = Callable[[], Awaitable[Any]]
Poke = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class Point:
    """The n-th use of an activity, from 1."""

    name: str
    use: int


class Use(NamedTuple):
    """An activity that is about to run. key: the same for each try."""

    vm_id: str
    name: str
    key: str


def use_in_hand() -> Use:
    """Name the use of an activity that this code runs in."""
    info = activity.info()
    key = f"{info.workflow_run_id} {info.activity_type} {info.activity_id} {info.is_local}"
    return Use((info.workflow_id or "").removeprefix("vm/"), info.activity_type, key)


class WorkerApart(Protocol):
    """A worker that is a process of its own."""

    async def strike(self, vm_id: str, plan: Plan) -> None:
        """Kill it at a VM's point; return when it is dead."""
        ...

    def away(self) -> AbstractAsyncContextManager[None]:
        """Have none for as long as the block lasts."""
        ...


@dataclass
class Plan:
    """What is to happen to one VM in its present life. `fault` None only notes what is met.

    landed: it has happened. where: what the control worker was about when it was killed.
    """

    point: Point | None = None
    fault: str | None = None
    met: dict[str, Point] = field(default_factory=dict)
    landed: bool = False
    where: str | None = None

    @property
    def is_met(self) -> bool:
        return self.point in self.met.values()

    def meet(self, name: str, key: str) -> str | None:
        """Note a use, and return the fault if this is its point. key: the same for each try of one use."""
        if key in self.met:
            return None
        self.met[key] = Point(name, 1 + sum(point.name == name for point in self.met.values()))
        return self.fault if self.met[key] == self.point else None


class Faults(Interceptor):
    """Stand before every activity, local ones included, of one fleet."""

    def __init__(self, client: Client, poke: Poke) -> None:
        self.client = client
        self.poke = poke
        self.plans: dict[str, Plan] = {}
        self.apart: WorkerApart | None = None

    def plan(self, vm_id: str, point: Point | None = None, fault: str | None = None) -> Plan:
        self.plans[vm_id] = Plan(point, fault)
        return self.plans[vm_id]

    def meet(self, use: Use) -> tuple[Plan, str] | None:
        """Note a use, and return the plan whose fault befalls it."""
        plan = self.plans.get(use.vm_id)
        if plan is None or use.name in NOT_COUNTED:
            return None
        fault = plan.meet(use.name, use.key)
        return None if fault is None else (plan, fault)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Faulty(next, self)


def stand_before(options: Callable[..., dict[str, Any]], interceptor: Interceptor) -> Callable[..., dict[str, Any]]:
    """Put an interceptor before those that a worker has: return its options so changed."""

    def changed(*words: Any, **more: Any) -> dict[str, Any]:
        made = options(*words, **more)
        return {**made, "interceptors": [interceptor, *made["interceptors"]]}

    return changed


class _Faulty(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, faults: Faults) -> None:
        super().__init__(next)
        self._faults = faults

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        use = use_in_hand()

        async def call() -> Any:
            return await super(_Faulty, self).execute_activity(dataclasses.replace(input, args=list(input.args)))

        met = self._faults.meet(use)
        if met is None:
            return await call()
        plan, fault = met
        if fault != KILLED:
            plan.landed = True
            return await FAULTS[fault](Struck(self._faults, use.vm_id, call))
        assert self._faults.apart is not None
        await self._faults.apart.strike(use.vm_id, plan)
        return await call()


@dataclass(frozen=True)
class Struck:
    """One use of an activity that a fault befalls."""

    faults: Faults
    vm_id: str
    call: Call

    @property
    def run(self) -> WorkflowHandle[Any, Any]:
        info = activity.info()
        return self.faults.client.get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)


def _planted() -> ApplicationError:
    return ApplicationError("a planted fault", type="Planted")


async def repeated(struck: Struck) -> Any:
    """It runs twice, as after an answer that was lost on its way."""
    await struck.call()
    return await struck.call()


async def failed_before(struck: Struck) -> Any:
    """It fails without having done anything."""
    raise _planted()


async def failed_after(struck: Struck) -> Any:
    """It fails although it has worked."""
    await struck.call()
    raise _planted()


async def lost(struck: Struck) -> Any:
    """It works, and its worker says no more: the try ends by its limit."""
    await struck.call()
    if activity.info().is_local:
        await asyncio.sleep(3600)  # cut off by the limit of a local activity
    activity.raise_complete_async()


async def late(struck: Struck) -> Any:
    """It works, and answers when its try has long been given up."""
    answer = await struck.call()
    limit = activity.info().heartbeat_timeout or activity.info().start_to_close_timeout
    assert limit is not None
    await asyncio.sleep(limit.total_seconds() + 1)
    return answer


async def terminated(struck: Struck) -> Any:
    """Its run is terminated by hand; it goes on as nobody's, and the sweep has another run begun."""
    await struck.run.terminate("by hand")
    await struck.faults.poke(struck.vm_id)
    return await struck.call()


async def poked(struck: Struck) -> Any:
    """Somebody asks for another look before and after it."""
    await struck.faults.poke(struck.vm_id)
    answer = await struck.call()
    await struck.faults.poke(struck.vm_id)
    return answer


FAULTS: dict[str, Callable[[Struck], Awaitable[Any]]] = {
    each.__name__: each for each in (repeated, failed_before, failed_after, lost, late, terminated, poked)
}
