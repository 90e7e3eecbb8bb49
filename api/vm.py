"""VMs: create, list, show, change, delete. What takes time answers at once; `?wait=` holds on (A-6)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from api.accepting import accepted_view
from api.bodies import ChangeVmBody, NewVmBody, Reference, check_label_pair
from api.cursor import After, Limit, page
from api.documents.base import Page
from api.documents.vm import OneVmDocument, VmDocument
from api.gate import Caller, Operator, PartsOf, Viewer
from api.grace import Grace, Now, read_grace
from api.making import find_volumes, new_vm
from api.parts import Parts
from api.releases import refuse_under_older
from api.route import GatedRoute
from api.views import one_vm_view, operation_view, vm_view
from api.waiting import Wait, settled
from model.errors import FieldError, Forbidden, Gone, Invalid, NotFound
from model.generations import VmChange
from model.ids import HostId, Name, VmId, is_uuid, new_id
from model.vm import Phase, PowerState
from store.placement import Placing
from store.vm import StoredVm, VmFilter
from store.vm_create import create_vm

router = APIRouter(prefix="/v1/vms", tags=["vms"], route_class=GatedRoute)
RECENT_OPERATIONS = 10


async def _generation(
    if_match: Annotated[str | None, Header(description="The generation that the change is for, in quotes")] = None,
) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix('"').removesuffix('"')
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        why = 'must be a generation in quotes, as "3"'
        raise Invalid(f"If-Match: {why}", errors=(FieldError("header:If-Match", why),))
    return int(text)


Generation = Annotated[int | None, Depends(_generation)]


async def _label_of(
    label: Annotated[str | None, Query(description="Only those with this label, as key=value")] = None,
) -> tuple[str, str] | None:
    if label is None:
        return None
    key, _, value = label.partition("=")
    try:
        check_label_pair(key, value)
    except ValueError as error:
        raise Invalid(f"label: {error}", errors=(FieldError("query:label", str(error)),)) from None
    return key, value


@router.post("", status_code=201)
async def create(
    body: NewVmBody, caller: Operator, parts: PartsOf, response: Response, wait: Wait = None
) -> VmDocument:
    """Make a VM under an id of ours."""
    return await _create(parts, caller, body, new_id(), response, wait, None)


@router.put("/{vm_id}", status_code=201)
async def put(
    vm_id: VmId, body: NewVmBody, caller: Operator, parts: PartsOf, response: Response, wait: Wait = None
) -> VmDocument:
    """Make a VM under the caller's id; the same request again returns the same VM with 200 (L-N4)."""
    if caller.project is not None and not is_uuid(vm_id):
        why = "a project's own id for a VM is a UUID, in lower case with hyphens"
        raise Invalid(f"id: {why}", errors=(FieldError("path:vm_id", why),))
    try:
        there = await parts.vms.get(caller.home, vm_id)
    except (NotFound, Gone):
        there = None
    return await _create(parts, caller, body, vm_id, response, wait, there)


@router.get("")
async def list_vms(
    caller: Viewer,
    parts: PartsOf,
    after: After,
    label: Annotated[tuple[str, str] | None, Depends(_label_of)],
    limit: Limit = 50,
    host: HostId | None = None,
    phase: Phase | None = None,
    power_state: PowerState | None = None,
    image: Reference | None = None,
    name: Name | None = None,
    overdue: bool | None = None,
) -> Page[VmDocument]:
    """List VMs, the oldest first."""
    if host is not None and caller.project is not None:
        raise Forbidden("listing by host takes a token that belongs to no project")
    host_id = (await parts.hosts.get(host)).id if host is not None else None
    narrowed = VmFilter(
        host_id=host_id, phase=phase, power_state=power_state, label=label, image=image, name=name, overdue=overdue
    )
    found = await parts.vms.list(caller.project, narrowed, limit=limit + 1, after=after)
    return page(found, limit, lambda vm: vm_view(vm, project=caller.project))


@router.get("/{vm_id}")
async def get(vm_id: VmId, caller: Viewer, parts: PartsOf, response: Response, wait: Wait = None) -> OneVmDocument:
    """Show a VM, with what its host is doing for it right now, and its recent operations."""
    vm = await settled(parts, caller.project, await parts.vms.get(caller.project, vm_id), wait)
    recent = await parts.operations.list_of(caller.project, vm.id, limit=RECENT_OPERATIONS)
    shown = [
        operation_view(operation, project=caller.project, runs_url=parts.runs_url(caller.project))
        for operation in recent
    ]
    response.headers["ETag"] = f'"{vm.generation}"'
    return one_vm_view(vm, project=caller.project, operations=shown, detail=await _live(parts, vm))


@router.patch("/{vm_id}")
async def change(
    vm_id: VmId,
    body: ChangeVmBody,
    caller: Operator,
    parts: PartsOf,
    response: Response,
    generation: Generation,
    wait: Wait = None,
) -> VmDocument:
    """Change what is wanted of a VM. CPU and memory need a guest that is stopped; a disk only grows.

    Keys and metadata go into the guest's seed at once, and it reads them when it boots next. A firewall takes effect at
    once.
    """
    given = body.model_dump(exclude_unset=True)
    if "firewall" in given:
        await refuse_under_older(parts, "a firewall", vm_id)
    if "volumes" in given:
        await refuse_under_older(parts, "a volume", vm_id)
        vm = await parts.vms.get(caller.project, vm_id)
        given["volumes"] = await find_volumes(parts, vm.project, body.volumes)
    wanted = VmChange.model_validate(given)
    accepted = await parts.changes.change(caller.project, vm_id, wanted, caller.actor, generation=generation)
    return await accepted_view(parts, caller, accepted, response, wait)


@router.delete("/{vm_id}", status_code=202)
async def delete(
    vm_id: VmId,
    caller: Operator,
    parts: PartsOf,
    response: Response,
    generation: Generation,
    grace: Grace = None,
    now: Now = False,
    wait: Wait = None,
) -> VmDocument:
    """Stop a VM and keep it for its grace; then it is destroyed."""
    chosen = read_grace(caller, grace, parts.tombstone_grace, now=now)
    accepted = await parts.changes.delete(
        caller.project,
        vm_id,
        caller.actor,
        grace=parts.tombstone_grace if chosen is None else chosen,
        asked=chosen is not None,
        generation=generation,
    )
    return await accepted_view(parts, caller, accepted, response, wait)


async def _create(
    parts: Parts,
    caller: Caller,
    body: NewVmBody,
    vm_id: str,
    response: Response,
    wait: timedelta | None,
    there: StoredVm | None,
) -> VmDocument:
    if body.volumes:
        await refuse_under_older(parts, "a volume")
    if body.firewall is not None:
        await refuse_under_older(parts, "a firewall")
    if body.host_certificate:
        await refuse_under_older(parts, "a host certificate")
    new = await new_vm(parts, caller, body, vm_id, there)
    placing = Placing(parts.placement, see_hosts=caller.project is None)
    accepted = await create_vm(parts.pool, new, caller.actor, placing)
    if there is not None or not accepted.changed:
        response.status_code = 200
    response.headers["Location"] = f"/v1/vms/{vm_id}"
    return await accepted_view(parts, caller, accepted, response, wait)


async def _live(parts: Parts, vm: StoredVm) -> str | None:
    """Only a run that may be at work is asked; a silent host's says nothing new."""
    if vm.settled or vm.run_id is None or vm.host_silent or parts.client is None:
        return None
    return await parts.progress.read(parts.client, vm.id)
