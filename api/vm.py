"""VMs: create, read, change, restart, retry, delete, undelete. Each answers at once; `?wait=` holds on (A-6)."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from api.bodies import ChangeVmBody, NewVmBody
from api.cursor import Cursor, Limit, page, read_cursor
from api.gate import Caller, Operator, PartsOf, Viewer
from api.making import new_vm
from api.parts import Parts
from api.views import Document, operation_view, vm_view
from api.waiting import WaitText, read_duration, settled
from model.errors import Forbidden, Invalid
from model.generations import VmChange
from model.ids import VmId, is_uuid, new_id
from model.vm import Phase, PowerState
from runtime.temporal import read_progress
from store.change import Accepted
from store.vm import StoredVm, VmFilter
from store.vm_create import create_vm

router = APIRouter(prefix="/v1/vms", tags=["vms"])
LONGEST_GRACE = timedelta(days=30)
RECENT_OPERATIONS = 10
CONSOLE_LIMIT = 256 << 10
IfMatch = Annotated[str | None, Header(description="The generation that the change is for, in quotes")]


@router.post("", status_code=201)
async def create(
    body: NewVmBody, caller: Operator, parts: PartsOf, response: Response, wait: WaitText = None
) -> Document:
    """Make a VM under an id of ours."""
    return await _create(parts, caller, body, new_id(), response, wait)


@router.put("/{vm_id}", status_code=201)
async def put(
    vm_id: VmId, body: NewVmBody, caller: Operator, parts: PartsOf, response: Response, wait: WaitText = None
) -> Document:
    """Make a VM under the caller's id; the same request again returns the same VM (L-N4)."""
    if caller.project is not None and not is_uuid(vm_id):
        raise Invalid("id: a project's own id for a VM is a UUID")
    return await _create(parts, caller, body, vm_id, response, wait)


@router.get("")
async def list_vms(
    caller: Viewer,
    parts: PartsOf,
    limit: Limit = 50,
    cursor: Cursor = None,
    host: str | None = None,
    phase: Phase | None = None,
    power_state: PowerState | None = None,
    label: str | None = None,
    image: str | None = None,
    name: str | None = None,
) -> Document:
    """List VMs, the oldest first. `label` is `key=value`."""
    if host is not None and caller.project is not None:
        raise Forbidden("listing by host takes a token that belongs to no project")
    host_id = (await parts.hosts.get(host)).id if host is not None else None
    pair = label.partition("=") if label is not None else None
    narrowed = VmFilter(
        host_id=host_id,
        phase=phase,
        power_state=power_state,
        label=(pair[0], pair[2]) if pair else None,
        image=image,
        name=name,
    )
    found = await parts.vms.list(caller.project, narrowed, limit=limit + 1, after=read_cursor(cursor))
    return page(found, [vm_view(vm, project=caller.project) for vm in found], limit)


@router.get("/{vm_id}")
async def get(vm_id: VmId, caller: Viewer, parts: PartsOf, response: Response, wait: WaitText = None) -> Document:
    """Show a VM, with what its host is doing for it right now, and its recent operations."""
    vm = await settled(parts, caller.project, vm_id, wait)
    return await _shown(parts, caller, vm, response)


@router.patch("/{vm_id}")
async def change(
    vm_id: VmId,
    body: ChangeVmBody,
    caller: Operator,
    parts: PartsOf,
    response: Response,
    if_match: IfMatch = None,
    wait: WaitText = None,
) -> Document:
    """Change what is wanted of a VM: power state, disk, keys, metadata, labels."""
    wanted = VmChange.model_validate(body.model_dump(exclude_unset=True))
    accepted = await parts.changes.change(caller.project, vm_id, wanted, caller.actor, generation=_generation(if_match))
    return await _accepted(parts, caller, accepted, response, wait)


@router.post("/{vm_id}/restart", status_code=202)
async def restart(
    vm_id: VmId,
    caller: Operator,
    parts: PartsOf,
    response: Response,
    if_match: IfMatch = None,
    wait: WaitText = None,
) -> Document:
    """Stop and start the guest once."""
    accepted = await parts.changes.restart(caller.project, vm_id, caller.actor, generation=_generation(if_match))
    return await _accepted(parts, caller, accepted, response, wait)


@router.post("/{vm_id}/retry", status_code=202)
async def retry(vm_id: VmId, caller: Operator, parts: PartsOf, response: Response, wait: WaitText = None) -> Document:
    """Clear count and error, and try again at once."""
    accepted = await parts.changes.retry(caller.project, vm_id, caller.actor)
    return await _accepted(parts, caller, accepted, response, wait)


