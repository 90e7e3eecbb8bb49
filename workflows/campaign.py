"""The one loop of every campaign: look at its VMs' rows, decide, do, look again.

`model.campaign.next_of_campaign` is the order; drain.py and roll.py hold one method for each step. The VMs' own passes
do the work on the hosts. A run holds no state worth keeping: anyone may terminate it at any moment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from temporalio import workflow

from activities.campaign import CampaignActivities
from model.base import Lenient
from model.campaign import (
    CampaignFinish,
    CampaignLook,
    CampaignResult,
    CampaignStart,
    CampaignStep,
    CampaignStepKind,
    CampaignVms,
    next_of_campaign,
)
from model.temporal import LOOK_AGAIN
from workflows import policies
from workflows.store_calls import StoreAway, StoreCalls

AGAIN_SECONDS: dict[CampaignResult, float] = {"failing": 60.0, "waiting": 0.0}
"""When a run that ended so is followed by another one; the others wait until somebody wakes the campaign."""


class CampaignEnd(Lenient):
    """How a run ended."""

    result: CampaignResult


class Campaign(StoreCalls):
    """What a drain and a rolling restart share."""

    steps: ClassVar[Mapping[CampaignStepKind, Callable[[Any, CampaignStep], Awaitable[None]]]]

    def __init__(self) -> None:
        self.start = CampaignStart(campaign_id="")
        self.poked = False

    @workflow.signal(name=LOOK_AGAIN)
    def look_again(self) -> None:
        """Something changed: look again. A poke carries nothing."""
        self.poked = True

    async def live(self, start: CampaignStart) -> CampaignEnd:
        """Run the loop for as long as a pass may last; what is left then, another run takes up."""
        self.start = start
        over_at = workflow.now() + policies.PASS_TIMEOUT
        pause = policies.CAMPAIGN_LOOK_FIRST
        try:
            while True:
                self.poked = False
                look = await self.store(CampaignActivities.find_campaign, start)
                if look is None:
                    return CampaignEnd(result="gone")
                step = next_of_campaign(look)
                self._show(look, step)
                if step.result is not None or workflow.now() >= over_at:
                    result = step.result or "waiting"
                    if await self._finish(look, result):
                        return CampaignEnd(result=result)
                elif step.kind in self.steps:
                    await self.steps[step.kind](self, step)
                    pause = policies.CAMPAIGN_LOOK_FIRST
                else:
                    await self._wait(pause, step.words)
                    pause = min(pause * 1.5, policies.CAMPAIGN_LOOK_LONGEST)
        except StoreAway:
            return CampaignEnd(result="waiting")

    def vms(self, step: CampaignStep) -> CampaignVms:
        """Name the VMs of a step to an activity."""
        return CampaignVms(campaign_id=self.start.campaign_id, vm_ids=step.vm_ids)

    async def _finish(self, look: CampaignLook, result: CampaignResult) -> bool:
        again = AGAIN_SECONDS.get(result)
        finish = CampaignFinish(campaign_id=self.start.campaign_id, wake=look.wake, due_seconds=again)
        return await self.store(CampaignActivities.finish_campaign, finish)

    async def _wait(self, pause: timedelta, words: str) -> None:
        try:
            await workflow.wait_condition(lambda: self.poked, timeout=pause, timeout_summary=words)
        except TimeoutError:
            return

    def _show(self, look: CampaignLook, step: CampaignStep) -> None:
        """Tell the Temporal UI how far the campaign is."""
        workflow.set_current_details(f"{look.done} of {look.total}, {look.failed} failed: {step.words}")
