"""The story of a rolling restart: some VMs at a time, the next when those are back, none after too many failures.

The order is `model.campaign.next_of_campaign`'s; each VM's own pass restarts its guest.
"""

from __future__ import annotations

from temporalio import workflow

from activities.campaign import CampaignActivities
from model.campaign import CampaignStart, CampaignStep, CampaignStepKind
from workflows.campaign import Campaign, CampaignEnd


@workflow.defn
class RollFleet(Campaign):
    """Restart VMs one batch after the other (H-D3)."""

    @workflow.run
    async def run(self, start: CampaignStart) -> CampaignEnd:
        """Run until every VM has had its turn, or the restart is paused or cancelled."""
        return await self.live(start)

    async def restart(self, step: CampaignStep) -> None:
        """Ask for the restart of the next VMs."""
        await self.store(CampaignActivities.ensure_vms_restarted, self.vms(step))

    async def pause(self, step: CampaignStep) -> None:
        """Too many VMs have failed: begin with no more until somebody has looked."""
        await self.store(CampaignActivities.ensure_campaign_paused, self.start)

    async def note_done(self, step: CampaignStep) -> None:
        """Every VM has had its turn."""
        await self.store(CampaignActivities.ensure_campaign_done, self.start)

    steps = {
        CampaignStepKind.TAKE: restart,
        CampaignStepKind.PAUSE: pause,
        CampaignStepKind.NOTE_DONE: note_done,
    }
