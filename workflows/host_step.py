"""How a pass does one step on the VM's host: the order, the queue, the wait for a poke, what ends it early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

from temporalio import workflow
from temporalio.exceptions import FailureError
from temporalio.workflow import ActivityConfig

from activities.passes import PassActivities
from activities.vm import VmActivities
from model.decide import supersedes
from model.fence import Fence
from model.passes import PassRef
from model.record import HostOrder, View
from model.row import Row
from model.step import WORDS, StepKind
from model.temporal import LOOK_AGAIN, bulk_queue, host_queue
from workflows import policies
from workflows.failures import Failure, FailureKind, read_failure
from workflows.store_calls import StoreAway, StoreCalls

HostMethod = Callable[[Any, HostOrder], Awaitable[View]]


class StepEnded(Exception):
    """A host step ended without its result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class HostSteps(StoreCalls):
    """The part of a pass that talks to the host. It keeps the newest row and the newest view."""

    row: Row

    def __init__(self) -> None:
        self.vm_id = ""
        self.view: View | None = None
        self.current = StepKind.WAIT
        self.volume_id: str | None = None
        """The volume that the current step is about."""
        self.step_number = 0
        self.pass_number = 0
        """The number that this run drew. The row's may be that of whoever has taken it since."""
        self.claimed = False
        self.booted = False
        self.poked = False
        self.over_time = False

    @workflow.signal(name=LOOK_AGAIN)
    def look_again(self) -> None:
        """Something changed: read the row again. A poke carries nothing."""
        self.poked = True

    @property
    def ref(self) -> PassRef:
        return PassRef(vm_id=self.vm_id, pass_number=self.pass_number)

    async def look(self) -> None:
        """Look at the VM on its host; the fence that this raises stops whatever an older pass still does there."""
        await self.host(VmActivities.find_vm, policies.LOOK, "looking at the host")

    async def host(
        self, method: HostMethod, policy: ActivityConfig, words: str | None = None, *, bulk: bool = False
    ) -> None:
        """Do one step on the host and keep its answer; raise StepEnded when it failed or was superseded."""
        summary = words or WORDS[self.current]
        state = self.row.host
        if self.row.behind:
            # Not even a look: it would raise the host's fence, which tells what it was ordered before (H-R1).
            raise StepEnded(Failure(FailureKind.BEHIND, "the store may be behind what its host was ordered last"))
        if state.instance_id is None or state.silent:
            raise StepEnded(Failure(FailureKind.NOT_PICKED_UP, "the host does not report"))
        if method.__name__ not in state.activity_names:
            raise StepEnded(Failure(FailureKind.UNKNOWN_THERE, "the host's worker does not know this step"))
        self.step_number += 1
        queue = bulk_queue if bulk else host_queue
        config = policy.copy()
        config["task_queue"] = queue(state.host_id, state.instance_id)
        config["summary"] = summary
        order = self._order(state.instance_id)
        handle: workflow.ActivityHandle[View] = workflow.start_activity_method(cast("Any", method), order, **config)
        cut_off = await self._await_or_supersede(handle)
        try:
            self.view = await handle
        except FailureError as error:
            # How a step ends that this pass cut off says nothing of the VM, be it a permanent error (L-C5).
            failure = Failure(FailureKind.CANCELLED, "") if cut_off else read_failure(error, summary)
            raise StepEnded(failure) from None

    async def _await_or_supersede(self, handle: workflow.ActivityHandle[View]) -> bool:
        """While the step runs, read the row at each poke; cancel the step if a newer wish makes it pointless.

        Say whether it was cut off so.
        """
        cut_off = False
        digest = self.row.desired.input_digest
        while not handle.done():
            await workflow.wait_condition(lambda: self.poked or self.over_time or handle.done())
            if self.over_time:
                handle.cancel()
                return True
            if handle.done():
                return cut_off
            self.poked = False
            row = await self.store(PassActivities.read_vm, self.ref)
            if row is None:
                continue
            self.row = row
            if not row.owner or supersedes(row, self.current, digest):
                handle.cancel()
                cut_off = True
        return cut_off

    def _order(self, instance_id: str) -> HostOrder:
        row, desired = self.row, self.row.desired
        return HostOrder(
            vm_id=self.vm_id,
            project=row.project,
            fence=Fence(
                fleet_id=row.fleet_id,
                host_id=row.host.host_id,
                instance_id=instance_id,
                epoch=row.epoch,
                pass_number=self.pass_number,
                step=self.step_number,
            ),
            min_worker_version=row.min_worker_version,
            input_digest=desired.input_digest,
            power_state=desired.power_state,
            generation=desired.generation,
            spec_generation=desired.spec_generation,
            restart_generation=desired.restart_generation,
            rebuild_generation=desired.rebuild_generation,
            kept_by=desired.kept_by,
            undo_of=desired.undo_of,
            disk_gib=desired.disk_gib,
            stop_timeout_seconds=row.stop_timeout_seconds,
            setbacks=_number_of_setback(self.view),
            volumes=desired.volumes,
            volume_id=self.volume_id,
            network_digest=desired.network_digest,
        )

    async def keep(self, over: asyncio.Event) -> None:
        """Renew the claim while the pass works, and say when its time or its claim is over.

        A cancel is lost where the store answers at that moment: `over` stays, so that nothing is begun after the pass.
        """
        over_at = workflow.now() + policies.PASS_TIMEOUT
        while workflow.now() < over_at and not over.is_set():
            await workflow.sleep(policies.RENEW_CLAIM_EVERY, summary="renew the claim")
            if self.claimed:
                try:
                    await self.store(PassActivities.renew_claim, self.ref)
                except StoreAway:
                    break  # the claim has lapsed: a step that goes on would be nobody's
        if not over.is_set():
            self.over_time = True

    async def wait_inside(self, limit: timedelta, summary: str) -> None:
        """Wait on a durable timer, or until somebody pokes."""
        if limit <= timedelta(0):
            return
        try:
            await workflow.wait_condition(
                lambda: self.poked or self.over_time, timeout=max(limit, timedelta(seconds=1)), timeout_summary=summary
            )
        except TimeoutError:
            return


def _number_of_setback(view: View | None) -> int | None:
    """Return the number of the last setback that the pass has seen; None before it has looked."""
    if view is None:
        return None
    return view.observed.setback.number if view.observed.setback else 0
