"""Hosts, for those who run the fleet: enrol, list, show, what they hold in quarantine or without a row."""

from __future__ import annotations

import base64
from typing import Any

from fastapi import APIRouter

from api.bodies import NewHostBody
from api.cursor import Cursor, Limit, page, read_cursor
from api.gate import FleetAdmin, FleetViewer, PartsOf
from api.views import Document, host_view, vm_view
from model.credential import new_credential
from model.vm import Phase
from store.vm import VmFilter

router = APIRouter(prefix="/v1/hosts", tags=["hosts"])


@router.post("", status_code=201)
async def enrol(body: NewHostBody, caller: FleetAdmin, parts: PartsOf) -> Document:
    """Enrol a host. The answer holds its credential and its key, this once (H-E1)."""
    text, credential = new_credential("hsh")
    host = await parts.hosts.enrol(name=body.name, credential_hash=credential.digest, actor=caller.actor)
    return {
        "fleet_id": parts.fleet_id,
        "host_id": host.id,
        "credential": text,
        "sealing_key": base64.b64encode(parts.keys.host_key(host.id, host.key_version)).decode(),
        "key_version": host.key_version,
    }


@router.get("")
async def list_hosts(_caller: FleetViewer, parts: PartsOf, limit: Limit = 50, cursor: Cursor = None) -> Document:
    """List hosts with what they last reported."""
    found = await parts.hosts.list(limit=limit + 1, after=read_cursor(cursor))
    return page(found, [host_view(host) for host in found], limit)


@router.get("/{host}")
async def get(host: str, _caller: FleetViewer, parts: PartsOf) -> Document:
    """Show a host by its id or its name."""
    return host_view(await parts.hosts.get(host))


@router.get("/{host}/quarantined")
async def quarantined(
    host: str, caller: FleetViewer, parts: PartsOf, limit: Limit = 50, cursor: Cursor = None
) -> Document:
    """List the VMs that wait on a host to be destroyed, each with the time (L-R7)."""
    host_id = (await parts.hosts.get(host)).id
    narrowed = VmFilter(host_id=host_id, phase=Phase.QUARANTINED)
    found = await parts.vms.list(caller.project, narrowed, limit=limit + 1, after=read_cursor(cursor))
    return page(found, [vm_view(vm, project=caller.project) for vm in found], limit)


@router.get("/{host}/foreign")
async def foreign(host: str, _caller: FleetViewer, parts: PartsOf) -> Document:
    """List what a host holds although no row places it there; it is shown and left alone (L-R1)."""
    host_id = (await parts.hosts.get(host)).id
    items: list[Any] = list(await parts.hosts.foreign(host_id))
    return {"items": items, "next_cursor": None}
