"""From a request to a settled VM: real Temporal, the control worker, a host in memory (A-6, M5, L-G10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from model.credential import new_credential
from model.ids import new_id
from model.record import HostOrder
from model.temporal import vm_workflow_id
from store.database import Pool
from tests.api.conftest import World, make_world, report_of, until, vm_body, vm_report
from tests.workflows.conftest import Fleet, running_fleet
from workers.sweep import Sweep


@dataclass
class Running:
    """The API with a fleet behind it."""

    world: World
    fleet: Fleet
    sweeping: asyncio.Task[None]
    """Makes up for a wake-up that a busy Temporal did not take in time."""

    async def row(self, vm_id: str, query: str = "") -> dict[str, object]:
        answer = await self.world.call("GET", f"/v1/vms/{vm_id}{query}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def running(pool: Pool, temporal_client: Client, tmp_path: Path) -> AsyncIterator[Running]:
    world = await make_world(pool, tmp_path)
    world.parts.client, world.parts.search_attributes = temporal_client, True
    world.parts.ui_url, world.parts.namespace = "http://ui.test/", temporal_client.namespace
    async with running_fleet(temporal_client, pool, f"h-{new_id()[-12:]}") as fleet, world.client:
        sweeping = asyncio.create_task(Sweep(pool, temporal_client, search_attributes=True).run())
        yield Running(world, fleet, sweeping)
        sweeping.cancel()
        await world.parts.drain()


async def test_a_life_through_the_api(running: Running) -> None:
    """A-6: create, stop, restart, delete, undelete, delete now; each waited for, each operation ends."""
    world = running.world
    vm_id = new_id()
    made = await world.call("PUT", f"/v1/vms/{vm_id}?wait=30s", json=vm_body())
    vm = made.json()
    assert (made.status_code, vm["phase"], vm["power_state"], vm["settled"]) == (201, "ready", "running", True), vm
    assert (vm["addresses"]["ip"], vm["observed_generation"]) == ("10.0.0.9", 1)
    operation = vm["operation"]
    assert (operation["result"], operation["workflow_id"]) == ("settled", vm_workflow_id(vm_id))
    assert operation["run_id"] in operation["link"]
    assert f"/namespaces/{world.parts.namespace}/" in operation["link"]
    described = await running.fleet.client.get_workflow_handle(vm_workflow_id(vm_id)).describe()
    attributes = {pair.key.name: pair.value for pair in described.typed_search_attributes}
    assert running.fleet.host.host_id in attributes.values()
    path = f"/v1/vms/{vm_id}"
    stopped = (await world.call("PATCH", f"{path}?wait=30s", json={"power_state": "stopped"})).json()
    assert (stopped["power_state"], stopped["operation"]["result"]) == ("stopped", "settled")
    started = (await world.call("PATCH", f"{path}?wait=30s", json={"power_state": "running", "disk_gib": 2})).json()
    assert (started["power_state"], started["disk_gib"]) == ("running", 2)
    starts = running.fleet.host.starts
    assert (await world.call("POST", f"{path}/restart?wait=30s")).json()["operation"]["result"] == "settled"
    assert running.fleet.host.starts == starts + 1
    deleted = (await world.call("DELETE", f"{path}?wait=30s")).json()
    assert (deleted["phase"], deleted["settled"], deleted["power_state"]) == ("quarantined", True, "stopped")
    back = (await world.call("POST", f"{path}/undelete?wait=30s")).json()
    assert (back["phase"], back["power_state"]) == ("ready", "running")
    gone = await world.call("DELETE", f"{path}?now=true&wait=30s")
    assert (gone.status_code, gone.json()["operation"]["result"]) == (202, "gone"), gone.text
    assert (await world.call("GET", path)).status_code == 410
    kinds = (await world.call("GET", f"{path}/operations")).json()["items"]
    assert [(o["kind"], o["result"] is not None) for o in kinds] == [
        ("delete", True),
        ("undelete", True),
        ("delete", True),
        ("restart", True),
        ("change", True),
        ("power", True),
        ("create", True),
    ]


async def test_case_m5_it_answers_at_once_and_can_be_waited_for_again(running: Running) -> None:
    """Case M5: while the host has not begun to be done; a caller that gave up waits anew."""
    release = asyncio.Event()

    async def slowly(name: str, order: HostOrder) -> None:
        if name == "ensure_image":
            await release.wait()

    running.fleet.host.before = slowly
    vm = (await running.world.call("POST", "/v1/vms", json=vm_body())).json()
    await until(lambda: asyncio.sleep(0, "ensure_image" in running.fleet.host.calls))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await running.row(vm["id"], "?wait=30s")
    busy = await running.row(vm["id"])
    assert (busy["phase"], busy["settled"]) == ("creating", False)
    assert busy["status_detail"]
    release.set()
    assert (await running.row(vm["id"], "?wait=30s"))["phase"] == "ready"


async def test_a_report_wakes_the_vms_run(running: Running) -> None:
    """H-S11: the guest died, the host tells, and it runs again without the sweep."""
    world, host = running.world, running.fleet.host
    text, credential = new_credential("hsh")
    await world.pool.execute("update hosts set credential_hash = $1, machine_id = 'm1'", credential.digest)
    vm = (await world.call("POST", "/v1/vms?wait=30s", json=vm_body())).json()
    assert vm["phase"] == "ready"
    starts = host.starts
    host.kill_guest(vm["id"])
    host.machine(vm["id"]).revision += 1
    news = vm_report(
        vm["id"], power_state="stopped", revision=host.machine(vm["id"]).revision, observed={"boot_id": host.boot_id}
    )
    report = report_of(1, [news], instance_id=host.instance_id, activity_names=host.names(), whole=False)
    assert (await world.as_host(text, "POST", "/v1/host/report", json=report)).status_code == 200
    await until(lambda: asyncio.sleep(0, host.starts == starts + 1))
    assert (await running.row(vm["id"], "?wait=30s"))["power_state"] == "running"


async def test_a_failed_operation_ends_and_says_why(running: Running) -> None:
    """N7, N8: the cause itself, in the row and in the operation; a retry begins anew."""

    async def fails(name: str, order: HostOrder) -> None:
        if name == "ensure_root_disk":
            raise ApplicationError("the image is larger than 1 GiB", type="Permanent", non_retryable=True)

    running.fleet.host.before = fails
    vm = (await running.world.call("POST", "/v1/vms?wait=30s", json=vm_body(disk_gib=1))).json()
    assert (vm["phase"], vm["settled"], vm["last_error"]) == ("failed", True, "the image is larger than 1 GiB")
    assert (vm["operation"]["result"], vm["operation"]["error"]) == ("failed", "the image is larger than 1 GiB")
    running.fleet.host.before = None
    retried = (await running.world.call("POST", f"/v1/vms/{vm['id']}/retry?wait=30s")).json()
    assert (retried["phase"], retried["last_error"], retried["operation"]["result"]) == ("ready", None, "settled")


async def test_polling_asks_temporal_at_most_once_a_second(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """F9, S-44: however many poll a busy VM, its run is looked at once a second; a settled one's never."""
    looks: list[str] = []

    async def look(client: Client, vm_id: str) -> str | None:
        looks.append(vm_id)
        return "making the root disk"

    monkeypatch.setattr("api.progress.read_progress", look)
    release = asyncio.Event()

    async def slowly(name: str, order: HostOrder) -> None:
        if name == "ensure_root_disk":
            await release.wait()

    running.fleet.host.before = slowly
    vm = (await running.world.call("POST", "/v1/vms", json=vm_body())).json()
    await until(lambda: asyncio.sleep(0, "ensure_root_disk" in running.fleet.host.calls))
    began = time.monotonic()
    rows = [await running.row(vm["id"]) for _ in range(40)]
    assert {row["status_detail"] for row in rows} == {"making the root disk"}
    assert len(looks) <= 2 + (time.monotonic() - began)
    release.set()
    assert (await running.row(vm["id"], "?wait=30s"))["settled"]
    looks.clear()
    assert (await running.row(vm["id"]))["status_detail"] is None
    assert looks == []
