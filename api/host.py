"""Hosts, for those who run the fleet: add, replace, list, show, what they hold in quarantine or without a row."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from fastapi import APIRouter

from api.campaigns import drains_of, one_host_view
from api.cursor import After, Limit, page
from api.documents.base import Page
from api.documents.host import ForgottenVmDocument, HostDocument, InvitationDocument
from api.documents.vm import VmDocument
from api.documents.volume import ForeignVolume, VolumeDocument
from api.fleet_bodies import AdoptVolumeBody, ChangeHostBody, ForgetBody, MaintenanceBody, NewHostBody, ReplaceHostBody
from api.gate import FleetAdmin, FleetOperator, FleetViewer, PartsOf
from api.parts import Parts
from api.route import GatedRoute
from api.views import host_view, vm_view, volume_view
from model.credential import new_credential
from model.ids import HostId, Name
from model.join import JoinString
from model.vm import Phase
from store.enrolment import Invited
from store.forget import forget_host, list_forgotten
from store.maintenance import begin_maintenance
from store.vm import VmFilter
from store.volume_foreign import adopt_foreign, list_foreign

router = APIRouter(prefix="/v1/hosts", tags=["hosts"], route_class=GatedRoute)


@router.post("", status_code=201)
async def add(body: NewHostBody, caller: FleetAdmin, parts: PartsOf) -> InvitationDocument:
    """Register a host under a name, and print what it joins with, this once (H-E1).

    The same name again makes another join string for a host that has not joined yet, and ends the one before it.
    """
    text, token = new_credential("hsj")
    invited = await parts.enrolments.add(body.name, token, body.join_expires_in, caller.actor)
    return _invitation(parts, invited, text)


@router.post("/{host}/replace", status_code=201)
async def replace(host: HostId, body: ReplaceHostBody, caller: FleetAdmin, parts: PartsOf) -> InvitationDocument:
    """Let another machine, or this one with new credentials, take a host's place (H-E2).

    The credential that it has ends when the join string is used.
    """
    text, token = new_credential("hsj")
    return _invitation(parts, await parts.enrolments.replace(host, token, body.join_expires_in, caller.actor), text)


@router.post("/{host}/revoke")
async def revoke(host: HostId, caller: FleetAdmin, parts: PartsOf) -> HostDocument:
    """End a host's credential and its join string at once; its guests run on (S-40)."""
    await parts.enrolments.revoke(host, caller.actor)
    return host_view(await parts.hosts.get(host))


def _invitation(parts: Parts, invited: Invited, token: str) -> InvitationDocument:
    join = JoinString(url=parts.url, token=token)
    return InvitationDocument(
        host_id=invited.host_id, name=invited.name, join=str(join), join_expires_at=invited.expires_at
    )


@router.get("")
async def list_hosts(_caller: FleetViewer, parts: PartsOf, after: After, limit: Limit = 50) -> Page[HostDocument]:
    """List hosts with what they last reported."""
    found = await parts.hosts.list(limit=limit + 1, after=after)
    drains = await drains_of(parts, [host.id for host in found])
    return page(found, limit, lambda host: host_view(host, drains.get(host.id)))


@router.get("/{host}")
async def get(host: HostId, _caller: FleetViewer, parts: PartsOf) -> HostDocument:
    """Show a host by its id or its name."""
    return await one_host_view(parts, await parts.hosts.get(host))


@router.patch("/{host}")
async def change(host: HostId, body: ChangeHostBody, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Label a host, for VMs that ask for `host_labels`; those that are there stay."""
    return host_view(await parts.hosts.label(host, body.labels, caller.actor))


@router.post("/{host}/cordon")
async def cordon(host: HostId, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Let nothing new come to a host; what is there stays and is looked after as ever."""
    return await one_host_view(parts, await parts.hosts.cordon(host, caller.actor))


@router.post("/{host}/uncordon")
async def uncordon(host: HostId, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Let new VMs come to a host again."""
    return await one_host_view(parts, await parts.hosts.uncordon(host, caller.actor))


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


@router.post("/{host}/maintenance")
async def maintain(host: HostId, body: MaintenanceBody, caller: FleetOperator, parts: PartsOf) -> HostDocument:
    """Expect a host to be silent until then, and let nothing new come to it; uncordon ends it (H-E2)."""
    return host_view(await begin_maintenance(parts.pool, host, timedelta(seconds=body.seconds), caller.actor))


@router.get("/{host}/quarantined")
async def quarantined(
    host: HostId, caller: FleetViewer, parts: PartsOf, after: After, limit: Limit = 50
) -> Page[VmDocument]:
    """List the VMs that wait on a host to be destroyed, each with the time (L-R7)."""
    narrowed = VmFilter(host_id=(await parts.hosts.get(host)).id, phase=Phase.QUARANTINED)
    found = await parts.vms.list(caller.project, narrowed, limit=limit + 1, after=after)
    return page(found, limit, lambda vm: vm_view(vm, project=caller.project))


@router.get("/{host}/foreign-volumes")
async def foreign_volumes(host: HostId, _caller: FleetViewer, parts: PartsOf) -> Page[ForeignVolume]:
    """List the volumes that a host holds although no row places them there; they are shown and left alone."""
    found = await list_foreign(parts.pool, (await parts.hosts.get(host)).id)
    return Page(items=[ForeignVolume.model_validate(each.model_dump()) for each in found], next_cursor=None)


@router.post("/{host}/foreign-volumes/{volume}/adopt", status_code=201)
async def adopt_volume(
    host: HostId, volume: Name, body: AdoptVolumeBody, caller: FleetOperator, parts: PartsOf
) -> VolumeDocument:
    """Make a row of a volume that a host holds without one, as after a restore; its data is left as it is."""
    host_id = (await parts.hosts.get(host)).id
    adopted = await adopt_foreign(parts.pool, host_id, volume, project=caller.home, name=body.name, actor=caller.actor)
    return volume_view(adopted, project=caller.project)