@router.post("/{vm_id}/undelete", status_code=202)
async def undelete(
    vm_id: VmId, caller: Operator, parts: PartsOf, response: Response, wait: WaitText = None
) -> Document:
    """Bring a VM back from its quarantine; 410 once its destruction has begun."""
    accepted = await parts.changes.undelete(caller.project, vm_id, caller.actor)
    return await _accepted(parts, caller, accepted, response, wait)


@router.delete("/{vm_id}", status_code=202)
async def delete(
    vm_id: VmId,
    caller: Operator,
    parts: PartsOf,
    response: Response,
    grace: Annotated[str | None, Query(description="How long it can be undeleted, as 24h; 0s to 30d")] = None,
    now: Annotated[bool, Query(description="The same as grace=0s")] = False,
    if_match: IfMatch = None,
    wait: WaitText = None,
) -> Document:
    """Stop a VM and keep it for its grace; then it is destroyed."""
    chosen = timedelta(0) if now else read_duration(grace, "grace", LONGEST_GRACE) if grace is not None else None
    if now and grace is not None:
        raise Invalid("grace: give either grace or now")
    if chosen is not None and chosen < parts.tombstone_grace and caller.project is not None:
        raise Forbidden("a grace shorter than the fleet's takes a token that belongs to no project")
    accepted = await parts.changes.delete(
        caller.project,
        vm_id,
        caller.actor,
        grace=parts.tombstone_grace if chosen is None else chosen,
        asked=chosen is not None,
        generation=_generation(if_match),
    )
    return await _accepted(parts, caller, accepted, response, wait)


@router.get("/{vm_id}/operations")
async def operations(vm_id: VmId, caller: Viewer, parts: PartsOf, limit: Limit = 50, cursor: Cursor = None) -> Document:
    """List what was asked of a VM, the newest first; also of one that is gone."""
    found = await parts.operations.list_of(caller.project, vm_id, limit=limit + 1, before=read_cursor(cursor))
    if not found and cursor is None:
        await parts.vms.get(caller.project, vm_id)
    return page(found, [operation_view(o, ui_url=_ui(parts, caller)) for o in found], limit)


@router.get("/{vm_id}/console")
async def console(
    vm_id: VmId,
    caller: Operator,
    parts: PartsOf,
    limit: Annotated[int, Query(alias="bytes", ge=1, le=CONSOLE_LIMIT)] = 64 << 10,
) -> Document:
    """Return the end of a VM's console log, as base64 of what the guest printed."""
    vm = await parts.vms.get(caller.project, vm_id)
    data: bytes = await parts.errands.ask(vm.host_id, "console", vm_id, limit)
    return {"data": base64.b64encode(data[-limit:]).decode()}


async def _create(
    parts: Parts, caller: Caller, body: NewVmBody, vm_id: str, response: Response, wait: str | None
) -> Document:
    accepted = await create_vm(parts.pool, await new_vm(parts, caller, body, vm_id), caller.actor)
    document = await _accepted(parts, caller, accepted, response, wait)
    if not accepted.changed:
        response.status_code = 200
    response.headers["Location"] = f"/v1/vms/{vm_id}"
    return document


async def _accepted(parts: Parts, caller: Caller, accepted: Accepted, response: Response, wait: str | None) -> Document:
    """Poke, and show the row with the operation."""
    if wait is not None:
        read_duration(wait, "wait", LONGEST_GRACE)
    if accepted.changed:
        parts.poke(accepted.vm_id, accepted.pass_type)
    vm = await settled(parts, caller.project, accepted.vm_id, wait)
    operation = await parts.operations.get(caller.project, accepted.operation_id) if accepted.operation_id else None
    response.headers["ETag"] = f'"{vm.generation}"'
    shown = operation_view(operation, ui_url=_ui(parts, caller)) if operation else None
    return vm_view(vm, project=caller.project, operation=shown)


async def _shown(parts: Parts, caller: Caller, vm: StoredVm, response: Response) -> Document:
    recent = await parts.operations.list_of(caller.project, vm.id, limit=RECENT_OPERATIONS)
    shown: list[Any] = [operation_view(o, ui_url=_ui(parts, caller)) for o in recent]
    document = vm_view(vm, project=caller.project, operation=shown[0] if shown else None)
    if not vm.settled and parts.client is not None:
        live = await read_progress(parts.client, vm.id)
        document["status_detail"] = live or document["status_detail"]
    response.headers["ETag"] = f'"{vm.generation}"'
    return {**document, "operations": shown}


def _ui(parts: Parts, caller: Caller) -> str | None:
    return parts.ui_url if caller.project is None else None


def _generation(if_match: str | None) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().strip('"')
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Invalid('If-Match: must be a generation in quotes, as "3"')
    return int(text)
