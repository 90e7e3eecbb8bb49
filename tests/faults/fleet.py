"""A whole fleet in one process: real API, control worker, sweep and host worker, with simulated guests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.passes import PassActivities
from drivers.simulated import Simulation
from model.decide import pass_type
from model.errors import Unavailable
from model.ids import new_id
from runtime.converter import data_converter
from runtime.settings import HostSettings, Settings
from runtime.temporal import connect, control_worker_options, host_worker_options, poke
from store.database import Pool, open_pool
from store.passes import PassStore
from tests.api.conftest import World, make_world, served
from tests.faults.faults import Faults
from workers import control, host, process
from workers.sweep import Sweep

BOUND_SECONDS = 240
LOOK_SECONDS = 0.1
IMAGE_BYTES = 1 << 20
Condition = Callable[[dict[str, Any] | None], bool]


@dataclass
class Fleet:
    """One host's fleet. `until` waits on a level of one row; one query looks for all who wait."""

    world: World
    client: Client
    faults: Faults
    home: Path
    simulation: Simulation
    run_host: Callable[[asyncio.Event], Awaitable[None]] = field(kw_only=True)
    """Is the host worker, until the event is set."""
    waits: dict[str, tuple[Condition, asyncio.Future[dict[str, Any] | None]]] = field(default_factory=dict)
    _host: tuple[asyncio.Event, asyncio.Task[None]] | None = None

    @property
    def pool(self) -> Pool:
        return self.world.pool

    @property
    def boot_id_path(self) -> Path:
        return self.home / "boot_id"

    async def start_host(self) -> None:
        """Begin a host worker, and wait until it has reported."""
        stopping = asyncio.Event()
        before = await self.pool.fetchval("select last_report_at from hosts")
        self._host = stopping, asyncio.create_task(self.run_host(stopping))
        async with asyncio.timeout(60):
            while await self.pool.fetchval("select last_report_at from hosts") == before:
                if self._host[1].done():
                    self._host[1].result()
                await asyncio.sleep(0.05)

    async def stop_host(self) -> None:
        """End the host worker in good order; its guests stay."""
        if self._host is not None:
            stopping, hosting = self._host
            self._host = None
            stopping.set()
            await hosting

    async def reboot(self) -> None:
        """Let the machine boot anew: its guests are gone, its disks are there."""
        await self.stop_host()
        self.boot_id_path.write_text(new_id())
        await self.start_host()

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """Call the API; on a loaded machine it may ask to be asked again."""
        answer = await self.world.call(method, path, **options)
        for _ in range(5):
            if answer.status_code != 503:
                break
            await asyncio.sleep(1)
            answer = await self.world.call(method, path, **options)
        assert answer.status_code < 300, (method, path, answer.text)
        return answer.json()

    async def until(self, vm_id: str, condition: Condition) -> dict[str, Any] | None:
        """Return the VM's row once the condition holds for it; None is a row that is gone."""
        future: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.waits[vm_id] = (condition, future)
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                return await future
        except TimeoutError:
            row = await self.pool.fetchrow("select * from vms where id = $1", vm_id)
            plan = self.faults.plans.get(vm_id)
            raise AssertionError(f"it never came; {plan}: {row and _telling(row)}") from None
        finally:
            del self.waits[vm_id]

    async def look(self) -> None:
        while True:
            ids = list(self.waits)
            rows = await self.pool.fetch("select * from vms where id = any($1)", ids) if ids else []
            found = {row["id"]: dict(row) for row in rows}
            for vm_id in ids:
                if vm_id not in self.waits:
                    continue
                condition, future = self.waits[vm_id]
                try:
                    holds = condition(found.get(vm_id))
                except Exception as error:
                    if not future.done():
                        future.set_exception(error)
                    continue
                if holds and not future.done():
                    future.set_result(found.get(vm_id))
            await asyncio.sleep(LOOK_SECONDS)

    async def poke(self, vm_id: str) -> None:
        """Wake a VM as the sweep does, which finds a terminated run within half a minute; here at once."""
        row = await self.pool.fetchrow("select deleted, first_ready_at from vms where id = $1", vm_id)
        if row is None:
            return
        kind = pass_type(deleted=row["deleted"], created=row["first_ready_at"] is not None)
        with contextlib.suppress(Unavailable):
            await poke(self.client, kind, vm_id)

    async def sweep(self) -> None:
        sweep = Sweep(self.pool, self.client, search_attributes=False)
        while True:
            await sweep.sweep_once()
            await asyncio.sleep(1)


