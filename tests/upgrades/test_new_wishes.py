"""What the first release cannot do, asked for while a process of it still serves: it waits, and is done in the end."""

from __future__ import annotations

from tests.upgrades.fleet import Fleet
from tests.upgrades.lives import Serve
from tests.upgrades.releases import Release


def test_what_is_new_waits_for_the_release_that_knows_it(fleet: Fleet, first: Release, this: Release, image: Serve):
    """L-V10, L-C2, H-D4: an old control worker would take it for done, under an old host worker a guest would stop."""
    fleet.begin(first)
    vm_id = fleet.create(image())
    disk = fleet.disk(fleet.ready(vm_id)["id"])
    guest = fleet.guests()[vm_id]
    rebuild = f"/v1/vms/{vm_id}/rebuild"
    new = {"name": "certified", "image": image(), "memory_mib": 64, "host_certificate": True}
    fleet.replace("api", this)
    for path, body in ((rebuild, {}), ("/v1/vms", new)):
        status, answer = fleet.call("POST", path, body)
        assert status == 409, answer
        assert f"one of {first.version} " in answer["detail"]

    fleet.start("control-2", this)
    fleet.stop("control")
    status, answer = fleet.call("POST", rebuild, {})
    assert (status, "too old for a rebuild: upgrade Hostler there" in answer["detail"]) == (409, True), answer
    certified = fleet.do("POST", "/v1/vms", new)["id"]
    why = fleet.until(certified, lambda row: (row["why"] or {}).get("waits_for") == "host_outdated")["why"]
    assert "Upgrade Hostler there" in why["sentence"]
    assert fleet.guests() == {vm_id: guest}

    fleet.replace("host", this)
    assert fleet.ready(certified)["host_certificate"] is not None
    fleet.do("POST", rebuild, {})
    fleet.ready(vm_id)
    assert fleet.disk(vm_id) == disk, "the old one is kept where it was"
    assert (fleet.host_home / "machines" / vm_id / "disk-2").exists()
