"""Images by name: within its project one name means one set of digests for ever (D-1)."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.bodies import NewImageBody
from api.cursor import After, Limit, page
from api.documents.base import Page
from api.documents.image import ImageDocument
from api.gate import Operator, PartsOf, Viewer
from api.making import new_image
from api.parts import Parts
from api.route import GatedRoute
from api.views import image_view
from model.errors import Conflict
from model.ids import VmId, new_id
from model.specification import ImageSpec
from store.image import StoredImage

router = APIRouter(prefix="/v1/images", tags=["images"], route_class=GatedRoute)


@router.post("", status_code=201)
async def add(body: NewImageBody, caller: Operator, parts: PartsOf, response: Response) -> ImageDocument:
    """Name an image. The same content again is fine; other content under the name is 409."""
    image_id = new_id()
    project, name, spec, secrets = new_image(parts.keys, caller, body, image_id)
    try:
        stored = await parts.images.add(
            project=project, name=name, spec=spec, secrets=secrets, actor=caller.actor, image_id=image_id
        )
    except Conflict:
        stored = await _same(parts, project, name, spec)
        response.status_code = 200
    return image_view(stored, project=caller.project)


@router.get("")
async def list_images(caller: Viewer, parts: PartsOf, after: After, limit: Limit = 50) -> Page[ImageDocument]:
    """List the images that the caller may use."""
    found = await parts.images.list(caller.project, limit=limit + 1, after=after)
    return page(found, limit, lambda image: image_view(image, project=caller.project))


@router.get("/{image_id}")
async def get(image_id: VmId, caller: Viewer, parts: PartsOf) -> ImageDocument:
    """Show an image."""
    return image_view(await parts.images.get(caller.project, image_id), project=caller.project)


async def _same(parts: Parts, project: str, name: str, spec: ImageSpec) -> StoredImage:
    found = await parts.images.find(project, name)
    if found.project != project or _content(found.spec) != _content(spec):
        raise Conflict(f"there is an image {name} with other content already; choose another name")
    return found


def _content(spec: ImageSpec) -> dict[str, object]:
    plain = spec.model_dump(mode="json", exclude={"reference", "rootfs", "kernel", "initrd"})
    digests = {role: file.sha256 if (file := getattr(spec, role)) else None for role in ("rootfs", "kernel", "initrd")}
    return {**plain, **digests}
