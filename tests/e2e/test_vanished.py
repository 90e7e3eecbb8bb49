"""Real guests whose rows are lost: one is adopted as it runs, one is stopped, kept, and brought back with its disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.e2e.installation import Installation
from tests.e2e.sources import ask_database

LATER = """update hosts set last_whole_at = last_whole_at - interval '1 minute', foreign_vms = (
    select jsonb_agg(v || jsonb_build_object('named_since', (v ->> 'named_since')::timestamptz - '1 minute'::interval))
    from jsonb_array_elements(foreign_vms) v) where foreign_vms <> '[]' returning name"""


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait for a level, with a bound."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.2)
    return found


def lose_rows(fleet: Installation, *vm_ids: str) -> None:
    """Lose rows as no release does, and have the host tell all that it holds, as its worker does when it starts."""
    ids = ", ".join(f"'{vm_id}'" for vm_id in vm_ids)
    asked = f"with asked as (delete from operations where vm_id in ({ids}))"
    assert ask_database(fleet, f"{asked} delete from vms where id in ({ids}) returning id") in vm_ids
    fleet.kill("host")
    until(lambda: {vm["vm_id"] for vm in foreign(fleet) if vm["named_since"]} == set(vm_ids))


def foreign(fleet: Installation) -> list[dict[str, Any]]:
    (host,) = fleet.call("GET", "/v1/hosts")[1]["items"]
    return fleet.call("GET", f"/v1/hosts/{host['id']}/foreign")[1]["items"]


def test_guests_that_lose_their_rows(fleet: Installation) -> None:
    """L-R1, L-R4, H-R2, H-E5: the adopted guest never notices; the other's disk is as it was when it was stopped."""
    rows = [fleet.create(name) for name in ("adopted", "vanished")]
    adopted, vanished = [fleet.ready(row["id"])["id"] for row in rows]
    fleet.ssh("vanished", "echo kept >/root/marker && sync")
    guests = fleet.guests()
    addresses = {vm_id: fleet.row(vm_id)["addresses"]["ip"] for vm_id in (adopted, vanished)}
    lose_rows(fleet, adopted, vanished)
    assert fleet.guests() == guests, "they run on"

    (host,) = fleet.call("GET", "/v1/hosts")[1]["items"]
    shown = fleet.hostler("host", "foreign", host["name"]).stdout
    assert shown.count("stopped and kept once a second whole report names it") == 2
    fleet.hostler("host", "adopt", host["name"], adopted, "--project", "default")
    row = fleet.ready(adopted)
    assert (row["name"], row["addresses"]["ip"], row["power_state"]) == ("adopted", addresses[adopted], "running")

    assert ask_database(fleet, LATER) == host["name"]
    row = fleet.until(vanished, lambda row: row["phase"] == "quarantined" and row["settled"], 90)
    assert row["quarantine"]["kind"] == "vanished"
    assert fleet.guests() == {vm_id: process for vm_id, process in guests.items() if vm_id != vanished}
    assert "had lost its row" in fleet.hostler("vm", "why", vanished).stdout

    fleet.hostler("host", "adopt", host["name"], vanished, "--project", "default")
    row = fleet.ready(vanished)
    assert (row["name"], row["addresses"]["ip"]) == ("vanished", addresses[vanished])
    assert fleet.ssh("vanished", "cat /root/marker").strip() == "kept"
    assert fleet.guests()[adopted] == guests[adopted]
    assert foreign(fleet) == []
