"""Volumes with real guests: a marker outlives a rebuild; hot attach, live growth, detach, and the end of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.e2e.installation import Installation

GIB = 1 << 30


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait for a level, with a bound."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)
    return found


def serial_of(fleet: Installation, volume: str) -> str:
    return fleet.call("GET", f"/v1/volumes/{volume}")[1]["serial"]


def device(fleet: Installation, vm: str, volume: str) -> str:
    """The name of a volume's disk in the guest, empty while there is none."""
    serial = serial_of(fleet, volume)
    look = f'for d in /sys/block/vd*; do [ "$(cat $d/serial)" = {serial} ] && echo /dev/${{d##*/}}; done; true'
    return fleet.ssh(vm, look).strip()


def test_a_volume_outlives_a_rebuild_and_comes_and_goes_while_the_guest_runs(fleet: Installation) -> None:
    """H-V1, H-V2, H-V4, L-V10: what is on the root disk is gone after a rebuild, what is on the volume is not."""
    fleet.hostler("volume", "create", "data", "--size", "1")
    fleet.hostler("volume", "create", "logs", "--size", "1")
    fleet.hostler("vm", "create", "keeper", "--image", "demo", "--memory", "128", "--volume", "data")
    disk = device(fleet, "keeper", "data")
    assert disk, "there at the first boot"
    write = f"mke2fs -q -F -t ext4 {disk} && mount {disk} /mnt && echo kept >/mnt/marker && umount /mnt"
    fleet.ssh("keeper", f"{write} && echo lost >/root/marker && sync")

    fleet.hostler("vm", "rebuild", "keeper", timeout=180)
    disk = device(fleet, "keeper", "data")
    assert fleet.ssh("keeper", f"mount {disk} /mnt && cat /mnt/marker && umount /mnt").strip() == "kept"
    assert fleet.ssh("keeper", "ls /root/marker 2>/dev/null; true").strip() == ""

    row = fleet.row("keeper")
    process = fleet.guests()[row["id"]]
    assert device(fleet, "keeper", "logs") == ""
    fleet.hostler("vm", "attach", "keeper", "logs")
    new = until(lambda: device(fleet, "keeper", "logs"))
    fleet.hostler("volume", "resize", "logs", "--size", "2")
    until(lambda: fleet.ssh("keeper", f"blockdev --getsize64 {new}").strip() == str(2 * GIB))
    told = fleet.hostler("volume", "rm", "logs", check=False)
    assert "detach it first" in " ".join(told.stderr.split())
    fleet.hostler("vm", "detach", "keeper", "logs")
    assert device(fleet, "keeper", "logs") == ""
    assert fleet.guests()[row["id"]] == process, "the guest ran on"
    assert [each["name"] for each in fleet.row("keeper")["volumes"]] == ["data"]

    fleet.hostler("volume", "rm", "logs", "--now")
    until(lambda: fleet.call("GET", "/v1/volumes/logs")[0] == 404)
    left = {path.parent.name for path in (fleet.home / "host" / "volumes").glob("*/disk")}
    assert left == {fleet.row("keeper")["volumes"][0]["id"]}
    fleet.call("DELETE", f"/v1/vms/{row['id']}?now=true")
    fleet.until_gone(row["id"])
    assert (fleet.home / "host" / "volumes" / left.pop() / "disk").exists(), "a reap leaves volumes alone"
    assert fleet.call("GET", "/v1/volumes/data")[1]["vm"] is None
    fleet.hostler("volume", "rm", "data", "--now")
    until(lambda: fleet.call("GET", "/v1/volumes/data")[0] == 404)


def test_case_k11_one_volume_and_two_vms_at_once(fleet: Installation) -> None:
    """H-V1, case K11: exactly one of two parallel attaches succeeds; the other may have it once it was let go."""
    fleet.hostler("volume", "create", "shared", "--size", "1")
    rows = [fleet.create(name, power_state="stopped") for name in ("one", "two")]
    rows = [fleet.ready(row["id"]) for row in rows]
    paths = [f"/v1/vms/{row['id']}/volumes/shared" for row in rows]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda path: fleet.call("PUT", path), paths))
    assert sorted(status for status, _ in answers) == [202, 409]
    assert "to one VM at a time only" in next(body for status, body in answers if status == 409)["detail"]
    winner = next(place for place, (status, _) in enumerate(answers) if status == 202)
    assert fleet.call("DELETE", paths[winner])[0] == 202
    assert fleet.call("PUT", paths[1 - winner])[0] == 202
    ready = fleet.ready(rows[1 - winner]["id"])
    assert [each["name"] for each in ready["volumes"]] == ["shared"]
    assert ready["observed_generation"] == ready["generation"]
    assert fleet.call("DELETE", paths[1 - winner])[0] == 202
    fleet.ready(rows[1 - winner]["id"])
    fleet.hostler("volume", "rm", "shared", "--now")
    until(lambda: fleet.call("GET", "/v1/volumes/shared")[0] == 404)
