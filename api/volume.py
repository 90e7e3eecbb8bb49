"""Volumes: make, list, show, grow, delete, undelete. A VM's pass makes them on its host (H-V1 to H-V4)."""

from __future__ import annotations

from fastapi import APIRouter

from api.bodies import GrowVolumeBody, NewVolumeBody
from api.cursor import After, Limit, page
from api.documents.base import Page
from api.documents.volume import VolumeDocument
from api.gate import Operator, PartsOf, Viewer
from api.grace import Grace, Now, read_grace
from api.making import find_host
from api.route import GatedRoute
from api.views import volume_view
from model.errors import Forbidden
from model.ids import HostId, Name, VmId

router = APIRouter(prefix="/v1/volumes", tags=["volumes"], route_class=GatedRoute)


@router.post("", status_code=201)
async def create(body: NewVolumeBody, caller: Operator, parts: PartsOf) -> VolumeDocument:
    """Make a volume. Its file is made on its host before the first VM that has it boots."""
    if body.host is not None and caller.project is not None:
        raise Forbidden("naming a host takes a token that belongs to no project; leave it out")
    host_id = await find_host(parts, body.host) if body.host is not None else None
    made = await parts.volumes.create(
        project=caller.home, name=body.name, size_gib=body.size_gib, host_id=host_id, actor=caller.actor
    )
    return volume_view(made, project=caller.project)


@router.get("")
async def list_volumes(
    caller: Viewer,
    parts: PartsOf,
    after: After,
    limit: Limit = 50,
    host: HostId | None = None,
    vm: VmId | None = None,
    name: Name | None = None,
) -> Page[VolumeDocument]:
    """List volumes, the oldest first; deleted ones, too, until their host has removed them."""
    if host is not None and caller.project is not None:
        raise Forbidden("listing by host takes a token that belongs to no project")
    host_id = (await parts.hosts.get(host)).id if host is not None else None
    found = await parts.volumes.list(caller.project, host_id=host_id, vm_id=vm, name=name, limit=limit + 1, after=after)
    return page(found, limit, lambda volume: volume_view(volume, project=caller.project))


@router.get("/{volume}")
async def get(volume: Name, caller: Viewer, parts: PartsOf) -> VolumeDocument:
    """Show a volume by its id or its name."""
    return volume_view(await parts.volumes.get(caller.project, volume), project=caller.project)


@router.patch("/{volume}")
async def grow(volume: Name, body: GrowVolumeBody, caller: Operator, parts: PartsOf) -> VolumeDocument:
    """Make a volume larger: at once where a VM has it, also while its guest runs; it never shrinks (H-V4)."""
    grown = await parts.volumes.grow(caller.project, volume, body.size_gib, caller.actor)
    if grown.vm_id is not None and grown.pass_type is not None:
        parts.poke(grown.vm_id, grown.pass_type, grown.volume.host_id)
    return volume_view(grown.volume, project=caller.project)


@router.delete("/{volume}", status_code=202)
async def delete(
    volume: Name,
    caller: Operator,
    parts: PartsOf,
    grace: Grace = None,
    now: Now = False,
) -> VolumeDocument:
    """Delete a volume that no VM has: it is kept for its grace, then its host removes it (H-V3).

    One that was never placed on a host, or whose host was given up, is gone at once.
    """
    chosen = read_grace(caller, grace, parts.volume_grace, now=now)
    kept = await parts.volumes.delete(
        caller.project,
        volume,
        caller.actor,
        grace=parts.volume_grace if chosen is None else chosen,
        asked=chosen is not None,
    )
    return volume_view(kept, project=caller.project)


@router.post("/{volume}/undelete", status_code=202)
async def undelete(volume: Name, caller: Operator, parts: PartsOf) -> VolumeDocument:
    """Bring a deleted volume back; 410 once its host was told to remove it."""
    return volume_view(await parts.volumes.undelete(caller.project, volume, caller.actor), project=caller.project)
