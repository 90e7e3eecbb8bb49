"""Runs that are pinned to a build which nobody runs any more: ended by the sweep and begun anew."""

from __future__ import annotations

from tests.fixtures.image_server import ImageServer
from tests.upgrades.fleet import Fleet
from tests.upgrades.lives import HELD, Serve, go_on
from tests.upgrades.releases import Release

CLAIM_SECONDS = 120
STUCK_SECONDS = 60


def test_passes_of_a_build_that_is_gone_are_begun_anew(
    fleet: Fleet, first: Release, this: Release, image: Serve, image_server: ImageServer
):
    """Design (Sweep, Versions), L-G1: killed in the middle of a create, a quarantine waiting; a VM is made once."""
    fleet.begin(first)
    held, ending = fleet.create(image()), fleet.create(image())
    for vm_id in (held, ending):
        fleet.ready(vm_id)
    disk, deadline = fleet.disk(held), fleet.quarantine(held, "1h")["quarantine"]
    making = fleet.create(image(**HELD))
    fleet.fetching(making)
    fleet.quarantine(ending, "10s")
    old_build = fleet.current_build()

    fleet.kill("control")
    fleet.replace("api", this)
    fleet.start("control", this)
    new_build = fleet.current_build()
    go_on(image_server)
    replayed = fleet.run(this, "workers.replay", held)
    assert (replayed.returncode, replayed.stdout.count("replays")) == (0, 2), replayed

    # A claim that may still be renewed is waited for: nobody ends the run before.
    assert [(run.status, run.build) for run in fleet.runs(making)] == [("RUNNING", old_build)]
    fleet.lapse(making, CLAIM_SECONDS + STUCK_SECONDS)
    fleet.ready(making)
    ended, begun = fleet.runs(making)
    assert (ended.status, ended.build) == ("TERMINATED", old_build)
    assert (begun.status, begun.build) == ("COMPLETED", new_build)
    assert fleet.row(making)["restart_count"] == 0
    assert list(fleet.guests()) == [making]

    assert fleet.row(held)["quarantine"] == deadline
    fleet.do("POST", f"/v1/vms/{held}/undelete")
    fleet.lapse(held, CLAIM_SECONDS)
    fleet.ready(held)
    assert fleet.disk(held) == disk
    fleet.lapse(ending, CLAIM_SECONDS)
    fleet.until_gone(ending)
