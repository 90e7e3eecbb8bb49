"""How a host joins the fleet, and how it goes on: a token becomes a credential, a credential the next one (S-40).

The host makes its credential itself and sends its digest: no answer and no row ever holds it.
"""

from __future__ import annotations

import base64

from fastapi import APIRouter

from api.documents.base import Taken
from api.fleet_bodies import JoinBody, RenewBody
from api.gate import EnrolledHost, JoinToken, PartsOf
from api.route import GatedRoute
from model.join import JoinedHost
from store.enrolment import Joining

router = APIRouter(prefix="/v1/host", tags=["for hosts"], route_class=GatedRoute)


@router.post("/join", status_code=201)
async def join(body: JoinBody, token: JoinToken, parts: PartsOf) -> JoinedHost:
    """Trade a join token for a credential, once (H-E1); the same trade again is answered alike."""
    joining = Joining(bytes.fromhex(body.credential_digest), body.machine_id, body.host_id)
    joined = await parts.enrolments.trade(token, joining)
    return JoinedHost(
        fleet_id=parts.fleet_id,
        host_id=joined.host_id,
        name=joined.name,
        sealing_key=base64.b64encode(parts.keys.host_key(joined.host_id, joined.key_version)).decode(),
        key_version=joined.key_version,
        temporal_address=parts.gateway_url,
        namespace=parts.namespace,
    )


@router.post("/credential")
async def renew(body: RenewBody, host: EnrolledHost, parts: PartsOf) -> Taken:
    """Take a host's next credential; the one that it used ends when the new one is used."""
    await parts.enrolments.renew(host.id, host.credential_hash, bytes.fromhex(body.credential_digest))
    return Taken(taken=True)
