"""Many creates at once: two at a time in the heavy part, the others say that they wait, and all come up."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.e2e.installation import Installation
from tests.e2e.sources import all_stays, name_image, remove, serve, variant
from tests.fixtures.guest import DemoGuest
from tests.fixtures.image_server import PIECE, ImageServer

COUNT = 6
DOWNLOAD_SECONDS = 12.0
WAITING = "waiting for a free create slot (2 of 2 busy)"


@pytest.mark.timeout(900)
def test_six_creates_share_two_slots(fleet: Installation, image_server: ImageServer, demo_guest: DemoGuest):
    """L-C7, L-G10: never more than two open downloads; who waits says so; nobody pays for it with an attempt."""
    root = demo_guest.root_qcow2.read_bytes()
    pause = DOWNLOAD_SECONDS * PIECE / len(root)
    names = [f"slot-{number}" for number in range(COUNT)]
    for number, name in enumerate(names):
        rootfs = serve(image_server, f"/{name}.qcow2", variant(root, number), piece_pause_seconds=pause)
        name_image(fleet, f"{name}-{fleet.run_id}", rootfs)
    with all_stays(fleet):
        made = [fleet.create(name, image=f"{name}-{fleet.run_id}", stop_timeout_seconds=10) for name in names]
        said = watch(fleet, [row["id"] for row in made], seconds=COUNT * DOWNLOAD_SECONDS + 240)
        assert image_server.most_open == 2
        # Two have their turn at once, perhaps a third before anybody looked; the others were seen waiting.
        waited = [vm_id for vm_id, words in said.items() if WAITING in words]
        assert len(waited) >= COUNT - 3, said
        for row, name in zip(made, names, strict=True):
            assert fleet.ssh(name, "hostname", seconds=240).strip() == name
            assert fleet.row(row["id"])["create_attempts"] <= 1
        assert len(image_server.requests) == COUNT
        for name in names:
            remove(fleet, name)


def watch(fleet: Installation, vm_ids: list[str], seconds: float) -> dict[str, set[str]]:
    """Collect what each VM's row says until all are ready."""
    said: dict[str, set[str]] = {vm_id: set() for vm_id in vm_ids}
    deadline = time.monotonic() + seconds
    while True:
        rows: list[dict[str, Any]] = [fleet.call("GET", f"/v1/vms/{vm_id}")[1] for vm_id in vm_ids]
        for row in rows:
            said[row["id"]].add(row["status_detail"] or row["phase"])
            assert row["last_error"] is None, row
        if all(row["phase"] == "ready" and row["settled"] for row in rows):
            return said
        assert time.monotonic() < deadline, (said, rows)
        time.sleep(0.5)
