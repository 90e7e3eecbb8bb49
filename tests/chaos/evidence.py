"""What a run keeps of a violation: all logs, the rows, the histories of the VM, its records, the machine's journal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from temporalio.client import Client

from tests.chaos.fleet import PROJECT, Fleet
from tests.chaos.log import Log

TABLES = ("vms", "operations", "audit", "hosts", "claims", "gone")


async def keep_evidence(fleet: Fleet, log: Log, name: str) -> Path:
    """Copy everything that tells what happened; return the folder."""
    place = PROJECT / "tests" / "evidence" / f"chaos-{name}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copytree(fleet.folder / "logs", place / "logs")
    shutil.copytree(fleet.host, place / "host", ignore=_uninteresting)
    (place / "events.txt").write_text("\n".join(map(str, log.events)) + "\n")
    (place / "violations.txt").write_text("\n".join(map(str, log.violations)) + "\n")
    for what, keep in (("rows", _keep_rows), ("histories", _keep_histories)):
        try:
            await keep(fleet, log, place)
        except Exception as error:
            (place / f"no-{what}.txt").write_text(repr(error))
    return place


def _uninteresting(folder: str, names: list[str]) -> set[str]:
    del folder
    return {name for name in names if name in ("images", "sockets", "credentials.json", "filler", "seed.iso")}


async def _keep_rows(fleet: Fleet, log: Log, place: Path) -> None:
    del log
    connection = await fleet.connect()
    try:
        for table in TABLES:
            rows = await connection.fetch(f"select to_jsonb(t) - 'secrets' - 'credential_hash' as row from {table} t")
            lines = [json.dumps(json.loads(row["row"]), sort_keys=True) for row in rows]
            (place / f"{table}.jsonl").write_text("\n".join(lines) + "\n")
    finally:
        await connection.close()


async def _keep_histories(fleet: Fleet, log: Log, place: Path) -> None:
    client = await Client.connect(f"127.0.0.1:{fleet.ports['temporal']}")
    for vm_id in sorted({each.vm_id for each in log.violations if each.vm_id is not None}):
        folder = place / "histories" / vm_id
        folder.mkdir(parents=True)
        async for run in client.list_workflows(f"WorkflowId = 'vm/{vm_id}'"):
            history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
            name = f"{run.start_time:%H%M%S.%f}-{run.workflow_type}-{run.run_id[:8]}.json"
            (folder / name).write_text(history.to_json())
