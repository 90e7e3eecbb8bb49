"""What is asked of a VM apart from its desired state: restart, rebuild, retry, undelete; and what it left to read."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.accepting import accepted_view
from api.bodies import ImageBody, RebuildBody
from api.cursor import After, Limit, page
from api.documents.base import OperationDocument, Page
from api.documents.vm import ConsoleDocument, VmDocument
from api.gate import Operator, PartsOf, Viewer
from api.making import rebuild_image
from api.releases import refuse_under_older
from api.route import GatedRoute
from api.views import operation_view
from api.vm import Generation
from api.waiting import Wait
from model.errors import Unavailable
from model.ids import Name, VmId

router = APIRouter(prefix="/v1/vms", tags=["vms"], route_class=GatedRoute)
CONSOLE_LIMIT = 256 << 10


@router.post("/{vm_id}/restart", status_code=202)
async def restart(
    vm_id: VmId, caller: Operator, parts: PartsOf, response: Response, generation: Generation, wait: Wait = None
) -> VmDocument:
    """Stop and start the guest once."""
    accepted = await parts.changes.restart(caller.project, vm_id, caller.actor, generation=generation)
    return await accepted_view(parts, caller, accepted, response, wait)


@router.put("/{vm_id}/volumes/{volume}", status_code=202)
async def attach(
    vm_id: VmId,
    volume: Name,
    caller: Operator,
    parts: PartsOf,
    response: Response,
    generation: Generation,
    wait: Wait = None,
) -> VmDocument:
    """Attach a volume, by its id or name: the guest has it at once where it runs, else when it boots (H-V1)."""
    await refuse_under_older(parts, "a volume", vm_id)
    accepted = await parts.changes.attach(caller.project, vm_id, volume, caller.actor, generation=generation)
    return await accepted_view(parts, caller, accepted, response, wait)


@router.delete("/{vm_id}/volumes/{volume}", status_code=202)
async def detach(
    vm_id: VmId,
    volume: Name,
    caller: Operator,
    parts: PartsOf,
    response: Response,
    generation: Generation,
    wait: Wait = None,
) -> VmDocument:
    """Detach a volume; a guest that runs must let it go. Its data stays, for whichever VM has it next."""
    await refuse_under_older(parts, "a volume", vm_id)
    accepted = await parts.changes.detach(caller.project, vm_id, volume, caller.actor, generation=generation)
    return await accepted_view(parts, caller, accepted, response, wait)


@router.post("/{vm_id}/rebuild", status_code=202)
async def rebuild(
    vm_id: VmId,
    body: RebuildBody,
    caller: Operator,
    parts: PartsOf,
    response: Response,
    generation: Generation,
    wait: Wait = None,
) -> VmDocument:
    """Make root disk and seed anew from the same image or another; name, addresses and host key stay.

    The old root disk is kept until `old_disk_until`: `{"undo": true}` brings it back, and keeps the new one instead.
    """
    keep = parts.tombstone_grace
    vm = await parts.vms.get(caller.project, vm_id)
    await refuse_under_older(parts, "a rebuild", vm.id)
    if body.undo:
        accepted = await parts.rebuilds.undo(caller.project, vm_id, caller.actor, keep=keep, generation=generation)
        return await accepted_view(parts, caller, accepted, response, wait)
    given: str | ImageBody | None = body.image if "image" in body.model_fields_set else None
    image = await rebuild_image(parts, caller, vm, given) if given is not None else None
    accepted = await parts.rebuilds.rebuild(
        caller.project, vm_id, caller.actor, keep=keep, image=image, discard=body.discard, generation=generation
    )
    return await accepted_view(parts, caller, accepted, response, wait)


@router.post("/{vm_id}/retry", status_code=202)
async def retry(vm_id: VmId, caller: Operator, parts: PartsOf, response: Response, wait: Wait = None) -> VmDocument:
    """Clear count and error, and try again at once."""
    accepted = await parts.changes.retry(caller.project, vm_id, caller.actor)
    return await accepted_view(parts, caller, accepted, response, wait)


@router.post("/{vm_id}/undelete", status_code=202)
async def undelete(vm_id: VmId, caller: Operator, parts: PartsOf, response: Response, wait: Wait = None) -> VmDocument:
    """Bring a VM back from its quarantine; 410 once its destruction has begun."""
    accepted = await parts.changes.undelete(caller.project, vm_id, caller.actor)
    return await accepted_view(parts, caller, accepted, response, wait)


@router.get("/{vm_id}/operations")
async def operations(
    vm_id: VmId, caller: Viewer, parts: PartsOf, after: After, limit: Limit = 50
) -> Page[OperationDocument]:
    """List what was asked of a VM, the newest first; also of one that is gone."""
    found = await parts.operations.list_of(caller.project, vm_id, limit=limit + 1, before=after)
    if not found and after is None:
        await parts.vms.get(caller.project, vm_id)
    runs_url = parts.runs_url(caller.project)
    return page(found, limit, lambda operation: operation_view(operation, project=caller.project, runs_url=runs_url))


@router.get("/{vm_id}/console")
async def console(
    vm_id: VmId,
    caller: Operator,
    parts: PartsOf,
    limit: Annotated[int, Query(alias="bytes", ge=1, le=CONSOLE_LIMIT, description="How much of its end")] = 64 << 10,
) -> ConsoleDocument:
    """Return the end of a VM's console log, as base64 of what the guest printed."""
    vm = await parts.vms.get(caller.project, vm_id)
    if vm.host_silent:
        raise Unavailable("the VM's host is silent, nobody can read its console now; try again when it is back")
    data = await parts.errands.ask(vm.host_id, "console", vm_id, limit)
    return ConsoleDocument(data=base64.b64encode(data[-limit:]).decode())
