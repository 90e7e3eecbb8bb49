"""What a campaign reads and writes in the store: local activities, safe to repeat, and void once it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from temporalio import activity

from model.campaign import CampaignFinish, CampaignLook, CampaignStart, CampaignVms

if TYPE_CHECKING:
    from store.campaign import CampaignStore
    from store.change import WokenVm
    from store.roll import RollStore

    Poke = Callable[[WokenVm], Awaitable[None]]


class CampaignActivities:
    """A campaign's row and its VMs' rows. `poke` hurries a VM's pass; what is lost the sweep finds again."""

    def __init__(self, store: CampaignStore, rolls: RollStore, poke: Poke) -> None:
        self._store, self._rolls = store, rolls
        self._poke = poke

    @activity.defn
    async def find_campaign(self, start: CampaignStart) -> CampaignLook | None:
        """Look at all of its VMs' rows; None when there is no such campaign any more."""
        return await self._store.look(start.campaign_id)

    @activity.defn
    async def ensure_vms_held(self, vms: CampaignVms) -> None:
        """Hold VMs, so that their own passes stop the guests (H-D1)."""
        await self._poke_all(await self._store.hold(vms.campaign_id, vms.vm_ids))

    @activity.defn
    async def ensure_vms_let_go(self, vms: CampaignVms) -> None:
        """Let go of held VMs that were deleted: their end waits for nothing else (L-G12)."""
        await self._poke_all(await self._store.let_go(vms.campaign_id, vms.vm_ids))

    @activity.defn
    async def ensure_vms_restarted(self, vms: CampaignVms) -> None:
        """Ask for VMs' restarts, once each (H-D3)."""
        await self._poke_all(await self._rolls.restart(vms.campaign_id, vms.vm_ids))

    @activity.defn
    async def ensure_campaign_paused(self, start: CampaignStart) -> None:
        """Pause a campaign of which too many VMs failed."""
        await self._store.pause_itself(start.campaign_id)

    @activity.defn
    async def ensure_campaign_done(self, start: CampaignStart) -> None:
        """Note that every VM has had its turn."""
        await self._store.note_done(start.campaign_id)

    @activity.defn
    async def finish_campaign(self, finish: CampaignFinish) -> bool:
        """End the run; False when somebody woke the campaign meanwhile."""
        return await self._store.finish(finish)

    async def _poke_all(self, woken: tuple[WokenVm, ...]) -> None:
        await asyncio.gather(*map(self._poke, woken))
