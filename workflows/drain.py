"""The story of a drain: creates in flight finish, then the host's VMs are held and stopped, some at a time.

The API has closed the host to new VMs before it begins, and ends it: an undrain lets go of every VM in one
transaction. The order is `model.campaign.next_of_campaign`'s; each VM's own pass stops its guest.
"""

from __future__ import annotations

from temporalio import workflow

from activities.campaign import CampaignActivities
from model.campaign import CampaignStart, CampaignStep, CampaignStepKind
from workflows.campaign import Campaign, CampaignEnd


@workflow.defn
class DrainHost(Campaign):
    """Empty a host of running guests, as its operator asked (H-D1)."""

    @workflow.run
    async def run(self, start: CampaignStart) -> CampaignEnd:
        """Run until the host is drained, the drain is paused or cancelled, or what is left must wait."""
        return await self.live(start)

    async def let_go(self, step: CampaignStep) -> None:
        """A VM that its user deleted since is not held any longer: it is stopped and quarantined by its own reap."""
        await self.store(CampaignActivities.ensure_vms_let_go, self.vms(step))

    async def hold(self, step: CampaignStep) -> None:
        """Hold the next VMs; while they are held their guests are stopped, and stay so."""
        await self.store(CampaignActivities.ensure_vms_held, self.vms(step))

    async def note_drained(self, step: CampaignStep) -> None:
        """Every VM is stopped or left, none failed: the host is drained."""
        await self.store(CampaignActivities.ensure_campaign_done, self.start)

    steps = {
        CampaignStepKind.YIELD: let_go,
        CampaignStepKind.TAKE: hold,
        CampaignStepKind.NOTE_DONE: note_drained,
    }
