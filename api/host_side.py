"""What a host worker asks of the API with its own credential: its reports, its VMs' inputs, its errands (H-S6, S-5)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.gate import EnrolledHost, PartsOf
from api.making import open_vm
from api.views import Document
from model.errors import Conflict
from model.ids import Digest, VmId
from model.report import HostReport, ReportAnswer
from model.specification import vm_input
from model.vm import VmInput
from store.host_report import store_report

router = APIRouter(prefix="/v1/host", tags=["for hosts"])


@router.post("/report")
async def report(body: HostReport, host: EnrolledHost, parts: PartsOf) -> ReportAnswer:
    """Take a host's report and wake the VMs that it gives a reason to look at (H-S11)."""
    taken = await store_report(parts.pool, host.id, body)
    parts.poke_all((poke.vm_id, poke.pass_type) for poke in taken.pokes)
    return taken.answer


@router.get("/vms/{vm_id}/input")
async def get_input(vm_id: VmId, digest: Digest, host: EnrolledHost, parts: PartsOf) -> VmInput:
    """Hand out what a VM is made of, to the host that its row names, while its digest is still that (S-5)."""
    sealed = await parts.vms.input_for_host(host.id, vm_id)
    if sealed.digest != digest:
        raise Conflict("the VM's input has another digest by now; look at the row again")
    return vm_input(
        vm_id=sealed.vm_id,
        project=sealed.project,
        name=sealed.name,
        mac=sealed.mac,
        digest=sealed.digest,
        spec=sealed.spec,
        secrets=open_vm(parts.keys, vm_id, sealed.secrets),
        created_at=sealed.created_at,
    )


@router.get("/errands")
async def errands(
    host: EnrolledHost, parts: PartsOf, wait_seconds: Annotated[float, Query(ge=0, le=30)] = 20
) -> Document:
    """Hand out what only this host can answer; waits for the first question."""
    found = await parts.errands.take(host.id, wait_seconds)
    return {"items": [errand.__dict__ for errand in found]}


@router.post("/errands/{errand_id}", status_code=202)
async def answer(errand_id: VmId, request: Request, host: EnrolledHost, parts: PartsOf) -> Document:
    """Take the answer to a question, as bytes."""
    return {"taken": parts.errands.answer(host.id, errand_id, await request.body())}
