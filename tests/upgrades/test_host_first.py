"""A host worker of this release under a control plane of the first one, the order that works, and the way back."""

from __future__ import annotations

import json
from pathlib import Path

from drivers.formats import CONFIG, STATUS
from tests.fixtures.image_server import ImageServer
from tests.upgrades.fleet import Fleet
from tests.upgrades.lives import HELD, Serve, go_on, live
from tests.upgrades.releases import Release


def test_case_i7_a_host_newer_than_its_control_plane_refuses_to_start(
    fleet: Fleet, first: Release, this: Release, image: Serve, image_server: ImageServer
):
    """H-D4, case I7: it says what to do and touches no file; the older worker goes on from there."""
    fleet.begin(first)
    kept, held = fleet.create(image()), fleet.create(image())
    for vm_id in (kept, held):
        fleet.ready(vm_id)
    guest, deadline = fleet.guests()[kept], fleet.quarantine(held, "1h")["quarantine"]
    making = fleet.create(image(**HELD))
    fleet.fetching(making)
    records = _records(fleet.host_home / "machines" / kept)

    fleet.stop("host")
    fleet.launch("host", this)
    status, said = fleet.ended("host")
    assert status == 1, said
    assert f"of release {this.version}, its control plane of 0.1: upgrade the control plane first" in said
    assert _records(fleet.host_home / "machines" / kept) == records
    assert fleet.guests()[kept] == guest

    fleet.start("host", first)
    go_on(image_server)
    fleet.ready(making)
    fleet.change(kept, "paused")
    fleet.change(kept, "running")
    assert fleet.guests()[kept] == guest
    assert fleet.row(held)["quarantine"] == deadline


def test_case_i7_hosts_follow_their_control_plane_and_go_back_before_it(
    fleet: Fleet, first: Release, this: Release, image: Serve, image_server: ImageServer
):
    """H-D4, L-G11, L-G8, H-E5, case I7: records are patched under guests; an older worker refuses those, harmlessly."""
    fleet.begin(first)
    kept, held = fleet.create(image()), fleet.create(image())
    for vm_id in (kept, held):
        fleet.ready(vm_id)
    guest, deadline = fleet.guests()[kept], fleet.quarantine(held, "1h")["quarantine"]
    making = fleet.create(image(**HELD))
    fleet.fetching(making)

    fleet.replace("api", this)
    fleet.start("control-2", this)
    fleet.replace("host", this)
    fleet.until_host(this)
    for vm_id in (kept, held):
        _is_patched(fleet.host_home / "machines" / vm_id, this.version)
    go_on(image_server)
    fleet.ready(making)
    live(fleet, image)
    assert fleet.guests()[kept] == guest
    assert fleet.row(held)["quarantine"] == deadline

    fleet.replace("host", first)
    row = fleet.until(kept, lambda row: row["phase"] == "failed")
    assert row["power_state"] is None
    assert f"written by release '{this.version}'" in row["last_error"]
    fleet.do("PATCH", f"/v1/vms/{kept}", {"power_state": "stopped"})
    fleet.until_host(first)
    assert fleet.guests()[kept] == guest
    fleet.do("PATCH", f"/v1/vms/{kept}", {"power_state": "running"})

    fleet.replace("host", this)
    assert fleet.ready(kept)["power_state"] == "running"
    assert fleet.guests()[kept] == guest
    assert fleet.row(held)["quarantine"] == deadline
    fleet.do("POST", f"/v1/vms/{held}/undelete")
    fleet.ready(held)


def _records(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in sorted(path.name for path in folder.glob("*.json*"))}


def _is_patched(folder: Path, release: str) -> None:
    for kind in (CONFIG, STATUS):
        name = f"{kind.name}.json"
        assert json.loads((folder / name).read_text())["format"] == kind.format
        assert json.loads((folder / f"{name}.before-{release}").read_text())["format"] == 1
