"""The end of a VM: kept for its grace, brought back whole, then gone without a trace."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from tests.e2e.installation import Installation, Row


def test_a_deleted_vm_comes_back_whole_and_goes_without_a_trace(fleet: Installation):
    """Issue item 5; L-R2 to L-R6, L-N4: quarantined with its time, undeleted, gone, its name free, its id not."""
    before = fleet.inventory()
    vm_id = str(uuid.uuid4())
    assert _put(fleet, vm_id, "delete-1")[0] == 201
    made = fleet.ready(vm_id)
    digest = fleet.ssh("delete-1", "head -c 100000 /dev/urandom > /root/kept && sync && sha256sum /root/kept")

    fleet.hostler("vm", "rm", "delete-1", "--grace", "60s", "--no-wait")
    row = fleet.until(vm_id, lambda row: row["phase"] == "quarantined" and row["settled"], 120)
    left = datetime.fromisoformat(row["quarantine"]["destroy_at"]) - datetime.now(UTC)
    assert 0 < left.total_seconds() <= 60
    assert vm_id not in fleet.guests()
    assert "quarantined" in fleet.hostler("vm", "ls").stdout

    fleet.hostler("vm", "undelete", "delete-1")
    back = fleet.ready(vm_id, 120)
    assert back["addresses"] == made["addresses"]
    assert back["quarantine"] is None
    assert fleet.ssh("delete-1", "sha256sum /root/kept") == digest

    fleet.hostler("vm", "rm", "delete-1", "--grace", "5s")
    fleet.until_gone(vm_id, 120)
    assert fleet.inventory() == before

    assert fleet.call("GET", f"/v1/vms/{vm_id}")[0] == 410
    status, problem = _put(fleet, vm_id, "delete-1")
    assert (status, "30 days" in problem["detail"]) == (409, True), problem
    again = fleet.create("delete-1", power_state="stopped")
    assert fleet.ready(again["id"])["power_state"] == "stopped"


def _put(fleet: Installation, vm_id: str, name: str) -> tuple[int, Row]:
    body = {"name": name, "image": "demo", "memory_mib": 128, "stop_timeout_seconds": 10}
    body["ssh_authorized_keys"] = [fleet.public_key]
    return fleet.call("PUT", f"/v1/vms/{vm_id}", body)
