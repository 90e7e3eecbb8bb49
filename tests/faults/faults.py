"""Faults at the activities of a pass, planted from outside: the product's code is the real one and knows of none.

A point is the n-th use of one activity within one life. The points of a life are those that its plain run meets, so
that a step that is added tomorrow is covered without anybody listing it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

NOT_COUNTED = frozenset({"renew_claim", "read_vm"})
"""Uses that come by the clock or by a poke: whether a plain run meets them is chance."""

Call = Callable[[], Awaitable[Any]]
Poke = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class Point:
    """The n-th use of an activity, from 1."""

    name: str
    use: int


@dataclass
class Plan:
    """What is to happen to one VM in its present life. `fault` None only notes what is met."""

    point: Point | None = None
    fault: str | None = None
    met: list[Point] = field(default_factory=list)
    landed: bool = False

    def meet(self, name: str) -> str | None:
        """Note a use, and return the fault if this is its point."""
        use = 1 + sum(point.name == name for point in self.met)
        self.met.append(Point(name, use))
        if self.landed or self.met[-1] != self.point:
            return None
        self.landed = True
        return self.fault


class Faults(Interceptor):
    """Stand before every activity, local ones included, of one fleet."""

    def __init__(self, client: Client, poke: Poke) -> None:
        self.client = client
        self.poke = poke
        self.plans: dict[str, Plan] = {}

    def plan(self, vm_id: str, point: Point | None = None, fault: str | None = None) -> Plan:
        self.plans[vm_id] = Plan(point, fault)
        return self.plans[vm_id]

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Faulty(next, self)


class _Faulty(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, faults: Faults) -> None:
        super().__init__(next)
        self._faults = faults

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        vm_id = (info.workflow_id or "").removeprefix("vm/")
        plan = self._faults.plans.get(vm_id)
        fault = None if plan is None or info.activity_type in NOT_COUNTED else plan.meet(info.activity_type)

        async def call() -> Any:
            return await super(_Faulty, self).execute_activity(dataclasses.replace(input, args=list(input.args)))

        if fault is None:
            return await call()
        return await FAULTS[fault](Struck(self._faults, vm_id, call))


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
