"""What runs and what is stopped, across a restart of everything and a reboot of the host."""

from __future__ import annotations

import subprocess

from tests.e2e.installation import PROCESSES, Installation, Row


def test_case_a2_power_states_survive_restart_and_reboot(fleet: Installation):
    """Issue item 4; L-V1, L-V2, N-8, case A2: stopped stays stopped, running is back, each booted once."""
    running, stopped = fleet.create("up-1")["id"], fleet.create("still-1")["id"]
    fleet.ready(running)
    fleet.ready(stopped)
    fleet.ssh("up-1", "echo kept > /root/kept && sync")
    assert fleet.call("PATCH", f"/v1/vms/{stopped}", {"power_state": "stopped"})[0] in (200, 202)
    fleet.until(stopped, lambda row: row["settled"] and row["power_state"] == "stopped")
    rows = _rows(fleet)
    guests = fleet.guests()

    _restart_everything(fleet)
    _await_all(fleet, rows)
    assert fleet.guests() == guests
    assert {key: row["restart_count"] for key, row in _rows(fleet).items()} == {
        key: row["restart_count"] for key, row in rows.items()
    }

    _reboot(fleet)
    _await_all(fleet, rows)
    now = _rows(fleet)
    booted = {key: now[key]["restart_count"] - row["restart_count"] for key, row in rows.items()}
    assert booted == {key: int(key in guests) for key in rows}
    assert set(fleet.guests()) == set(guests)
    assert {key: row["addresses"] for key, row in now.items()} == {key: row["addresses"] for key, row in rows.items()}
    assert now[running]["last_exit"]["by"] == "host"
    assert fleet.ssh("up-1", "cat /root/kept").strip() == "kept"

    assert fleet.call("PATCH", f"/v1/vms/{stopped}", {"power_state": "running"})[0] in (200, 202)
    fleet.ready(stopped, 120)
    assert fleet.ssh("still-1", "hostname").strip() == "still-1"


def _rows(fleet: Installation) -> dict[str, Row]:
    return {row["id"]: fleet.row(row["id"]) for row in fleet.call("GET", "/v1/vms?limit=500")[1]["items"]}


def _await_all(fleet: Installation, wanted: dict[str, Row]) -> None:
    """Wait until each VM is seen on this host, under its boot, as it was."""
    for vm_id, row in wanted.items():

        def is_back(now: Row, power_state: str = row["power_state"]) -> bool:
            return now["settled"] and now["phase"] == "ready" and now["power_state"] == power_state

        fleet.until(vm_id, is_back, 60)


def _restart_everything(fleet: Installation) -> None:
    before = {name: fleet.process(name) for name in PROCESSES}
    fleet.down()
    fleet.up()
    after = {name: fleet.process(name) for name in PROCESSES}
    assert not [name for name in PROCESSES if before[name] == after[name]]


def _reboot(fleet: Installation) -> None:
    """Leave what a reboot leaves: the disk. Processes, guests, bridge and tables are gone, the boot id is another."""
    fleet.down()
    fleet.set_boot_id()
    fleet.kill_guests()
    subprocess.run(["ip", "link", "del", fleet.bridge], check=True)
    for family in ("bridge", "inet", "ip"):
        command = ["nft", "delete", "table", family, fleet.settings["table"]]
        subprocess.run(command, check=False, capture_output=True)
    fleet.kill_network_servers()
    fleet.up()
