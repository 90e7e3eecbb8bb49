"""What is done to VMs while releases change, by verbs that both know."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from tests.fixtures.image_server import ImageServer
from tests.upgrades.api import Api, Row

HELD = {"hold_after": 1 << 16}
"""For an image that stops in the middle of its fetch until `go_on`."""

Serve = Callable[..., Row]


def serve(server: ImageServer, **how: object) -> Row:
    """Serve a root disk of zeros, on which QEMU's firmware finds nothing to boot and idles; each is another one."""
    body = os.urandom(512) + bytes((1 << 20) - 512)
    digest = hashlib.sha256(body).hexdigest()
    server.serve(f"/{digest}", body, **how)
    return {"url": f"{server.base}/{digest}", "sha256": digest, "format": "raw"}


def go_on(server: ImageServer) -> None:
    """Let every image through that is held."""
    for served in server.files.values():
        served.release.set()


def live(fleet: Api, image: Serve) -> None:
    """Take one VM through a whole life."""
    vm_id = fleet.create(image())
    fleet.ready(vm_id)
    disk = fleet.disk(vm_id)
    for wanted in ("stopped", "running", "paused", "running"):
        fleet.change(vm_id, wanted)
    before = fleet.guests()[vm_id]
    fleet.do("POST", f"/v1/vms/{vm_id}/restart")
    fleet.ready(vm_id)
    assert fleet.guests()[vm_id] != before
    fleet.quarantine(vm_id, "1h")
    fleet.do("POST", f"/v1/vms/{vm_id}/undelete")
    fleet.ready(vm_id)
    assert fleet.disk(vm_id) == disk
    fleet.delete(vm_id)
    assert vm_id not in fleet.guests()
