"""The story of a create: take an attempt, prepare the host, image, disk, seed, boot, and record that it is done.

The order is `model.decide.next_step`'s; what each step does on the host is `activities.vm` and `activities.image`.
"""

from __future__ import annotations

from temporalio import workflow

from activities.passes import PassActivities
from model.passes import PassStart
from model.step import StepKind
from workflows.life import PassEnd
from workflows.making import MakingPass


@workflow.defn
class CreateVm(MakingPass):
    """Bring a VM into being, or end with the reason why not (rules L-C)."""

    type = "CreateVm"

    @workflow.run
    async def run(self, start: PassStart) -> PassEnd:
        """Run one pass. The end is: ready, failed, waiting, or superseded."""
        return await self.live(start)

    async def take_attempt(self) -> None:
        """Count this pass once, before it changes anything on the host (L-C4)."""
        self.take(await self.store(PassActivities.take_attempt, self.ref))

    steps = {StepKind.TAKE_ATTEMPT: take_attempt, **MakingPass.making}
