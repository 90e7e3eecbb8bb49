"""The fleet's floor: below it a host worker acts on no VM (H-S5)."""

from __future__ import annotations

from fastapi import APIRouter

from api.documents.host import BelowFloorDocument, FloorDocument
from api.fleet_bodies import FloorBody
from api.gate import FleetAdmin, FleetViewer, PartsOf
from api.parts import Parts
from api.route import GatedRoute
from model.errors import FieldError, Invalid
from model.versions import VERSION, is_newer
from store.floor import get_floor, set_floor

router = APIRouter(prefix="/v1/floor", tags=["fleet"], route_class=GatedRoute)


@router.get("")
async def show_floor(_caller: FleetViewer, parts: PartsOf) -> FloorDocument:
    """Show the least release of a host worker that may act on VMs, and which hosts are below it."""
    return await _view(parts)


@router.put("")
async def put_floor(body: FloorBody, caller: FleetAdmin, parts: PartsOf) -> FloorDocument:
    """Set that release, or null for none. Guests on a host below it run on; nothing is done for its VMs."""
    if body.min_worker_version is not None and is_newer(body.min_worker_version, VERSION):
        text = f"this control plane is {VERSION}, and no host worker may be newer: all of them would be below the floor"
        raise Invalid(text, errors=(FieldError("/min_worker_version", text),))
    await set_floor(parts.pool, body.min_worker_version, caller.actor)
    return await _view(parts)


async def _view(parts: Parts) -> FloorDocument:
    floor = await get_floor(parts.pool)
    below = [BelowFloorDocument(name=name, worker_version=version) for name, version in floor.below]
    return FloorDocument(min_worker_version=floor.min_worker_version, below=below)
