"""What is new in this release is refused while passes of an older one, which would take it for done, may answer it."""

from __future__ import annotations

from api.parts import Parts
from model.errors import Conflict
from model.temporal import vm_workflow_id
from model.versions import VERSION
from runtime.deployment import find_older_build


async def refuse_under_older(parts: Parts, what: str, vm_id: str | None = None) -> None:
    """Raise Conflict where new passes begin on an older release's build, or that VM's open one did (H-D4).

    Where Temporal does not tell at once the wish is accepted, as every one is.
    """
    if parts.client is None:
        return
    build = await find_older_build(parts.client, None if vm_id is None else vm_workflow_id(vm_id))
    if build is not None:
        raise Conflict(
            f"{what} takes control workers of release {VERSION}, and one of {build} would still answer: start those of "
            "this release, and ask again once what it is doing has ended"
        )
