"""The order of docs/upgrades.md: the control plane of this release with hosts of the first one, then the hosts."""

from __future__ import annotations

from tests.fixtures.image_server import ImageServer
from tests.upgrades.fleet import Fleet
from tests.upgrades.lives import HELD, Serve, go_on, live
from tests.upgrades.releases import Release


def test_case_i7_a_control_plane_of_this_release_serves_hosts_of_the_first(
    fleet: Fleet, first: Release, this: Release, image: Serve, image_server: ImageServer
):
    """H-D4, case I7: each process in turn during a create and two quarantines; runs stay on the build they began on."""
    fleet.begin(first)
    kept, held, woken = (fleet.create(image()) for _ in range(3))
    for vm_id in (kept, held, woken):
        fleet.ready(vm_id)
    guest, disk = fleet.guests()[kept], fleet.disk(held)
    deadlines = {vm_id: fleet.quarantine(vm_id, "1h")["quarantine"] for vm_id in (held, woken)}
    making = fleet.create(image(**HELD))
    fleet.fetching(making)
    old_build = fleet.current_build()

    fleet.replace("api", this)
    assert {vm_id: fleet.row(vm_id)["quarantine"] for vm_id in (held, woken)} == deadlines
    fleet.launch("api-2", first)
    status, said = fleet.ended("api-2")
    assert (status, "belongs to a newer release; run that one" in said) == (1, True), said

    fleet.start("control-2", this)
    new_build = fleet.current_build()
    assert (old_build.partition("+")[0], new_build.partition("+")[0]) == (first.version, this.version)
    fleet.replace("control", first)
    assert fleet.current_build() == new_build

    fleet.fetching(making)
    go_on(image_server)
    fleet.ready(making)
    assert [(run.status, run.build) for run in fleet.runs(making)] == [("COMPLETED", old_build)]
    fleet.do("POST", f"/v1/vms/{woken}/undelete")
    fleet.ready(woken)
    assert {run.build for run in fleet.runs(woken)} == {old_build}

    live(fleet, image)
    assert fleet.runs(fleet.ready(fleet.create(image()))["id"])[0].build == new_build
    fleet.replace("host", this)
    fleet.until_host(this)
    assert fleet.guests()[kept] == guest
    live(fleet, image)

    assert fleet.row(held)["quarantine"] == deadlines[held]
    fleet.do("POST", f"/v1/vms/{held}/undelete")
    assert fleet.ready(held)["power_state"] == "running"
    assert fleet.disk(held) == disk
    open_runs = [run for vm_id in (kept, held, woken, making) for run in fleet.runs(vm_id) if run.status == "RUNNING"]
    assert open_runs == []
