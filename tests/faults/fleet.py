"""A whole fleet in one process: real API, control worker, sweep and host worker, with simulated guests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from temporalio.client import Client

from drivers.simulated import Simulation
from model.decide import pass_type
from model.errors import Unavailable
from model.ids import new_id
from model.join import JoinString
from runtime.converter import data_converter
from runtime.keys import KEY_BYTES, create_secret
from runtime.settings import HostSettings, Settings
from runtime.temporal import connect, poke
from store.database import Pool, open_pool
from tests.api.conftest import World, make_world
from tests.api.conftest import served as serving
from tests.faults.apart import Kind, worker_apart
from tests.faults.faults import Faults, stand_before
from tests.faults.machines import Machine, RealMachine, ToldMachine
from workers import control, host, process
from workers.enrolment import ensure_joined
from workers.sweep import Sweep

BOUND_SECONDS = 240
LOOK_SECONDS = 0.1
MASTER_KEY = b"k" * KEY_BYTES
Condition = Callable[[dict[str, Any] | None], bool]


@dataclass
class Fleet:
    """One host's fleet. `until` waits on a level of one row; one query looks for all who wait."""

    world: World
    client: Client
    faults: Faults
    home: Path
    machine: Machine
    run_host: Callable[[asyncio.Event], Awaitable[None]] = field(kw_only=True)
    """Is the host worker, until the event is set."""
    waits: dict[str, tuple[Condition, asyncio.Future[dict[str, Any] | None]]] = field(default_factory=dict)
    _host: tuple[asyncio.Event, asyncio.Task[None]] | None = None
    _seen: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    """The rows that tests wait on, with the version of each."""

    @property
    def pool(self) -> Pool:
        return self.world.pool

    @property
    def simulation(self) -> Simulation:
        assert isinstance(self.machine, ToldMachine)
        return self.machine.simulation

    @property
    def boot_id_path(self) -> Path:
        return self.home / "boot_id"

    async def start_host(self) -> None:
        """Begin a host worker, and wait until it has reported."""
        stopping = asyncio.Event()
        before = await self.pool.fetchval("select max(last_report_at) from hosts")
        self._host = stopping, asyncio.create_task(self.run_host(stopping))
        async with asyncio.timeout(60):
            while await self.pool.fetchval("select max(last_report_at) from hosts") == before:
                if self._host[1].done():
                    self._host[1].result()
                await asyncio.sleep(0.05)

    async def until_heard(self) -> None:
        """Wait until a host worker has reported that runs elsewhere."""
        async with asyncio.timeout(60):
            while await self.pool.fetchval("select max(last_report_at) from hosts") is None:  # noqa: ASYNC110 - a row
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
        answer, asked_again = await self.world.call(method, path, **options), False
        for _ in range(60):
            if answer.status_code != 503:
                break
            await asyncio.sleep(1)
            answer, asked_again = await self.world.call(method, path, **options), True
        if asked_again and method == "DELETE" and answer.status_code == 410:
            return None  # the one that was not answered was taken, and all is done
        assert answer.status_code < 300, (method, path, answer.text)
        return answer.json()

    async def until(
        self, vm_id: str, condition: Condition, *, bound_seconds: float = BOUND_SECONDS
    ) -> dict[str, Any] | None:
        """Return the VM's row once the condition holds for it; None is a row that is gone."""
        future: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.waits[vm_id] = (condition, future)
        try:
            async with asyncio.timeout(bound_seconds):
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
            found = await self._read(ids)
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

    async def _read(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        """Return the rows that exist. Only those written since the last look are read: a crowd is slow enough."""
        versions = dict(await self.pool.fetch("select id, xmin::text from vms where id = any($1)", ids)) if ids else {}
        self._seen = {vm_id: seen for vm_id, seen in self._seen.items() if versions.get(vm_id) == seen[0]}
        if new := sorted(set(versions) - set(self._seen)):
            rows = await self.pool.fetch("select *, xmin::text as version from vms where id = any($1)", new)
            self._seen |= {row["id"]: (row["version"], dict(row)) for row in rows}
        return {vm_id: row for vm_id, (_, row) in self._seen.items()}

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
            with contextlib.suppress(Unavailable):
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
    database_url: str,
    address: str,
    namespace: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    apart: Kind | None = None,
    real: RealMachine | None = None,
    **host_options: Any,
) -> AsyncIterator[Fleet]:
    """Run all of it, with faults before every activity. host_options: what HostSettings takes.

    apart: the worker that is a process of its own. real: where guests are real ones, whose host worker is apart.
    """
    world = await make_world(await open_pool(database_url), home / "keys")
    settings = Settings(
        home=home, temporal_address=address, temporal_namespace=namespace, database_url=SecretStr(database_url)
    )
    create_secret(settings.master_key_file, MASTER_KEY)
    seal = process.control_seal(world.parts.keys, world.parts.fleet_id)
    client = await connect(settings, data_converter(seal), identity="control")
    world.parts.client, world.parts.namespace = client, namespace
    served = home / "served"
    served.mkdir()
    machine = real or ToldMachine(
        Simulation(home / "host" / "simulated", lambda: fleet.boot_id_path.read_text().strip())
    )
    fleet = Fleet(
        world,
        client,
        Faults(client, lambda vm_id: fleet.poke(vm_id)),
        home,
        machine,
        run_host=lambda stopping: host.run(settings, HostSettings(**options), stopping),
    )
    options = {**machine.host_settings, "image_file_root": served, **host_options}
    if real is None:
        fleet.boot_id_path.write_text(new_id())
        options["boot_id_path"] = fleet.boot_id_path
    _stand_before(monkeypatch, fleet.faults)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(world.client)
        url = await stack.enter_async_context(serving(world.parts))
        await _enrol(fleet, url, address)
        await fleet.call("POST", "/v1/images", json=machine.make_image(served))
        await world.parts.certificates.establish()
        if apart is not None:
            environment = _environment(settings, options)
            await stack.enter_async_context(worker_apart(apart, fleet.faults, home, environment))
        if apart != "control":
            await stack.enter_async_context(_controlling(client, database_url))
        tasks = [asyncio.create_task(work) for work in (fleet.look(), fleet.sweep())]
        try:
            await (fleet.until_heard() if apart == "host" else fleet.start_host())
            yield fleet
        finally:
            await fleet.stop_host()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    await world.parts.drain()
    await world.pool.close()


