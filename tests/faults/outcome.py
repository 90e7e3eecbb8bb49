"""How a piece of a VM's life has ended: row, operations, record, what the machine holds, and what it was made to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drivers.simulated import Inventory
from tests.faults.fleet import Fleet

IGNORED = frozenset(
    {
        # Each VM's own.
        *("id", "name", "mac", "address", "input_digest", "fingerprint", "secrets", "ssh_host_key", "run_id", "spec"),
        *("certificate_serial", "certified_key", "last_exit", "old_secrets", "setback", "poweroff_taken"),
        # Told to people: what the last pass that looked waited for, or had to do.
        "status_detail",
        # Moments.
        *("created_at", "updated_at", "observed_at", "first_ready_at", "waiting_since", "quarantine_since"),
        *(
            "quarantine_stopped_at",
            "destroy_at",
            "retry_at",
            "up_again_at",
            "unreachable_since",
            "expected_by",
            "due_at",
            "claim_until",
            "old_disk_until",
        ),
        # Counts of how often it was tried, looked at or woken, which is what faults change.
        *("pass_number", "ended_pass", "attempt_pass", "given_back_pass", "create_attempts", "refunds", "step", "wake"),
        *("observed_revision", "step_refunds", "step_refunds_of"),
    }
)
IGNORED_OF_RECORD = frozenset({"input_digest", "seed_digest", "quarantined_at"})


async def find_outcome(fleet: Fleet, vm_id: str, mark: Any, *, exact: bool) -> dict[str, Any]:
    """Return what is there, and with `exact` what was done since the mark."""
    row = await fleet.pool.fetchrow("select * from vms where id = $1", vm_id)
    operations = await fleet.pool.fetch(
        "select kind, result from operations where vm_id = $1 and ended_at is null", vm_id
    )
    inventory = fleet.machine.inventory(fleet.home / "host" / "machines")
    folder = fleet.home / "host" / "machines" / vm_id
    found = {
        "row": _plain(row, fleet.machine.ignored),
        "open operations": [dict(operation) for operation in operations],
        "processes": len(inventory.processes.get(vm_id, ())),
        "taps": _taps(row, inventory, vm_id),
        "disk": inventory.disks.get(vm_id),
        "files": sorted(path.name for path in folder.iterdir() if not _is_console(path)) if folder.exists() else [],
        "record": _record(folder / "status.json"),
        "volumes": await _volumes(fleet, vm_id),
    }
    if exact:
        found["changes"] = fleet.machine.changes_since(mark, vm_id)
    return found


async def _volumes(fleet: Fleet, vm_id: str) -> list[tuple[int, bool, int | None]]:
    """Say of each volume that was made for a VM how large it is to be, whether the VM has it, and its file's size."""
    found = await fleet.pool.fetch("select id, size_gib, vm_id from volumes where name = $1", f"v-{vm_id}")
    files = {row["id"]: fleet.home / "host" / "volumes" / row["id"] / "disk" for row in found}
    sizes = {key: path.stat().st_size if path.exists() else None for key, path in files.items()}
    return [(row["size_gib"], row["vm_id"] == vm_id, sizes[row["id"]]) for row in found]


def _is_console(path: Path) -> bool:
    """What a guest has said by now, and whether somebody reads it, is chance; it goes with its VM's folder."""
    return path.name.startswith("console")


def _taps(row: Any, inventory: Inventory, vm_id: str) -> int:
    """Count a VM's taps. One that is stopped has one or, before its host's first look at it, none yet (N-8)."""
    found = len(inventory.taps.get(vm_id, ()))
    return found if row is None or vm_id in inventory.processes else max(found, 1)


def _plain(row: Any, ignored: frozenset[str]) -> dict[str, Any] | None:
    if row is None:
        return None
    # That there is an error counts; which one may be the planted fault's own word.
    row = dict(row, last_error=row["last_error"] is not None)
    return {key: value for key, value in row.items() if key not in IGNORED | ignored}


def _record(path: Any) -> dict[str, Any] | None:
    if not path.exists():
        return None
    record = json.loads(path.read_text())["record"]
    if record["create"] is not None:
        record["create"].pop("pass_number")
    record["volumes"] = [volume["size_bytes"] for volume in record.get("volumes", ())]
    return {key: value for key, value in record.items() if key not in IGNORED_OF_RECORD}
