"""The demo guest as an image that no host has yet, on a server that stops in the middle of it until told to go on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Generator
from dataclasses import dataclass

from tests.e2e.installation import Installation, Row
from tests.fixtures.guest import build_demo_guest
from tests.fixtures.image_server import ImageServer, running_image_server

HELD_AFTER_BYTES = 8 << 20
PIECE_PAUSE_SECONDS = 0.001


@dataclass(frozen=True)
class SlowImage:
    """An image by name. `server` holds its kernel back until `go_on`."""

    name: str
    server: ImageServer
    fleet: Installation

    def go_on(self) -> None:
        """Let the rest of the kernel through, at a pace that still takes a second or two."""
        for served in self.server.files.values():
            served.release.set()

    def create(self, vm_name: str) -> Row:
        """Create a VM of it, and return its row once its fetch was seen to be under way in `status_detail`."""
        row = self.fleet.create(vm_name, image=self.name)
        return self.fleet.until(row["id"], is_fetching, 60, pause=0.02)


def is_fetching(row: Row) -> bool:
    """Say whether the row shows a fetch with its figures, as `fetching the image: 8 of 50 MiB`."""
    words: str = row["status_detail"] or ""
    assert row["phase"] == "creating", f"the create was never seen at its fetch: {row}"
    return words.startswith("fetching the image: ") and " of " in words


@contextlib.contextmanager
def slow_image(fleet: Installation) -> Generator[SlowImage]:
    """Serve the demo guest's files; the kernel has a digest of its own, so that it must be fetched."""
    guest = build_demo_guest()
    # An ELF file ends where its headers say: what follows changes the digest and nothing else.
    kernel = guest.vmlinux.read_bytes() + os.urandom(16)
    files = {"rootfs": guest.root_qcow2.read_bytes(), "kernel": kernel, "initrd": guest.initrd.read_bytes()}
    name = f"slow-{time.monotonic_ns():x}"
    with running_image_server() as server:
        for kind, body in files.items():
            held = {"hold_after": HELD_AFTER_BYTES, "piece_pause_seconds": PIECE_PAUSE_SECONDS}
            server.serve(f"/{kind}", body, **(held if kind == "kernel" else {}))
        described = {
            kind: {"url": f"{server.base}/{kind}", "sha256": hashlib.sha256(body).hexdigest()}
            for kind, body in files.items()
        }
        document = {"name": name, **described, "command_line": guest.command_line}
        status, answer = fleet.call("POST", "/v1/images", document)
        assert status == 201, answer
        yield SlowImage(name, server, fleet)
