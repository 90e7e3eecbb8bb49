"""The complete sets of a host: what operators want, how far the host is, and what it is handed (H-S1, D-5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from api.documents.sets import SetsDocument
from api.gate import Caller, FleetOperator, FleetViewer, PartsOf
from api.making import image_secrets
from api.parts import Parts
from api.route import GatedRoute
from api.set_bodies import AddressesBody, ImagesBody, PeersBody, RoutesBody
from model.errors import Conflict, FieldError, Invalid, NotFound, Unavailable, Unreadable
from model.ids import HostId
from model.specification import image_of
from model.sync import HostSets, SetName, SyncSets
from model.text import clean_text
from model.vm import Image
from store.image import StoredImage

router = APIRouter(prefix="/v1/hosts/{host}/sets", tags=["hosts"], route_class=GatedRoute)


@router.get("")
async def get_sets(host: HostId, _caller: FleetViewer, parts: PartsOf) -> SetsDocument:
    """Show what is wanted of a host besides its VMs, and how far it has taken that over."""
    return await _view(parts, (await parts.hosts.get(host)).id)


@router.put("/image-policies")
async def put_images(host: HostId, body: ImagesBody, caller: FleetOperator, parts: PartsOf) -> SetsDocument:
    """Set the images that a host fetches ahead and keeps, all of them; others go a day after their last use (D-5)."""
    found = [(await _find_image(parts, place, each)).id for place, each in enumerate(body.items)]
    return await _replace(parts, host, "image_policies", list(dict.fromkeys(found)), caller)


@router.put("/privileged-addresses")
async def put_addresses(host: HostId, body: AddressesBody, caller: FleetOperator, parts: PartsOf) -> SetsDocument:
    """Set the addresses of privileged VMs, all of them; a host without that part keeps them, and says `off`."""
    return await _replace(parts, host, "privileged_addresses", body.wanted(), caller)


@router.put("/wireguard-peers")
async def put_peers(host: HostId, body: PeersBody, caller: FleetOperator, parts: PartsOf) -> SetsDocument:
    """Set the WireGuard peers, all of them; a host without that part keeps them, and says `off`."""
    return await _replace(parts, host, "wireguard_peers", body.wanted(), caller)


@router.put("/gateway-routes")
async def put_routes(host: HostId, body: RoutesBody, caller: FleetOperator, parts: PartsOf) -> SetsDocument:
    """Set the WireGuard gateway's return routes, all of them; a host without that part keeps them, and says `off`."""
    return await _replace(parts, host, "gateway_routes", body.wanted(), caller)


async def sets_for_host(parts: Parts, host_id: str, revision: int) -> SyncSets:
    """Put a host's sets together for it; raise Conflict when they have another revision by now."""
    stored = await parts.syncs.get(host_id)
    images = await parts.images.by_ids(stored.wanted.image_policies)
    if stored.revision != revision or len(images) < len(stored.wanted.image_policies):
        raise Conflict("the host's sets have another revision by now; look at its row again")
    plain: dict[str, Any] = {name: getattr(stored.wanted, name) for name in HostSets.model_fields}
    plain["image_policies"] = tuple(_image(parts, image) for image in images)
    return SyncSets(**plain, revision=revision)


async def _replace(parts: Parts, host: str, name: SetName, items: Sequence[Any], caller: Caller) -> SetsDocument:
    host_id = (await parts.hosts.get(host)).id
    if await parts.syncs.replace(host_id, name, items, caller.actor):
        parts.poke_host(host_id)
    return await _view(parts, host_id)


async def _find_image(parts: Parts, place: int, reference: str) -> StoredImage:
    """Find an image by `PROJECT/NAME`, by an operators' bare name, or by its id."""
    project, _, name = reference.rpartition("/")
    try:
        if project:
            return await parts.images.named(project, name)
        try:
            return await parts.images.named("public", name)
        except NotFound:
            return await parts.images.get(None, reference)
    except NotFound:
        text = f"there is no image {reference}; `hostler image ls` lists those that are there"
        raise Invalid(text, errors=(FieldError(f"/items/{place}", text),)) from None


def _image(parts: Parts, image: StoredImage) -> Image:
    try:
        secrets = image_secrets(parts.keys, image)
    except Unreadable as error:
        raise Unavailable("an image of the host's policy cannot be opened now; the log of the API says why") from error
    return image_of(image.spec.model_copy(update={"reference": image.full_name}), secrets)


async def _view(parts: Parts, host_id: str) -> SetsDocument:
    stored = await parts.syncs.get(host_id)
    wanted, synced = stored.wanted, stored.synced
    images = await parts.images.by_ids(wanted.image_policies)
    told: dict[str, Any] = {
        name: getattr(synced, name) for name in SetsDocument.model_fields.keys() & type(synced).model_fields.keys()
    }
    told |= {"revision": stored.revision, "error": None if synced.error is None else clean_text(synced.error)}
    return SetsDocument(
        **told,
        acknowledged=synced.revision,
        synced_at=synced.at,
        pending=stored.due,
        privileged_addresses=list(wanted.privileged_addresses),
        wireguard_peers=list(wanted.wireguard_peers),
        image_policies=[image.full_name for image in images],
        gateway_routes=list(wanted.gateway_routes),
    )
