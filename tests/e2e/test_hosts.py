"""Three hosts on this machine in trouble: killed, cut off, rebooted, without their control plane, or their state."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.demo import ensure_key
from tests.e2e.hosts import Host, moved_to_another_machine
from tests.e2e.installation import Installation, Row
from tests.e2e.sources import ask_database

SILENT_SECONDS = 15
ALONE_SECONDS = 5
CONVERGED_SECONDS = 10
VMS = 12


@pytest.fixture(scope="module")
def three() -> Iterator[Installation]:
    """Bring up an installation of three hosts, and one that is to be given up; nothing is left of it."""
    silence = f"HOSTLER_HOST_SILENT_AFTER_SECONDS={SILENT_SECONDS}"
    alone = f"HOSTLER_HOST_ALONE_AFTER_SECONDS={ALONE_SECONDS}"
    words = ("--no-demo", "--set", silence, "--set", alone, "--set", "HOSTLER_PLACEMENT=spread")
    made = Installation(None, *words, hosts=4)
    try:
        made.up()
        made.call("POST", f"/v1/hosts/{Host(made, 4).id}/cordon")
        ensure_key(made.home / "ssh" / "id_ed25519")
        yield made
    finally:
        made.remove()


@pytest.fixture
def vms(three: Installation) -> Iterator[dict[int, list[Row]]]:
    """Two VMs on each host, by the host's number; none is left afterwards."""
    try:
        yield create_on(three, (1, 2, 3))
    finally:
        for number in (1, 2, 3):
            with contextlib.suppress(subprocess.CalledProcessError):  # it was not cut off
                Host(three, number).join()
        remove_all(three)


def create_on(installation: Installation, numbers: tuple[int, ...]) -> dict[int, list[Row]]:
    hosts = {number: Host(installation, number).id for number in numbers}
    made = {number: [installation.create(f"h{number}-{n}", host=hosts[number]) for n in (1, 2)] for number in numbers}
    return {number: [installation.ready(row["id"], 240) for row in rows] for number, rows in made.items()}


def remove_all(installation: Installation) -> None:
    listed = [row["id"] for row in installation.call("GET", "/v1/vms?limit=500")[1]["items"]]
    for vm_id in listed:
        installation.call("DELETE", f"/v1/vms/{vm_id}?now=true")
    for vm_id in listed:
        installation.until_gone(vm_id)


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
    shown = {row["ID"]: row["STATUS"] for row in table(three, "host").values()}
    assert {shown[host.id] for host in (killed, cut, rebooted)} == {"ready"}
    assert three.ssh(three.row(untouched[0])["name"], "hostname").strip() == three.row(untouched[0])["name"]
    remove_all(three)


@pytest.mark.timeout(600)
def test_the_control_plane_away_and_a_host_rebooted(three: Installation, vms: dict[int, list[Row]]) -> None:
    """H-E6, H-S10, L-R3, L-R4: a host cut off for longer than its VMs' graces, then nobody who orders, then both.

    A host that is rebooted meanwhile brings its guests back by itself; nothing else is done anywhere, and what was
    asked for is done within seconds once all hear each other again.
    """
    rebooted, cut, still = (Host(three, number) for number in (1, 2, 3))
    (runs, off), (doomed, saved), _ = ([row["id"] for row in vms[number]] for number in (1, 2, 3))
    three.call("PATCH", f"/v1/vms/{off}", {"power_state": "stopped"})
    three.until(off, is_settled("stopped"))
    before = {host.number: host.guests() for host in (rebooted, cut, still)}

    cut.cut_off()
    cut.await_silence(silent=True)
    for vm_id in (doomed, saved):
        assert three.call("DELETE", f"/v1/vms/{vm_id}?grace=3s")[0] in (200, 202)
    with control_plane_away(three):
        rebooted.reboot()
        deadline = time.monotonic() + 90
        while set(rebooted.guests()) != {runs}:
            assert time.monotonic() < deadline, rebooted.guests()
            time.sleep(0.2)
        time.sleep(SILENT_SECONDS)  # longer than every grace, and than a silence
        assert set(rebooted.guests()) == {runs}, "who was stopped stays so"
        assert (cut.guests(), still.guests()) == (before[2], before[3])
    alone = rebooted.guests()

    three.until(runs, lambda row: row["restart_count"] == 1 and is_settled("running")(row), CONVERGED_SECONDS)
    assert rebooted.guests() == alone, "it was told, and nobody boots it again"
    assert (cut.guests(), still.guests()) == (before[2], before[3])
    assert three.call("POST", f"/v1/vms/{saved}/undelete")[0] in (200, 202)
    cut.join()
    three.until_gone(doomed, 2 * CONVERGED_SECONDS)
    three.until(saved, is_settled("running"), CONVERGED_SECONDS)
    assert cut.guests() == {saved: before[2][saved]}, "nobody had come to stop it"
    assert three.row(off)["power_state"] == "stopped"