def _stand_before(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
    """Put the faults before the interceptors that a worker has, and let a worker follow another in this process."""
    # It is this process' until its end, and a host that boots anew has another process.
    monkeypatch.setattr(host, "lock_worker", lambda home: None)
    for module, name in ((control, "control_worker_options"), (host, "host_worker_options")):
        monkeypatch.setattr(module, name, stand_before(getattr(module, name), faults))


@contextlib.asynccontextmanager
async def _controlling(client: Client, database_url: str) -> AsyncIterator[None]:
    """Run the control worker in this process."""
    pool = await open_pool(database_url, largest=20)
    async with control.control_worker(client, pool, build_id=None):
        yield
    await pool.close()


def _environment(settings: Settings, host_settings: dict[str, Any]) -> dict[str, str]:
    """Return the settings as a process is told them."""
    assert settings.database_url is not None
    told = {
        "HOSTLER_HOME": settings.home,
        "HOSTLER_DATABASE_URL": settings.database_url.get_secret_value(),
        "HOSTLER_TEMPORAL_ADDRESS": settings.temporal_address,
        "HOSTLER_TEMPORAL_NAMESPACE": settings.temporal_namespace,
    }
    host_told = {f"HOSTLER_HOST_{name.upper()}": value for name, value in host_settings.items()}
    return {name: json.dumps(v) if isinstance(v, list) else str(v) for name, v in (told | host_told).items()}


async def _enrol(fleet: Fleet, url: str, address: str) -> None:
    given = await fleet.call("POST", "/v1/hosts", json={"name": "host-1"})
    join = JoinString.parse(given["join"]).model_copy(update={"url": url})
    await ensure_joined(fleet.home / "host", join, gateway_url=address)
