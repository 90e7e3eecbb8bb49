"""Passes as they run for real: Postgres, Temporal, the control worker; only the host is in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from model.decide import pass_type
from model.errors import Unavailable
from model.ids import mac_address, new_id
from model.temporal import bulk_queue, host_queue, vm_workflow_id
from runtime.temporal import poke
from store.database import Pool
from tests.workflows.simulated_host import SimulatedHost
from workers.control import control_worker

BOUND_SECONDS = 30
INSTANCE = "i1"
POKE_TRIES = 200


@dataclass
class Fleet:
    """A small fleet: one host, its rows, the way to wake them."""

    client: Client
    pool: Pool
    host: SimulatedHost
    runs: list[str] = field(default_factory=list)

    async def add_vm(self, **columns: object) -> str:
        """Insert a row as the API does; `columns` override."""
        vm_id = new_id()
        values: dict[str, object] = {
            "id": vm_id,
            "project": "default",
            "name": f"vm-{vm_id[-12:]}",
            "host_id": self.host.host_id,
            "spec": {},
            "secrets": b"",
            "input_digest": "d1",
            "fingerprint": "f1",
            "power_state": "running",
            "stop_timeout_seconds": 5,
            "on_guest_poweroff": "start",
            "mac": mac_address(vm_id),
            **columns,
        }
        names = ", ".join(values)
        places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
        async with self.pool.acquire() as connection:
            await connection.execute(f"insert into vms ({names}) values ({places})", *values.values())
        return vm_id

    async def change(self, vm_id: str, sql: str, *values: object) -> None:
        """Change the row as the API does: with a wake, then poke."""
        async with self.pool.acquire() as connection:
            await connection.execute(
                f"update vms set {sql}, wake = wake + 1, due_at = now() where id = $1", vm_id, *values
            )
        await self.poke(vm_id)

    async def wake(self, vm_id: str) -> None:
        """Wake the row as a host's report does. A poke alone may meet a run that has just made up its mind to end."""
        await self.change(vm_id, "labels = labels")

    async def delete(self, vm_id: str, grace_seconds: float) -> None:
        await self.change(
            vm_id,
            """deleted = true, generation = generation + 1, quarantine_kind = 'tombstone', quarantine_since = now(),
            quarantine_grace = make_interval(secs => $2), destroy_at = now() + make_interval(secs => $2)""",
            grace_seconds,
        )

    async def rebuild(self, vm_id: str, *, undo_of: int | None = None) -> None:
        """Ask for a rebuild, or for the disk back that the rebuild `undo_of` put aside."""
        await self.change(
            vm_id,
            """rebuild_generation = rebuild_generation + 1, spec_generation = spec_generation + 1,
            generation = generation + 1, kept_by = rebuild_generation + 1, undo_of = $2, old_image = '{}',
            old_disk_until = now() + interval '1 hour'""",
            undo_of,
        )

    async def until_rebuilt(self, vm_id: str, generation: int) -> dict[str, Any]:
        """Wait until nothing is left of the rebuild `generation` but the disk that it keeps."""
        return await self.until(
            vm_id,
            lambda row: row["applied_rebuild_generation"] == generation and row["due_at"] == row["old_disk_until"],
        )

    async def row(self, vm_id: str) -> dict[str, Any] | None:
        async with self.pool.acquire() as connection:
            row = await connection.fetchrow("select * from vms where id = $1", vm_id)
        return None if row is None else dict(row)

    async def poke(self, vm_id: str) -> None:
        row = await self.row(vm_id)
        assert row is not None
        kind = pass_type(deleted=row["deleted"], created=row["first_ready_at"] is not None)
        for _ in range(POKE_TRIES):
            try:
                await poke(self.client, kind, vm_id)
                return
            except Unavailable:
                # A wake-up may be lost on a loaded machine. Here it is sent again, elsewhere the sweep finds the row.
                await asyncio.sleep(0.2)
        raise AssertionError("Temporal took no wake-up")

    async def until(
        self, vm_id: str, condition: Callable[[dict[str, Any]], bool], seconds: float = BOUND_SECONDS
    ) -> dict[str, Any]:
        """Wait for a level of the row, with a bound."""
        deadline = time.monotonic() + seconds
        while True:
            row = await self.row(vm_id)
            if row is not None and condition(row):
                return row
            if time.monotonic() > deadline:
                raise AssertionError(f"never came: {row}; calls {self.host.calls}")
            await asyncio.sleep(0.02)

    async def until_settled(self, vm_id: str) -> dict[str, Any]:
        return await self.until(vm_id, lambda row: row["due_at"] is None and row["claim_until"] is None)

    async def until_gone(self, vm_id: str) -> None:
        deadline = time.monotonic() + BOUND_SECONDS
        while await self.row(vm_id) is not None:
            assert time.monotonic() < deadline, f"still there: {await self.row(vm_id)}; calls {self.host.calls}"
            await asyncio.sleep(0.02)

    async def terminate(self, vm_id: str) -> None:
        await self.client.get_workflow_handle(vm_workflow_id(vm_id)).terminate("by hand")


@asynccontextmanager
async def running_fleet(
    client: Client, pool: Pool, host_id: str, *, polls: bool = True, controls: bool = True
) -> AsyncIterator[Fleet]:
    """Run a control worker unless the test does (`controls`) and, if the simulated host `polls`, its two queues."""
    host = SimulatedHost(host_id, INSTANCE)
    async with pool.acquire() as connection:
        await connection.execute(
            """insert into hosts (id, name, status, instance_id, credential_hash, last_report_at, activity_names)
            values ($1, $1, 'ready', $2, $3, now() + interval '1 hour', $4)""",
            host_id,
            INSTANCE,
            b"\0" * 32,
            host.names(),
        )
    async with AsyncExitStack() as stack:
        if controls:
            await stack.enter_async_context(control_worker(client, pool, build_id=None))
        if polls:
            await stack.enter_async_context(polling(client, host))
        yield Fleet(client, pool, host)


@asynccontextmanager
async def polling(client: Client, host: SimulatedHost) -> AsyncIterator[None]:
    """Let a host poll its two queues for as long as the block lasts."""
    async with AsyncExitStack() as stack:
        for queue in (host_queue(host.host_id, INSTANCE), bulk_queue(host.host_id, INSTANCE)):
            worker = Worker(client, task_queue=queue, activities=host.activities(), max_concurrent_activities=200)
            await stack.enter_async_context(worker)
        yield


@pytest.fixture
async def fleet(temporal_client: Client, pool: Pool) -> AsyncIterator[Fleet]:
    async with running_fleet(temporal_client, pool, f"h-{new_id()[-12:]}") as fleet:
        yield fleet