@pytest.mark.timeout(600)
def test_a_state_directory_lost_copied_and_rolled_back(
    three: Installation, vms: dict[int, list[Row]], tmp_path: Path
) -> None:
    """H-E2, H-E5, L-V9, L-V10, H-R1: each is noticed and shown, no guest is touched, and a person decides."""
    lost, copied, rolled = (Host(three, number) for number in (1, 2, 3))
    guests = {host.number: host.guests() for host in (lost, copied, rolled)}
    rolled.copy_state(tmp_path / "copy")
    rolled.await_silence(silent=False)
    young = three.ready(three.create("young", host=rolled.id)["id"], 240)["id"]
    guests[3] = rolled.guests()

    lost.lose_state()
    rolled.roll_back(tmp_path / "copy")
    with moved_to_another_machine(copied):
        gone = [row["id"] for row in vms[1]]
        for vm_id in (*gone, young):
            row = three.until(vm_id, lambda row: row["phase"] == "failed" and not row["power_state"], 60)
            assert "its host has lost the VM's record" in row["last_error"], row
        for row in vms[3]:  # the sockets to its guests are gone with the newer directory, the guests are not
            told = three.until(row["id"], lambda row: "does not answer" in (row["status_detail"] or ""), 60)
            assert (told["phase"], told["power_state"]) == ("ready", None), told
        assert "state_lost" in conditions(lost)
        assert "rolled_back" in conditions(rolled)
        assert {number: Host(three, number).guests() for number in guests} == guests, "guests run on, whatever is known"
        refused = copied.await_log("this state directory was made on another machine")
        assert f"`hostler host replace {copied.id}`" in refused
        copied.await_silence(silent=True)

        # A person decides: a restart makes new sockets.
        for row in vms[3]:
            assert three.call("POST", f"/v1/vms/{row['id']}/restart")[0] in (200, 202)
            three.until(row["id"], lambda row: row["restart_count"] == 1 and is_settled("running")(row), 120)
        # The guest of a VM without a record is stopped, and the VM made anew beside what is left of it (L-V10).
        assert three.call("POST", f"/v1/vms/{gone[0]}/rebuild", {})[0] in (200, 202)
        again = three.ready(gone[0], 120)
        assert lost.guests()[gone[0]] != guests[1][gone[0]], (again, three.call("GET", f"/v1/vms/{gone[0]}/operations"))
    copied.await_silence(silent=False)
    for row in vms[2]:
        three.ready(row["id"], 60)
    assert copied.guests() == guests[2]


@pytest.mark.timeout(600)
def test_a_host_given_up_that_returns(three: Installation) -> None:
    """L-R10, cases L5, L6: its VMs are free at once; back, it stops what it runs and keeps it, and changes nothing."""
    dead = Host(three, 4)
    three.call("POST", f"/v1/hosts/{dead.id}/uncordon")
    lost = create_on(three, (4,))[4]
    name = dead.shown()["name"]
    ran = dead.guests()
    dead.cut_off()
    early = three.hostler("host", "forget", name, "--confirm", name, check=False)
    assert early.returncode != 0
    assert "is not known to be dead" in early.stderr or "not long enough" in early.stderr, early.stderr
    dead.await_silence(silent=True)
    ask_database(three, "update hosts set last_report_at = now() - interval '11 minutes' where name = '" + name + "'")
    ask_database(three, "update fleet set hearing_since = now() - interval '12 minutes'")
    three.hostler("host", "forget", name, "--confirm", name)

    for row in lost:
        status, told = three.call("GET", f"/v1/vms/{row['id']}")
        assert status == 410, told
    again = three.ready(three.create("h4-1", host=Host(three, 2).id)["id"], 240)
    assert dead.guests() == ran, "nobody can reach it"
    dead.join()
    deadline = time.monotonic() + 60
    while dead.guests():
        assert time.monotonic() < deadline, dead.guests()
        time.sleep(0.2)
    kept = {path.parent.name for path in (dead.folder / "machines").glob("*/disk")}
    assert kept == set(ran), "stopped and kept, never destroyed"
    assert three.row("h4-1")["id"] == again["id"]
    assert three.row(again["id"])["power_state"] == "running"
    remove_all(three)


@contextlib.contextmanager
def control_plane_away(installation: Installation) -> Iterator[None]:
    """Let API, control worker, Temporal and Postgres do nothing for as long as the block lasts."""
    stopped = [installation.process(name)["pid"] for name in ("api", "control", "temporal", "postgres")]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def conditions(host: Host) -> set[str]:
    return {each["condition"] for each in host.shown()["conditions"]}


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
