"""Rolling restarts: begin, look, pause, resume, cancel (H-D3)."""

from __future__ import annotations

from fastapi import APIRouter

from api.documents.base import Page
from api.documents.campaign import CampaignDocument
from api.fleet_bodies import RollBody
from api.gate import FleetOperator, FleetViewer, PartsOf
from api.parts import Parts
from api.route import GatedRoute
from api.views import campaign_view
from model.errors import NotFound
from model.ids import VmId

router = APIRouter(prefix="/v1/rolls", tags=["fleet"], route_class=GatedRoute)


@router.post("", status_code=202)
async def begin(body: RollBody, caller: FleetOperator, parts: PartsOf) -> CampaignDocument:
    """Restart the VMs that are wanted running, `batch_size` at a time; it pauses after more than `most_failures`."""
    roll_id = await parts.rolls.begin(
        labels=body.labels,
        host=body.host,
        batch_size=body.batch_size,
        most_failures=body.most_failures,
        actor=caller.actor,
    )
    parts.poke_campaign("roll", roll_id)
    return await _view(parts, roll_id)


@router.get("")
async def list_rolls(_caller: FleetViewer, parts: PartsOf) -> Page[CampaignDocument]:
    """List the newest rolling restarts."""
    found = await parts.rolls.list()
    return Page(items=[campaign_view(each, runs_url=parts.runs_url(None)) for each in found], next_cursor=None)


@router.get("/{roll_id}")
async def get(roll_id: VmId, _caller: FleetViewer, parts: PartsOf) -> CampaignDocument:
    """Show a rolling restart and how far it is."""
    return await _view(parts, roll_id)


@router.post("/{roll_id}/pause")
async def pause(roll_id: VmId, caller: FleetOperator, parts: PartsOf) -> CampaignDocument:
    """Begin no more restarts for now; those that were begun are done."""
    await parts.campaigns.pause(roll_id, "roll", caller.actor)
    return await _view(parts, roll_id)


@router.post("/{roll_id}/resume")
async def resume(roll_id: VmId, caller: FleetOperator, parts: PartsOf) -> CampaignDocument:
    """Go on; what has failed by now is put up with."""
    await parts.campaigns.resume(roll_id, "roll", caller.actor)
    parts.poke_campaign("roll", roll_id)
    return await _view(parts, roll_id)


@router.post("/{roll_id}/cancel")
async def cancel(roll_id: VmId, caller: FleetOperator, parts: PartsOf) -> CampaignDocument:
    """Begin no more restarts at all; those that were begun are done."""
    await parts.rolls.cancel(roll_id, caller.actor)
    parts.poke_campaign("roll", roll_id)
    return await _view(parts, roll_id)


async def _view(parts: Parts, roll_id: str) -> CampaignDocument:
    campaign = await parts.campaigns.get(roll_id)
    if campaign.kind != "roll":
        raise NotFound(f"there is no rolling restart {roll_id}")
    return campaign_view(campaign, runs_url=parts.runs_url(None))
