"""The one loop of every pass: claim the row, look at the host, decide, do, look again.

`model.decide.next_step` is the order of a VM's life; the classes in create.py, converge.py and reap.py hold one method
for each step that their type owns. A run holds no state worth keeping: anyone may terminate it at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from activities.passes import PassActivities
from model.base import Lenient
from model.decide import next_step, pass_type_of
from model.passes import (
    ClaimRequest,
    Finish,
    GiveBack,
    Outcome,
    PassResult,
    PassStart,
    PassType,
    StepNote,
)
from model.record import View
from model.row import Row
from model.step import NOTHING_TO_DO, Step, StepKind
from model.temporal import SEARCH_PHASE
from model.vm import Phase
from model.waiting import Waiting
from workflows import policies
from workflows.failures import Failure, FailureKind
from workflows.host_step import HostSteps, StepEnded
from workflows.outcome import after_failure, ending, phase_during
from workflows.store_calls import StoreAway

T = TypeVar("T")
_PHASE = SearchAttributeKey.for_keyword(SEARCH_PHASE)


class PassEnd(Lenient):
    """How a pass ended. `wait`: this run waits as long before it looks again, as a quarantine does."""

    result: PassResult
    pass_number: int | None = None
    wait: timedelta | None = None


class Pass(HostSteps):
    """What the three types of pass share."""

    type: ClassVar[PassType]
    steps: ClassVar[Mapping[StepKind, Callable[[Any], Awaitable[None]]]]

    def __init__(self) -> None:
        super().__init__()
        self._done: tuple[StepKind, ...] = ()
        self._claims = 0
        self._lost = 0
        self._end: PassEnd | None = None

    async def live(self, start: PassStart) -> PassEnd:
        """Run the loop within the pass's time limit, and end without ever failing."""
        self.vm_id = start.vm_id
        self._end = None
        self.over_time = False
        over = asyncio.Event()
        keeping = asyncio.create_task(self.keep(over))
        try:
            return await self._loop()
        except StoreAway:
            return PassEnd(result="waiting")
        finally:
            over.set()
            keeping.cancel()

    async def _loop(self) -> PassEnd:
        await self._claim()
        while self._end is None:
            if self.over_time:
                await self._end_over_time()
                continue
            if not self.row.owner:
                await self._claim_anew()
                continue
            step = await self._decide()
            if step is None:
                continue
            if step.kind in NOTHING_TO_DO:
                await self._rest(step)
            elif step.kind in self.steps and pass_type_of(self.row) == self.type:
                await self._do(step)
            else:
                await self._hand_over()
        return self._end

    async def _hand_over(self) -> None:
        """Another type of pass is called for: tell the row what this one completed, then go on as that one."""
        record = self.seen().record
        if self.type == "CreateVm" and record is not None and record.boot_id is not None:
            outcome = Outcome(
                **self.ref.model_dump(), step=self.step_number, phase=Phase.READY, completed=True, view=self.view
            )
            self.take(await self.store(PassActivities.write_outcome, outcome))
        if self._end is None and self.row.owner:
            start = PassStart(vm_id=self.vm_id)
            workflow.continue_as_new(start, workflow=pass_type_of(self.row))  # pyright: ignore[reportArgumentType]

    async def read_again(self) -> None:
        """Read the row, and look at the host again."""
        self.take(await self.store(PassActivities.read_vm, self.ref))
        self.view = None

    async def _claim(self) -> None:
        run_id = workflow.info().run_id
        key = run_id if self._claims == 0 else f"{run_id}#{self._claims}"
        self._claims += 1
        self.poked = False
        self.view = None
        self._done = ()
        row = await self.store(PassActivities.claim_vm, ClaimRequest(vm_id=self.vm_id, run_id=key))
        if row is not None and row.owner:
            self.pass_number = row.status.pass_number
        self.take(row)

    async def _claim_anew(self) -> None:
        """Go on with what the VM's user wished meanwhile, which took the row from every pass.

        Where another pass has it, although this run is the only open one of its id: look again, three times.
        """
        self._lost += self.row.claimed
        if self._lost >= 3:
            self._end = PassEnd(result="superseded", pass_number=self.pass_number)
        else:
            await self._claim()

    async def _decide(self) -> Step | None:
        """Look at the host, unless the last step's answer is fresh, and decide; None when the look failed."""
        if self.poked:
            self.poked = False
            self.take(await self.store(PassActivities.read_vm, self.ref))
            if self._end is not None or not self.row.owner:
                return None
        if self.view is None:
            failure = await self._try(self.look())
            if failure is not None:
                await self._after(StepKind.WAIT, failure)
                return None
        return next_step(self.row, self.seen(), self._done)

    def seen(self) -> View:
        assert self.view is not None, "a step is decided only after a look"  # noqa: S101
        return self.view

    async def _do(self, step: Step) -> None:
        note = StepNote(
            vm_id=self.vm_id,
            pass_number=self.pass_number,
            step=self.step_number + 1,
            phase=phase_during(self.row, step.kind),
            words=step.words,
        )
        self.take(await self.store(PassActivities.begin_step, note))
        if self._end is not None or not self.row.owner:
            return
        if next_step(self.row, self.seen(), self._done).kind is not step.kind:
            return
        self._show(note.phase, f"{step.words}: {step.reason}")
        self.current, self.volume_id = step.kind, step.volume_id
        failure = await self._try(self.steps[step.kind](self))
        if failure is not None:
            await self._after(step.kind, failure)
            return
        self._done = (*self._done, step.kind)
        if self.view is not None and self.view.waiting is not None:
            await self._wait_for_turn(self.view.waiting)

    async def _try(self, work: Awaitable[None]) -> Failure | None:
        try:
            await work
        except StepEnded as ended:
            return ended.failure
        return None

    async def _after(self, kind: StepKind, failure: Failure) -> None:
        """Write what a failed step means for the VM, and end the pass where waiting longer is called for."""
        self.view, wake = None, self.row.wake
        if failure.kind in (FailureKind.CANCELLED, FailureKind.MOVED_ON):
            if failure.kind is FailureKind.MOVED_ON and self._lost < 3:
                self._lost += 1
                await self._claim()
            elif failure.kind is FailureKind.MOVED_ON:
                await self._finish("superseded", self.row.now + policies.INSIDE_WAIT_LIMIT, wake)
            elif self.row.owner:
                self.take(await self.store(PassActivities.read_vm, self.ref))
            return
        verdict = after_failure(
            self.row, kind, failure, now=workflow.now(), jitter=workflow.random().uniform(0.75, 1.25)
        )
        if verdict.give_back:
            await self._give_back(kind, counted=verdict.counted, host_died=verdict.host_died)
        outcome = Outcome(vm_id=self.vm_id, pass_number=self.pass_number, step=self.step_number, **verdict.fields)
        # A boot ends only the errors before it (L-V6).
        self.booted = self.booted and not outcome.write_error
        self.take(await self.store(PassActivities.write_outcome, outcome))
        if self._end is None and self.row.owner and verdict.ends:
            await self._finish("failed" if verdict.rests else "waiting", verdict.due_at, wake)

    async def _wait_for_turn(self, words: str) -> None:
        """A step keeps its place, or what it needs is on its way: end; whoever brings it wakes the row."""
        wake = self.row.wake
        if self.row.status.attempt_pass == self.pass_number:
            await self._give_back(self.current, counted=False)
        view = self.seen().model_copy(update={"waiting": None})
        outcome = Outcome(
            vm_id=self.vm_id,
            pass_number=self.pass_number,
            step=self.step_number,
            phase=self.row.status.phase,
            words=words,
            waits=Waiting.HOST_CERTIFICATE if self.current is StepKind.CERTIFY else Waiting.HOST_QUEUE,
            view=view,
        )
        self.take(await self.store(PassActivities.write_outcome, outcome))
        await self._finish("waiting", workflow.now() + policies.INSIDE_WAIT_LIMIT, wake)

    async def _rest(self, step: Step) -> None:
        """Nothing can be done now: write what was found; wait inside if it is short, else end."""
        wake = self.row.wake
        outcome = ending(self.row, step, self.seen(), self.ref, self.step_number, booted=self.booted)
        if outcome is not None:
            self.take(await self.store(PassActivities.write_outcome, outcome))
            if self._end is not None or not self.row.owner:
                return
        self._show(outcome.phase if outcome else self.row.status.phase, f"{step.words}: {step.reason}")
        if step.kind is StepKind.WAIT and step.until is not None:
            left = step.until - self.row.now
            creating = self.type == "CreateVm" and self.row.status.retry_at is not None
            if left <= policies.INSIDE_WAIT_LIMIT and not creating:
                await self.wait_inside(left, "pause: " + step.reason)
                await self.read_again()
                self._done = ()
                return
        results: dict[StepKind, PassResult] = {StepKind.SETTLED: "settled", StepKind.REST: "failed"}
        await self._finish(results.get(step.kind, "waiting"), step.until, wake, step)

    async def _finish(self, result: PassResult, due_at: datetime | None, wake: int, step: Step | None = None) -> None:
        """End the pass, unless somebody woke the row since `wake`: the one of the row that this end was decided on.

        A write's answer is a newer row. What woke that one has been seen by nobody (case I2).
        """
        if self._end is not None:
            return
        finish = Finish(vm_id=self.vm_id, pass_number=self.pass_number, wake=wake, due_at=due_at, result=result)
        finished = await self.store(PassActivities.finish_pass, finish)
        if finished.ended:
            # By Postgres' clock, which fixed the deadline; Temporal's may differ.
            until = step.until if step is not None and step.kind is StepKind.GRACE else None
            wait = until - self.row.now if until is not None else None
            self._end = PassEnd(result=result, pass_number=self.pass_number, wait=wait)
        elif finished.row is not None:
            # A turn or a change came: a new attempt counts anew, so it needs a pass number of its own.
            await self._claim()
        else:
            self._end = PassEnd(result="gone", pass_number=self.pass_number)

    async def _end_over_time(self) -> None:
        """The pass's time is over: give back its attempt and let the sweep start another at once."""
        if self.row.status.attempt_pass == self.pass_number:
            await self._give_back(self.current, counted=True)
        finish = Finish(**self.ref.model_dump(), wake=self.row.wake, due_at=workflow.now(), result="waiting")
        await self.store(PassActivities.finish_pass, finish)
        self._end = PassEnd(result="waiting", pass_number=self.pass_number)

    async def _give_back(self, kind: StepKind, *, counted: bool, host_died: bool = False) -> None:
        """Give back the attempt that ended in a step of this kind through no fault of the VM (L-C5)."""
        request = GiveBack(**self.ref.model_dump(), counted=counted, step=kind, host_died=host_died)
        self.take(await self.store(PassActivities.give_back_attempt, request))

    def take(self, row: Row | None) -> None:
        """Keep the newest read of the row; without a row the VM is gone."""
        if row is None:
            self._end = PassEnd(result="gone", pass_number=self.pass_number if self.claimed else None)
        else:
            self.row = row
            self.claimed = True

    def end_as_gone(self) -> None:
        """The row is no more: there is nothing left to write to."""
        self._end = PassEnd(result="gone", pass_number=self.pass_number)

    def _show(self, phase: Phase, words: str) -> None:
        """Tell the Temporal UI where the VM stands; search attributes only where the run was started with some."""
        workflow.set_current_details(words)
        if workflow.info().typed_search_attributes.get(_PHASE) not in (None, phase.value):
            workflow.upsert_search_attributes([_PHASE.value_set(phase.value)])  # pyright: ignore[reportUnknownMemberType]
