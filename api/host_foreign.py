"""What hosts hold although no row places it there, and what becomes of it: adopted, quarantined, left (L-R1, H-R2)."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.accepting import accepted_view
from api.adopting import adopt, quarantine
from api.documents.base import Page
from api.documents.host import ForeignDocument
from api.documents.vm import VmDocument
from api.fleet_bodies import AdoptBody
from api.gate import FleetOperator, FleetViewer, PartsOf
from api.route import GatedRoute
from model.foreign import ForeignVm
from model.ids import HostId, VmId
from store.adopt import leave_foreign
from store.foreign import list_foreign

router = APIRouter(prefix="/v1/hosts", tags=["hosts"], route_class=GatedRoute)


@router.get("/{host}/foreign")
async def foreign(host: HostId, _caller: FleetViewer, parts: PartsOf) -> Page[ForeignDocument]:
    """List what a host holds although no row places it there, and why each is still as it is (L-R1)."""
    found = await list_foreign(parts.pool, (await parts.hosts.get(host)).id)
    return Page(items=[_view(vm) for vm in found], next_cursor=None)


@router.post("/{host}/foreign/{vm_id}/adopt", status_code=202)
async def adopt_vm(
    host: HostId, vm_id: VmId, body: AdoptBody, caller: FleetOperator, parts: PartsOf, response: Response
) -> VmDocument:
    """Make a row again for a VM that a host holds without one, from the host's record: it goes on as it is.

    One that vanished, and waits in quarantine, is brought back.
    """
    host_id, given = (await parts.hosts.get(host)).id, _given(body)
    accepted = await adopt(parts, host_id, vm_id, caller.actor, **given)
    return await accepted_view(parts, caller, accepted, response, None)


@router.post("/{host}/foreign/{vm_id}/quarantine", status_code=202)
async def quarantine_vm(
    host: HostId, vm_id: VmId, body: AdoptBody, caller: FleetOperator, parts: PartsOf
) -> ForeignDocument:
    """Stop a VM that a host holds without a row, and keep it for the grace of one that vanished, by a row of its own.

    One whose row names another host is stopped and kept for good, without any other row.
    """
    host_id, given = (await parts.hosts.get(host)).id, _given(body)
    return _view(await quarantine(parts, host_id, vm_id, caller.actor, **given))


@router.post("/{host}/foreign/{vm_id}/leave")
async def leave_vm(host: HostId, vm_id: VmId, caller: FleetOperator, parts: PartsOf) -> ForeignDocument:
    """Leave a VM that a host holds without a row as it is: no report stops it (H-R2)."""
    host_id = (await parts.hosts.get(host)).id
    return _view(await leave_foreign(parts.pool, host_id, vm_id, caller.actor))


def _given(body: AdoptBody) -> dict[str, str | None]:
    return {"project": body.project, "name": body.name}


def _view(vm: ForeignVm) -> ForeignDocument:
    names = ForeignDocument.model_fields
    return ForeignDocument(**{name: getattr(vm, name) for name in names})
