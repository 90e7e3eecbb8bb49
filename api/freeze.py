"""Freeze and unfreeze: hold everything destructive, or only new VMs (H-R3)."""

from __future__ import annotations

from fastapi import APIRouter

from api.documents.base import Page
from api.documents.host import FreezeDocument
from api.fleet_bodies import FreezeBody
from api.gate import FleetOperator, FleetViewer, PartsOf
from api.route import GatedRoute
from store.freeze import Freeze

router = APIRouter(prefix="/v1", tags=["fleet"], route_class=GatedRoute)


@router.get("/freezes")
async def freezes(_caller: FleetViewer, parts: PartsOf) -> Page[FreezeDocument]:
    """List what is frozen, since when and by whom."""
    return Page(items=[_view(freeze) for freeze in await parts.freezes.list()], next_cursor=None)


@router.post("/freeze")
async def freeze(body: FreezeBody, caller: FleetOperator, parts: PartsOf) -> FreezeDocument:
    """Hold everything destructive, or with `creates` only new VMs; guests run on, and reads are answered."""
    return _view(await parts.freezes.freeze(body.host, caller.actor, creates=body.creates))


@router.post("/unfreeze")
async def unfreeze(body: FreezeBody, caller: FleetOperator, parts: PartsOf) -> FreezeDocument:
    """End a freeze and show what it was. Deadlines move by as long as they stood still."""
    return _view(await parts.freezes.unfreeze(body.host, caller.actor, creates=body.creates))


def _view(freeze: Freeze) -> FreezeDocument:
    return FreezeDocument(
        **{name: getattr(freeze, name) for name in FreezeDocument.model_fields if name != "holds"},
        holds="creates" if freeze.creates else "everything destructive",
    )
