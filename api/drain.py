"""Drain a host, end that, or remove it; each answer is the host with its drain and how far it is (H-D1, H-D2, H-D5)."""

from __future__ import annotations

from fastapi import APIRouter

from api.campaigns import one_host_view
from api.documents.base import HostName
from api.documents.host import HostDocument
from api.fleet_bodies import DrainBody
from api.gate import FleetOperator, PartsOf
from api.parts import Parts
from api.route import GatedRoute
from model.errors import Conflict
from model.ids import HostId
from store.host_removal import remove_host

router = APIRouter(prefix="/v1/hosts", tags=["hosts"], route_class=GatedRoute)
POKED_AT_ONCE = 50
"""So many VMs that were let go of are woken here; the sweep wakes the others, at its pace (H-S12)."""


@router.post("/{host}/drain", status_code=202)
async def drain(host: HostId, body: DrainBody, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Let nothing new come to a host, let creates in flight finish, then stop its VMs, or leave them."""
    if body.policy == "move":
        raise Conflict(
            "VMs cannot be moved to another host yet: drain it with the policy stop, which holds its VMs stopped until "
            "it is undrained, or leave, which lets them run"
        )
    order = await parts.drains.begin(host, body.policy, caller.actor)
    parts.poke_campaign("drain", order.campaign_id, order.host_id)
    return await _view(parts, order.host_id)


@router.post("/{host}/undrain", status_code=202)
async def undrain(host: HostId, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """End a drain, done or not: every VM goes back to what is wanted of it, and the host to what it was."""
    order = await parts.drains.undo(host, caller.actor)
    parts.poke_campaign("drain", order.campaign_id, order.host_id)
    for vm in order.released[:POKED_AT_ONCE]:
        parts.poke(vm.vm_id, vm.pass_type, order.host_id)
    return await _view(parts, order.host_id)


@router.post("/{host}/drain/pause")
async def pause(host: HostId, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Stop no more VMs for now; the host stays closed, and those that are held stay so."""
    host_id, drain_id = await _find_drain(parts, host)
    await parts.campaigns.pause(drain_id, "drain", caller.actor)
    return await _view(parts, host_id)


@router.post("/{host}/drain/resume")
async def resume(host: HostId, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Go on with a drain that was paused."""
    host_id, drain_id = await _find_drain(parts, host)
    await parts.campaigns.resume(drain_id, "drain", caller.actor)
    parts.poke_campaign("drain", drain_id, host_id)
    return await _view(parts, host_id)


@router.delete("/{host}")
async def remove(host: HostId, caller: FleetOperator, parts: PartsOf) -> HostName:
    """Remove a host that is drained and, by its own report, empty; its credential ends (H-D5)."""
    host_id, name = await remove_host(parts.pool, host, caller.actor)
    return HostName(id=host_id, name=name)


async def _find_drain(parts: Parts, host: str) -> tuple[str, str]:
    known = await parts.hosts.get(host)
    drain_id = await parts.drains.find(known.id)
    if drain_id is None:
        raise Conflict(f"the host {known.name} is {known.status}: there is no drain to be paused or resumed")
    return known.id, drain_id


async def _view(parts: Parts, host_id: str) -> HostDocument:
    return await one_host_view(parts, await parts.hosts.get(host_id))
