"""The end of a run: no fault is left, everything comes to rest, and every VM is what the model says."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx2
from temporalio.client import Client

from tests.chaos.fleet import Fleet
from tests.chaos.log import Log
from tests.chaos.model import PROPERTIES, Model, ModelVm
from tests.chaos.watch import Watch

BOUND_SECONDS = 240.0
RETRY_SECONDS = 20.0
Document = dict[str, Any]


class Settling:
    """Waits until nothing is wrong any more; what still is at the end of the bound is a violation."""

    def __init__(self, fleet: Fleet, model: Model, log: Log, watch: Watch) -> None:
        self.fleet = fleet
        self.model = model
        self.log = log
        self.watch = watch
        self._retried: dict[str, float] = {}

    async def settle(self, bound_seconds: float = BOUND_SECONDS) -> None:
        """Wait, as a user would who asks for a retry of what has failed."""
        deadline = time.monotonic() + bound_seconds
        wrong: list[tuple[str | None, str]] = [(None, "nothing was looked at")]
        async with self.fleet.client() as client:
            while wrong and time.monotonic() < deadline and not self.log.violations:
                await asyncio.sleep(1)
                try:
                    wrong = await self._find_wrong(client)
                except (httpx2.HTTPError, OSError) as error:
                    wrong = [(None, f"the fleet does not answer: {error!r}")]
        for vm_id, text in wrong if not self.log.violations else ():
            self.log.violated(f"it did not come to rest: {text}", vm_id)

    async def _find_wrong(self, client: httpx2.AsyncClient) -> list[tuple[str | None, str]]:
        found = await self.watch.read_list(client)
        if found is None:
            return [(None, "the list cannot be read")]
        self.watch.look()
        wrong: list[tuple[str | None, str]] = []
        for vm_id, vm in self.model.vms.items():
            wrong += [(vm_id, text) for text in self._compare(vm, found.get(vm_id))]
        for vm_id in sorted(self._all_there() - set(found)):
            wrong.append((vm_id, "something of it is on the host and it is not in the list"))
        for document in found.values():
            if not document["settled"]:
                await self._retry(client, document)
        return wrong or await self._find_open(found)

    def _compare(self, vm: ModelVm, document: Document | None) -> list[str]:
        """Say how a VM differs from what it must be."""
        now = time.time()
        if document is None:
            surely = vm.exists_surely and not vm.may_be_destroyed(now)
            return ["it is gone"] if surely else []
        if vm.must_be_gone(now):
            return [
                f"it is {document['phase']} and should be gone: {document['status_detail']} {document['last_error']}"
            ]
        if not document["settled"]:
            shown = ("phase", "power_state", "desired_power_state", "status_detail", "last_error", "due_at")
            return ["it is not settled: " + ", ".join(f"{name} {document[name]}" for name in shown)]
        wrong = self._compare_wish(vm, document)
        deleted = document["quarantine"] is not None
        if deleted and not vm.may_be_deleted():
            wrong.append("it is in quarantine and nobody deleted it")
        if not deleted and not vm.may_be_kept():
            wrong.append("it is kept although it was deleted")
        wanted = "stopped" if deleted else document["desired_power_state"]
        return wrong + self._compare_machine(vm.vm_id, document, wanted)

    def _compare_wish(self, vm: ModelVm, document: Document) -> list[str]:
        wrong: list[str] = []
        shown = {**document, "power_state": document["desired_power_state"]}
        for name in PROPERTIES:
            if shown[name] not in vm.possible(name):
                wrong.append(f"{name} is {shown[name]}, and must be of {vm.possible(name)}")
        counted = {
            "restart_generation": vm.counts("restart"),
            "rebuild_generation": vm.counts("rebuild", "undo"),
            "generation": vm.generations(),
        }
        for name, (low, high) in counted.items():
            if not low <= document[name] <= high:
                wrong.append(f"{name} is {document[name]}, and must be between {low} and {high}")
        if document["quarantine"] is None and document["observed_generation"] != document["generation"]:
            wrong.append("not everything was applied, and it says that it is settled")
        return wrong

    def _compare_machine(self, vm_id: str, document: Document, wanted: str) -> list[str]:
        machine, wrong = self.fleet.machine, []
        live, plugged = machine.live(vm_id), machine.plugged(vm_id)
        if document["power_state"] != wanted or document["phase"] not in ("ready", "quarantined"):
            wrong.append(f"it is {document['phase']} {document['power_state']} and should be {wanted}")
        if len(live) != (wanted != "stopped"):
            wrong.append(f"it should be {wanted} and has the processes {live}")
        if (live and len(plugged) != 1) or len(plugged) > 1:
            wrong.append(f"it has {len(plugged)} taps")
        sizes = machine.disk_sizes(vm_id)
        if document["quarantine"] is None and document["disk_gib"] << 30 not in sizes:
            wrong.append(f"its disks have {sizes} bytes, and one should have {document['disk_gib']} GiB")
        if len(sizes) > 1 and document["old_disk_until"] is None:
            wrong.append("it has two root disks, and none is kept of a rebuild")
        return wrong

    def _all_there(self) -> set[str]:
        machine = self.fleet.machine
        alive = {vm_id for vm_id in machine.known() if machine.live(vm_id) or machine.plugged(vm_id)}
        return alive | machine.disk_ids() | machine.folder_ids()

    async def _retry(self, client: httpx2.AsyncClient, document: Document) -> None:
        """Ask for a retry of what failed, so that no pause between tries outlasts the bound."""
        vm_id, now = document["id"], time.monotonic()
        if document["last_error"] is None and document["phase"] != "failed" and not document["setbacks"]:
            return
        if now - self._retried.get(vm_id, -RETRY_SECONDS) >= RETRY_SECONDS:
            self._retried[vm_id] = now
            self.log.note("settling", f"asks for a retry: {document['last_error']}", vm_id)
            await client.post(f"/v1/vms/{vm_id}/retry")

    async def _find_open(self, found: dict[str, Document]) -> list[tuple[str | None, str]]:
        """Find operations and runs that are open although nothing is left to do, and records that cannot be read."""
        wrong: list[tuple[str | None, str]] = []
        connection = await self.fleet.connect()
        try:
            for row in await connection.fetch("select vm_id, kind from operations where ended_at is null"):
                if row["vm_id"] not in found or found[row["vm_id"]]["quarantine"] is None:
                    wrong.append((row["vm_id"], f"its operation {row['kind']} is open"))
        finally:
            await connection.close()
        client = await Client.connect(f"127.0.0.1:{self.fleet.ports['temporal']}")
        async for run in client.list_workflows("ExecutionStatus='Running'"):
            vm_id = run.id.removeprefix("vm/")
            if vm_id not in found or found[vm_id]["quarantine"] is None:
                wrong.append((vm_id, f"its run {run.workflow_type} {run.run_id} is open"))
        for vm_id in self.fleet.machine.folder_ids():
            wrong += [(vm_id, text) for text in self._unreadable(vm_id)]
        return wrong

    def _unreadable(self, vm_id: str) -> list[str]:
        wrong: list[str] = []
        for name in ("config.json", "status.json"):
            try:
                found = json.loads((self.fleet.host / "machines" / vm_id / name).read_bytes())
                assert found["vm_id"] == vm_id
            except (OSError, ValueError, KeyError, AssertionError) as error:
                wrong.append(f"its record {name} cannot be read: {error!r}")
        return wrong
