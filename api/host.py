"""Hosts, for those who run the fleet: enrol, list, show, what they hold in quarantine or without a row."""

from __future__ import annotations

import base64
from dataclasses import asdict

from fastapi import APIRouter

from api.bodies import ForgetBody, NewHostBody
from api.cursor import After, Limit, page
from api.documents import EnrolledDocument, ForeignVm, ForgottenVmDocument, HostDocument, Page, VmDocument
from api.gate import FleetAdmin, FleetOperator, FleetViewer, PartsOf
from api.route import GatedRoute
from api.views import host_view, vm_view
from model.credential import new_credential
from model.ids import HostId
from model.vm import Phase
from store.forget import forget_host, list_forgotten
from store.vm import VmFilter

router = APIRouter(prefix="/v1/hosts", tags=["hosts"], route_class=GatedRoute)


@router.post("", status_code=201)
async def enrol(body: NewHostBody, caller: FleetAdmin, parts: PartsOf) -> EnrolledDocument:
    """Enrol a host. The answer holds its credential and its key, this once (H-E1)."""
    text, credential = new_credential("hsh")
    host = await parts.hosts.enrol(name=body.name, credential_hash=credential.digest, actor=caller.actor)
    return EnrolledDocument(
        fleet_id=parts.fleet_id,
        host_id=host.id,
        credential=text,
        sealing_key=base64.b64encode(parts.keys.host_key(host.id, host.key_version)).decode(),
        key_version=host.key_version,
    )


@router.get("")
async def list_hosts(_caller: FleetViewer, parts: PartsOf, after: After, limit: Limit = 50) -> Page[HostDocument]:
    """List hosts with what they last reported."""
    return page(await parts.hosts.list(limit=limit + 1, after=after), limit, host_view)


@router.get("/{host}")
async def get(host: HostId, _caller: FleetViewer, parts: PartsOf) -> HostDocument:
    """Show a host by its id or its name."""
    return host_view(await parts.hosts.get(host))


@router.post("/{host}/cordon")
async def cordon(host: HostId, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Let nothing new come to a host; what is there stays and is looked after as ever."""
    return host_view(await parts.hosts.cordon(host, caller.actor))


@router.post("/{host}/uncordon")
async def uncordon(host: HostId, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Let new VMs come to a host again."""
    return host_view(await parts.hosts.uncordon(host, caller.actor))


@router.post("/{host}/forget")
async def forget(host: HostId, body: ForgetBody, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Give up a host that is dead: its VMs' names and all that they held of it are released at once.

    It must have been silent for 10 minutes. What it still runs is stopped and quarantined if it returns.
    """
    known = await parts.hosts.get(host)
    await forget_host(parts.pool, known.id, body.name, caller.actor)
    return host_view(await parts.hosts.get(known.id))


@router.get("/{host}/forgotten")
async def forgotten(
    host: HostId, _caller: FleetViewer, parts: PartsOf, after: After, limit: Limit = 50
) -> Page[ForgottenVmDocument]:
    """List the VMs that were given up with a host; their rows are kept for 30 days."""
    found = await list_forgotten(parts.pool, (await parts.hosts.get(host)).id, limit=limit + 1, after=after)
    return page(found, limit, lambda vm: ForgottenVmDocument(**asdict(vm)))


@router.get("/{host}/quarantined")
async def quarantined(
    host: HostId, caller: FleetViewer, parts: PartsOf, after: After, limit: Limit = 50
) -> Page[VmDocument]:
    """List the VMs that wait on a host to be destroyed, each with the time (L-R7)."""
    narrowed = VmFilter(host_id=(await parts.hosts.get(host)).id, phase=Phase.QUARANTINED)
    found = await parts.vms.list(caller.project, narrowed, limit=limit + 1, after=after)
    return page(found, limit, lambda vm: vm_view(vm, project=caller.project))


@router.get("/{host}/foreign")
async def foreign(host: HostId, _caller: FleetViewer, parts: PartsOf) -> Page[ForeignVm]:
    """List what a host holds although no row places it there; it is shown and left alone (L-R1)."""
    found = await parts.hosts.foreign((await parts.hosts.get(host)).id)
    return Page(items=[ForeignVm.model_validate(entry) for entry in found], next_cursor=None)
