"""Three hosts on this machine at once in trouble: one's worker killed, one cut off, one rebooted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from cli.demo import ensure_key
from tests.e2e.hosts import Host
from tests.e2e.installation import Installation, Row

SILENT_SECONDS = 15
CONVERGED_SECONDS = 10
VMS = 12


@pytest.fixture(scope="module")
def three() -> Iterator[Installation]:
    """Bring up an installation of three hosts, of which nothing is left."""
    silence = f"HOSTLER_HOST_SILENT_AFTER_SECONDS={SILENT_SECONDS}"
    made = Installation(None, "--no-demo", "--set", silence, "--set", "HOSTLER_PLACEMENT=spread", hosts=3)
    try:
        made.up()
        ensure_key(made.home / "ssh" / "id_ed25519")
        yield made
    finally:
        made.remove()


@pytest.mark.timeout(600)
def test_each_host_in_its_own_trouble(three: Installation) -> None:
    """H-E5, H-S10, H-P1, L-V1, L-V2, L-R8, cases L7, L8: a killed worker, a silent host and a rebooted one, at once.

    Seen through `hostler vm ls` and `hostler host ls`.
    """
    killed, cut, rebooted = (Host(three, number) for number in (1, 2, 3))
    vms = create_spread(three)
    assert sorted(map(len, by_host(vms).values())) == [4, 4, 4]
    on = {host.number: by_host(vms)[host.id] for host in (killed, cut, rebooted)}
    guests = {host.number: host.guests() for host in (killed, cut, rebooted)}
    assert all(set(guests[number]) == set(on[number]) for number in on)

    cut.cut_off()
    killed.kill_worker()
    rebooted.reboot()
    shown = cut.await_silence(silent=True)
    assert shown["status"] == "ready"

    # The killed worker's successor has adopted its guests (H-E5), the rebooted host's run again (L-V1, L-V2).
    for vm_id in on[1] | on[3]:
        three.ready(vm_id)
    assert killed.guests() == guests[1]
    assert set(rebooted.guests()) == set(on[3])
    assert not set(rebooted.guests().values()) & set(guests[3].values())
    # Of the silent one nobody can tell, and nothing was done to it (H-S10).
    assert cut.guests() == guests[2]
    assert table(three, "host")[cut.shown()["name"]]["STATUS"] == "silent"
    listed = table(three, "vm")
    for vm_id, name in vms_by_name(vms).items():
        expected = ("unknown", "-") if vm_id in on[2] else ("ready", "running")
        assert (listed[name]["PHASE"], listed[name]["POWER"]) == expected, listed[name]
        if vm_id in on[2]:
            assert re.match(r"its host is silent; was ready \d", listed[name]["DETAIL"]), listed[name]
    refuse_new_vms(three, cut)

    # What is asked for meanwhile is recorded, and waits (L-R8).
    doomed, stopped, *untouched = sorted(on[2])
    assert three.call("DELETE", f"/v1/vms/{doomed}?now=true")[0] in (200, 202)
    assert three.call("PATCH", f"/v1/vms/{stopped}", {"power_state": "stopped"})[0] in (200, 202)
    time.sleep(2 * SILENT_SECONDS)  # longer than every wait of a pass
    assert cut.guests() == guests[2]
    told = table(three, "vm")[three.row(doomed)["name"]]
    assert (told["PHASE"], told["POWER"]) == ("quarantined", "-")
    assert re.match(r"waiting for its host, silent since \d.*Z; destroyed ", told["DETAIL"]), told

    cut.join()
    joined = time.monotonic()
    three.until_gone(doomed, CONVERGED_SECONDS)
    three.until(stopped, is_settled("stopped"), CONVERGED_SECONDS)
    for vm_id in untouched:
        three.until(vm_id, is_settled("running"), CONVERGED_SECONDS)
    assert time.monotonic() - joined < CONVERGED_SECONDS
    assert cut.guests() == {vm_id: guests[2][vm_id] for vm_id in untouched}
    assert {row["STATUS"] for row in table(three, "host").values()} == {"ready"}
    assert three.ssh(three.row(untouched[0])["name"], "hostname").strip() == three.row(untouched[0])["name"]


def create_spread(installation: Installation) -> dict[str, Row]:
    """Make the VMs, each where the strategy places it; return their rows by id once all run."""
    made = [installation.create(f"vm-{number}")["id"] for number in range(VMS)]
    return {vm_id: installation.ready(vm_id, 240) for vm_id in made}


def by_host(vms: dict[str, Row]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for vm_id, row in vms.items():
        found.setdefault(row["host"]["id"], set()).add(vm_id)
    return found


def vms_by_name(vms: dict[str, Row]) -> dict[str, str]:
    return {vm_id: row["name"] for vm_id, row in vms.items()}


def refuse_new_vms(installation: Installation, silent: Host) -> None:
    """H-P1: a silent host gets nothing new, and the refusal says since when."""
    body = {"name": "late", "image": "demo", "memory_mib": 128, "host": silent.id}
    status, answer = installation.call("POST", "/v1/vms", body)
    assert status == 503, answer
    assert " is silent since " in answer["detail"]


def is_settled(power: str):
    return lambda row: row["settled"] and (row["phase"], row["power_state"]) == ("ready", power)


def table(installation: Installation, kind: str) -> dict[str, dict[str, str]]:
    """Read a table of the command line: a row by name, a cell by heading."""
    head, *lines = installation.hostler(kind, "ls").stdout.splitlines()
    starts = [(match.group(), match.start()) for match in re.finditer(r"\S+", head)]
    ends = [start for _, start in starts[1:]] + [None]
    rows = [
        {name: line[start:end].strip() for (name, start), end in zip(starts, ends, strict=True)}
        for line in lines
        if line.strip()
    ]
    return {row["NAME"]: row for row in rows}