_TOLD = (
    "phase",
    "power_state",
    "observed_power_state",
    "generation",
    "observed_generation",
    "pass_number",
    "ended_pass",
)
_TOLD_TOO = (
    "step",
    "status_detail",
    "last_error",
    "waiting_for",
    "due_at",
    "claim_until",
    "retry_at",
    "wake",
    "failures",
)


def _telling(row: Any) -> dict[str, Any]:
    return {name: str(row[name]) for name in (*_TOLD, *_TOLD_TOO)}


def settled(row: dict[str, Any] | None) -> bool:
    """Say whether nothing is left to do for a row and no pass works on it."""
    return row is not None and row["due_at"] in (None, row["old_disk_until"]) and row["claim_until"] is None


@contextlib.asynccontextmanager
async def running_fleet(
    database_url: str, address: str, namespace: str, home: Path, monkeypatch: pytest.MonkeyPatch, **host_options: Any
) -> AsyncIterator[Fleet]:
    """Run all of it, with faults before every activity. host_options: what HostSettings takes."""
    world, passes = (
        await make_world(await open_pool(database_url), home / "keys"),
        await open_pool(database_url, largest=20),
    )
    settings = Settings(home=home, temporal_address=address, temporal_namespace=namespace)
    seal = process.control_seal(world.parts.keys, world.parts.fleet_id)
    client = await connect(settings, data_converter(seal), identity="control")
    world.parts.client, world.parts.namespace = client, namespace
    image = _write_image(home)
    options = {"simulated_guests": "only", "max_concurrent_creates": 0, "max_concurrent_boots": 0} | host_options
    fleet = Fleet(
        world,
        client,
        Faults(client, lambda vm_id: fleet.poke(vm_id)),
        home,
        Simulation(home / "host" / "simulated", lambda: fleet.boot_id_path.read_text().strip()),
        run_host=lambda stopping: host.run(settings, host_settings, stopping),
    )
    fleet.boot_id_path.write_text(new_id())
    host_settings = HostSettings(image_file_root=image.parent, boot_id_path=fleet.boot_id_path, **options)
    _stand_before(monkeypatch, fleet.faults)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(world.client)
        url = await stack.enter_async_context(served(world.parts))
        await _enrol(fleet, url, address, namespace)
        await fleet.call("POST", "/v1/images", json=_image_body(image))
        await world.parts.certificates.establish()
        await stack.enter_async_context(
            control.control_worker(client, PassActivities(PassStore(passes)), build_id=None)
        )
        tasks = [asyncio.create_task(work) for work in (fleet.look(), fleet.sweep())]
        try:
            await fleet.start_host()
            yield fleet
        finally:
            await fleet.stop_host()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await world.parts.drain()
    for pool in (passes, world.pool):
        await pool.close()


def _stand_before(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
    """Put the faults before the interceptors that a worker has, and let a worker follow another in this process."""

    def before(options: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def changed(*words: Any, **more: Any) -> dict[str, Any]:
            made = options(*words, **more)
            return {**made, "interceptors": [faults, *made["interceptors"]]}

        return changed

    # It is this process' until its end, and a host that boots anew has another process.
    monkeypatch.setattr(host, "lock_worker", lambda home: None)
    monkeypatch.setattr(control, "control_worker_options", before(control_worker_options))
    monkeypatch.setattr(host, "host_worker_options", before(host_worker_options))


async def _enrol(fleet: Fleet, url: str, address: str, namespace: str) -> None:
    given = await fleet.call("POST", "/v1/hosts", json={"name": "host-1"})
    document = {**given, "api_url": url, "temporal_address": address, "namespace": namespace}
    folder = fleet.home / "host"
    folder.mkdir(mode=0o700)
    (folder / "credentials.json").write_text(json.dumps(document))


def _write_image(home: Path) -> Path:
    folder = home / "served"
    folder.mkdir()
    file = folder / "root.raw"
    file.write_bytes(bytes(IMAGE_BYTES))
    return file


def _image_body(image: Path) -> dict[str, Any]:
    digest = sha256(image.read_bytes()).hexdigest()
    return {"name": "demo", "rootfs": {"url": f"file://{image}", "sha256": digest, "format": "raw"}}
