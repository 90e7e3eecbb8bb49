"""A sealed fleet in one namespace: control worker, host worker, and the client of somebody who has no key."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from model.fence import Fence
from model.record import HostOrder, Observed, View
from model.temporal import CONTROL_QUEUE, host_queue
from model.vm import PowerState
from runtime.converter import data_converter
from runtime.keys import MasterKeys, SealingKey
from runtime.seal import Seal
from runtime.temporal import control_worker_options, host_worker_options
from tests.runtime.flows import CreateVm, LocalPass, Script, ScriptedPass, Told

FLEET = "fleet-1"
MASTER = MasterKeys(bytes(range(32)))
SECRET_WORDS = "canary-of-a-guest"


def control_seal(keys: MasterKeys = MASTER) -> Seal:
    return Seal(
        side="control",
        fleet_id=FLEET,
        key_for=keys.host_sealing_key,
        control_key=keys.control_sealing_key(),
    )


def host_seal(host_id: str, keys: MasterKeys = MASTER) -> Seal:
    own = SealingKey(1, keys.host_key(host_id))

    def key_for(asked: str, version: int | None) -> SealingKey | None:
        return own if asked == host_id and version in (None, own.version) else None

    return Seal(side="host", fleet_id=FLEET, key_for=key_for)


def an_order(host_id: str = "a", instance: str = "i1", pass_number: int = 7, **more: Any) -> HostOrder:
    values: dict[str, Any] = {
        "vm_id": "vm-1",
        "fence": Fence(fleet_id=FLEET, host_id=host_id, instance_id=instance, epoch=1, pass_number=pass_number, step=1),
        "min_worker_version": None,
        "input_digest": "0" * 64,
        "power_state": PowerState.RUNNING,
        "generation": 1,
        "spec_generation": 1,
        "restart_generation": 0,
        "rebuild_generation": 0,
        "disk_gib": 10,
        "stop_timeout_seconds": 90,
    }
    return HostOrder(**{**values, **more})


def a_view(**more: Any) -> View:
    observed = Observed(boot_id="b", power_state=PowerState.RUNNING, seen_at=datetime.now(UTC), **more)
    return View(record=None, observed=observed)


Body = Callable[[HostOrder], Awaitable[View]]


@dataclass
class HostBody:
    """The steps of a host: they note what ran, and do what the test says."""

    ran: list[HostOrder] = field(default_factory=list)
    body: Body | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)

    @activity.defn
    async def find_vm(self, order: HostOrder) -> View:
        return await self._run(order)

    @activity.defn
    async def ensure_booted(self, order: HostOrder) -> View:
        return await self._run(order)

    async def _run(self, order: HostOrder) -> View:
        self.ran.append(order)
        self.started.set()
        return a_view() if self.body is None else await self.body(order)


@dataclass
class Fleet:
    address: str
    namespace: str
    control: Client
    attacker: Client
    hosts: dict[str, HostBody]
    queues: dict[str, str]

    async def start(
        self, host: str = "a", *, workflow_id: str | None = None, **script: Any
    ) -> WorkflowHandle[Any, Told]:
        order = script.pop("order", None) or an_order(host)
        return await self.control.start_workflow(
            ScriptedPass.run,
            Script(order=order, queue=script.pop("queue", None) or self.queues[host], **script),
            id=workflow_id or f"vm/{uuid.uuid4().hex[:8]}",
            task_queue=CONTROL_QUEUE,
        )


@contextlib.asynccontextmanager
async def running_fleet(
    address: str,
    namespace: str,
    hosts: tuple[str, ...] = ("a",),
    *,
    reach: Callable[[str], Awaitable[Client]] | None = None,
    **local: Any,
) -> AsyncIterator[Fleet]:
    """Run it. reach: connects a host as it does; without it, to Temporal itself."""
    control = await Client.connect(address, namespace=namespace, data_converter=data_converter(control_seal()))
    attacker = await Client.connect(address, namespace=namespace, data_converter=data_converter(None))
    bodies = {host: HostBody() for host in hosts}
    queues = {host: host_queue(host, "i1") for host in hosts}
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(
            Worker(
                control,
                workflows=[ScriptedPass, CreateVm, LocalPass],
                activities=local.get("activities", []),
                **control_worker_options(build_id=None),
            )
        )
        for host in hosts:
            converter = data_converter(host_seal(host))
            if reach is None:
                client = await Client.connect(address, namespace=namespace, data_converter=converter)
            else:
                client = await reach(host)
            body = bodies[host]
            await stack.enter_async_context(
                Worker(
                    client,
                    activities=[body.find_vm, body.ensure_booted],
                    **host_worker_options(queues[host], fleet_id=FLEET),
                )
            )
        yield Fleet(address, namespace, control, attacker, bodies, queues)
