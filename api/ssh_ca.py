"""What clients check VMs' host certificates by: the authority's public key, and what is revoked (S-41)."""

from __future__ import annotations

from fastapi import APIRouter

from api.documents.ssh_ca import RevokedDocument, SshCaDocument
from api.gate import PartsOf, Viewer
from api.route import GatedRoute

router = APIRouter(prefix="/v1/ssh-ca", tags=["ssh"], route_class=GatedRoute)


@router.get("")
async def show(caller: Viewer, parts: PartsOf) -> SshCaDocument:
    """Show the public key that host certificates are checked by, and the revoked ones that have not ended yet."""
    store = parts.certificates.store
    revoked = [
        RevokedDocument(serial=each.serial, public_key=each.public_key, valid_until=each.valid_until)
        for each in await store.list_revoked()
    ]
    return SshCaDocument(host_ca=await store.find_ca(), domain=parts.certificates.domain, revoked=revoked)
