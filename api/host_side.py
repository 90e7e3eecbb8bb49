"""What a host worker asks of the API with its own credential: its reports, its VMs' inputs, its errands (H-S6, S-5)."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.adopting import take_vanished
from api.documents.base import Taken
from api.documents.host import ErrandList
from api.errands import Errand
from api.fleet_bodies import HostKeyBody
from api.gate import EnrolledHost, PartsOf, ReportingHost
from api.making import open_vm
from api.reports import cleaned
from api.route import GatedRoute
from api.sets import sets_for_host
from model.certificate import HostCertificate
from model.errors import Conflict, Unavailable, Unreadable
from model.ids import Digest, VmId
from model.report import ControlRelease, HostReport, ReportAnswer
from model.specification import vm_input
from model.sync import SyncSets
from model.versions import VERSION
from model.vm import VmInput
from store.host_report import store_report

router = APIRouter(prefix="/v1/host", tags=["for hosts"], route_class=GatedRoute)


@router.post("/report")
async def report(body: HostReport, host: ReportingHost, parts: PartsOf) -> ReportAnswer:
    """Take a host's report and wake the VMs that it gives a reason to look at (H-S11)."""
    taken = await store_report(parts.pool, host.id, cleaned(body), vanish_brake=parts.vanish_brake)
    for poke in taken.pokes:
        parts.poke_of_news(poke.vm_id, poke.pass_type, host.id)
    for vm_id in taken.vanished:
        parts.begin(take_vanished(parts, host.id, vm_id))
    if taken.sync:
        parts.poke_host(host.id)
    return taken.answer.model_copy(update={"host_name": host.name, "renew_credential": host.renew})


@router.get("/release")
async def release(host: EnrolledHost) -> ControlRelease:
    """Say of which release this control plane is."""
    return ControlRelease(version=VERSION)


@router.get("/vms/{vm_id}/input")
async def get_input(vm_id: VmId, digest: Digest, host: EnrolledHost, parts: PartsOf) -> VmInput:
    """Hand out what a VM is made of, to the host that its row names, while its digest is still that (S-5)."""
    sealed = await parts.vms.input_for_host(host.id, vm_id)
    if sealed.digest != digest:
        raise Conflict("the VM's input has another digest by now; look at the row again")
    try:
        secrets = open_vm(parts.keys, vm_id, sealed.secrets)
    except Unreadable as error:
        # The control plane's fault, not a row that moved on: the host tries again until its key is back.
        raise Unavailable("the VM's input cannot be opened now; the log of the API says why") from error
    found = vm_input(
        vm_id=sealed.vm_id,
        project=sealed.project,
        name=sealed.name,
        mac=sealed.mac,
        digest=sealed.digest,
        spec=sealed.spec,
        secrets=secrets,
        created_at=sealed.created_at,
    )
    return found.model_copy(update={"signature": parts.keys.sign_record(found.signed_bytes())})


@router.post("/vms/{vm_id}/certificate")
async def certify(vm_id: VmId, body: HostKeyBody, host: EnrolledHost, parts: PartsOf) -> HostCertificate:
    """Hand out the host certificate for the key of a VM that lives on the asking host (S-41)."""
    return await parts.certificates.for_host(host.id, vm_id, body.public_key)


@router.get("/sets")
async def get_sets(revision: Annotated[int, Query(ge=0)], host: EnrolledHost, parts: PartsOf) -> SyncSets:
    """Hand out the complete sets of the asking host, while their revision is still that (H-S1)."""
    return await sets_for_host(parts, host.id, revision)


@router.get("/errands")
async def errands(
    request: Request, host: EnrolledHost, parts: PartsOf, wait_seconds: Annotated[float, Query(ge=0, le=30)] = 20
) -> ErrandList:
    """Hand out what only this host can answer; waits for the first question."""
    taking = asyncio.create_task(parts.errands.take(host.id, wait_seconds))
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait((taking, leaving), return_when=asyncio.FIRST_COMPLETED)
        found: list[Errand] = taking.result() if taking.done() else []
    finally:
        # A worker that hung up takes nothing: the one that comes after it does.
        taking.cancel()
        leaving.cancel()
    return ErrandList(items=found)


@router.post("/errands/{errand_id}", status_code=202)
async def answer(errand_id: VmId, request: Request, host: EnrolledHost, parts: PartsOf) -> Taken:
    """Take the answer to a question, as bytes."""
    return Taken(taken=parts.errands.answer(host.id, errand_id, await request.body()))


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
