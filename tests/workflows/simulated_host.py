"""A host in memory that takes every order of a pass, checks it as the real one does, and answers with what is there.

It stands in for a machine only where a test is about passes; whatever it is sent is validated, and a fence that is not
the newest is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from model.fence import Fence
from model.process import ProcessRecord
from model.record import CreateProgress, HostOrder, Observed, Record, Setback, View
from model.step import StepKind
from model.sync import SET_NAMES, SetName, SetState, SyncAnswer, SyncedVm, SyncOrder
from model.vm import LastExit, PowerState
from model.volume import AttachedVolume, in_order
from tests.model.world import begin_rebuild

GIB = 1 << 30


class Machine:
    """One VM on the simulated host."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.process: ProcessRecord | None = None
        self.power = PowerState.STOPPED
        self.tap = False
        self.disk_bytes: int | None = None
        self.fence: Fence | None = None
        self.certificate: int | None = None
        self.revision = 0
        self.told: dict[str, Any] = {}
        """What is seen of the guest's last process beside it."""

    def befall(self) -> None:
        """Note a setback of the guest."""
        assert self.process is not None
        last: Setback | None = self.told.get("setback")
        self.told["setback"] = Setback(number=last.number + 1 if last else 1, process=self.process)
        self.revision += 1


class SimulatedHost:
    """`before` and `after` are called with (step name, order) around each effect; they may raise or wait.

    `shown` changes what is told of a VM, as where its record cannot be read.
    """

    def __init__(self, host_id: str, instance_id: str, boot_id: str = "boot-1") -> None:
        self.host_id, self.instance_id, self.boot_id = host_id, instance_id, boot_id
        self.machines: dict[str, Machine] = {}
        self.calls: list[str] = []
        self.starts = 0
        self.before: Callable[[str, HostOrder], Awaitable[None]] | None = None
        self.after: Callable[[str, HostOrder], Awaitable[None]] | None = None
        self.waiting: dict[str, str] = {}
        self.shown: dict[str, Callable[[View], View]] = {}
        self.garbled: set[str] = set()
        """Steps whose next answer is no view at all, although they worked."""
        self.certificate = 1
        self.synced = (0, 0)
        self.revision = 0
        """Which sets were applied last."""
        self.sync_error: str | None = None
        self.before_sync: Callable[[SyncOrder], Awaitable[None]] | None = None

    def machine(self, vm_id: str) -> Machine:
        return self.machines.setdefault(vm_id, Machine())

    def kill_guest(self, vm_id: str) -> None:
        self.machine(vm_id).process = None
        self.machine(vm_id).power = PowerState.STOPPED

    def die(self, vm_id: str, *, reason: str = "its process ended", turned_off: bool = False) -> None:
        """End a guest by itself."""
        machine = self.machine(vm_id)
        machine.befall()
        ended = LastExit(at=datetime.now(UTC), by="guest" if turned_off else "hypervisor", reason=reason)
        machine.told |= {"last_exit": ended, "turned_off": turned_off}
        self.kill_guest(vm_id)

    def stall(self, vm_id: str, cause: str, *, remains: bool = False) -> None:
        """Have the hypervisor pause a guest."""
        machine = self.machine(vm_id)
        machine.befall()
        machine.power = PowerState.PAUSED
        machine.told |= {"paused_by_hypervisor": cause, "cause_remains": remains}

    def reboot(self, boot_id: str) -> None:
        self.boot_id = boot_id
        for vm_id in self.machines:
            self.kill_guest(vm_id)
            self.machine(vm_id).tap = False

    def names(self) -> list[str]:
        return ["find_vm", *_EFFECTS, "ensure_sets"]

    def activities(self) -> list[Callable[..., Awaitable[Any]]]:
        return [*(self._activity(name) for name in ("find_vm", *_EFFECTS)), self._sync_activity()]

    def _sync_activity(self) -> Callable[[SyncOrder], Awaitable[SyncAnswer]]:
        @activity.defn(name="ensure_sets")
        async def run(order: SyncOrder) -> SyncAnswer:
            return await self._sync(order)

        return run

    async def _sync(self, order: SyncOrder) -> SyncAnswer:
        """Take a sync as the real host does: a lower pair than the highest seen changes nothing (H-S4)."""
        fence = order.fence
        if (fence.host_id, fence.instance_id) != (self.host_id, self.instance_id):
            raise ApplicationError("another host's order", type="Fenced", non_retryable=True)
        self.calls.append("ensure_sets")
        if self.before_sync is not None:
            await self.before_sync(order)
        pair = (fence.epoch, fence.pass_number)
        listing = tuple(SyncedVm(vm_id=vm_id, power_state=each.power) for vm_id, each in self.machines.items())
        told: dict[str, Any] = {"vms": listing, "answers": fence}
        if pair < self.synced:
            return SyncAnswer(fenced=True, epoch=self.synced[0], number=self.synced[1], **told)
        self.synced = pair
        states: dict[SetName, SetState] = dict.fromkeys(SET_NAMES, "off")
        if self.sync_error is not None:
            states = {**dict.fromkeys(SET_NAMES, "not_reached"), "privileged_addresses": "failed"}
        else:
            self.revision = order.revision
        return SyncAnswer(epoch=pair[0], number=pair[1], states=states, error=self.sync_error, **told)

    def _activity(self, name: str) -> Callable[[HostOrder], Awaitable[View]]:
        @activity.defn(name=name)
        async def run(order: HostOrder) -> View:
            return await self._run(name, order)

        return run

    async def _run(self, name: str, order: HostOrder) -> View:
        self._check(order)
        self.calls.append(name)
        heartbeats = asyncio.create_task(_heartbeat())
        try:
            if self.before is not None:
                await self.before(name, order)
            machine = self.machine(order.vm_id)
            self._check(order)
            if name in self.waiting:
                waiting = {"waiting": self.waiting[name], "answers": order.fence}
                return self.view(order.vm_id).model_copy(update=waiting)
            if name != "find_vm":
                machine.revision += 1
                _EFFECTS[name](self, machine, order)
            if self.after is not None:
                await self.after(name, order)
        finally:
            heartbeats.cancel()
        if name in self.garbled:
            self.garbled.discard(name)
            return "no view"  # type: ignore[return-value]
        return self.view(order.vm_id).model_copy(update={"answers": order.fence})

    def _check(self, order: HostOrder) -> None:
        fence = order.fence
        if (fence.host_id, fence.instance_id) != (self.host_id, self.instance_id):
            raise ApplicationError("another host's order", type="Fenced", non_retryable=True)
        machine = self.machine(order.vm_id)
        if machine.fence is not None and fence.order < machine.fence.order:
            raise ApplicationError("an older order", type="Fenced", non_retryable=True)
        machine.fence = fence

    def view(self, vm_id: str) -> View:
        machine = self.machine(vm_id)
        nothing = machine.record is None and machine.process is None and not machine.tap and machine.disk_bytes is None
        observed = Observed(
            boot_id=self.boot_id,
            power_state=machine.power,
            process=machine.process,
            disk_bytes=machine.disk_bytes,
            nothing=nothing,
            revision=machine.revision,
            certificate_serial=machine.certificate,
            address="10.0.0.9" if machine.record else None,
            seen_at=datetime.now(UTC),
            **machine.told,
        )
        view = View(record=machine.record, observed=observed)
        return self.shown[vm_id](view) if vm_id in self.shown else view


async def _heartbeat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(1)


def _update(machine: Machine, **changes: object) -> None:
    assert machine.record is not None
    machine.record = machine.record.model_copy(update=changes)


def _progress(machine: Machine, **changes: object) -> None:
    assert machine.record is not None
    assert machine.record.create is not None
    _update(machine, create=machine.record.create.model_copy(update=changes))


def _certified(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    machine.certificate = host.certificate
    if machine.record is not None:
        _update(machine, seed_digest=None)


def _prepared(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    machine.process, machine.power, machine.disk_bytes = None, PowerState.STOPPED, None
    progress = CreateProgress(pass_number=order.fence.pass_number)
    machine.record = Record(input_digest=order.input_digest, create=progress)


def _image(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _progress(machine, image=True)


def _root_disk(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    machine.disk_bytes = (order.disk_gib or 1) * GIB
    _update(machine, disk_bytes=machine.disk_bytes)
    _progress(machine, disk=True)


def _seed(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _update(machine, seed_digest=order.input_digest)
    if machine.record is not None and machine.record.create is not None:
        _progress(machine, seed=True)


def _volume(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    assert machine.record is not None
    (wanted,) = [each for each in order.volumes if each.volume_id == order.volume_id]
    there = {each.volume_id: each for each in machine.record.volumes}
    size = wanted.size_gib * GIB
    there[wanted.volume_id] = AttachedVolume(volume_id=wanted.volume_id, size_bytes=size)
    _update(machine, volumes=in_order(there.values(), order.volumes))


def _volume_detached(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    assert machine.record is not None
    left = tuple(each for each in machine.record.volumes if each.volume_id != order.volume_id)
    _update(machine, volumes=left)


def _network(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _update(machine, network_digest=order.network_digest)


def _booted(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    assert machine.record is not None
    last: Setback | None = machine.told.get("setback")
    if order.setbacks is not None and last is not None and order.setbacks < last.number:
        raise ApplicationError("a setback that was not counted", type="Superseded", non_retryable=True)
    machine.tap = True
    if machine.process is None:
        host.starts += 1
        wanted = order.generation + order.restart_generation
        machine.told |= {"started_at": datetime.now(UTC), "started_for": wanted, "turned_off": False}
        machine.process = ProcessRecord(pid=host.starts, start_time=host.starts, boot_id=host.boot_id, uid=1)
    machine.power = PowerState.RUNNING
    _update(machine, stop_intended=False)
    if machine.record.create is not None:
        _progress(machine, booted=True)
    else:
        _update(machine, boot_id=host.boot_id)


def _completed(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    assert machine.record is not None
    generations = {
        "applied_rebuild_generation": order.rebuild_generation,
        "applied_restart_generation": order.restart_generation,
    }
    _update(machine, **generations)
    if machine.record.boot_id is not None:
        _update(machine, create=None)
        return
    _update(machine, boot_id=host.boot_id, create=None, stop_intended=order.power_state is PowerState.STOPPED)
    _applied(host, machine, order)


def _applied(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _update(
        machine,
        epoch=order.fence.epoch,
        applied_generation=order.generation,
        applied_spec_generation=order.spec_generation,
        applied_restart_generation=order.restart_generation,
        restart_of=None,
    )


def _paused(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    machine.power = PowerState.PAUSED


def _resumed(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    machine.told |= {"paused_by_hypervisor": None, "cause_remains": False, "started_at": datetime.now(UTC)}
    machine.power = PowerState.RUNNING


def _stopped(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _update(machine, stop_intended=True)
    machine.told["turned_off"] = False
    machine.process, machine.power = None, PowerState.STOPPED


def _stop_recorded(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _update(machine, stop_intended=True, boot_id=host.boot_id)
    machine.told["turned_off"] = False


def _restart_noted(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _update(machine, restart_of=machine.process, restart_of_generation=order.restart_generation)


def _disk_size(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    machine.disk_bytes = (order.disk_gib or 1) * GIB
    _update(machine, disk_bytes=machine.disk_bytes)


def _set_aside(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    record = machine.record
    assert record is not None
    assert machine.process is None, "a disk is put aside while nothing uses it"
    machine.record = begin_rebuild(record, order.fence.pass_number, order)


def _kept_removed(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _update(machine, kept=None)


def _quarantined(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _update(machine, quarantined_at=datetime.now(UTC))
    _stopped(host, machine, order)


def _released(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
    _update(machine, quarantined_at=None)


def _destroyed(kind: StepKind) -> Callable[[SimulatedHost, Machine, HostOrder], None]:
    def destroy(host: SimulatedHost, machine: Machine, order: HostOrder) -> None:
        if kind is StepKind.DESTROY_PROCESS:
            machine.process = None
        elif kind is StepKind.DESTROY_NETWORK:
            machine.tap = False
        elif kind is StepKind.DESTROY_STORAGE:
            machine.disk_bytes = None
        if machine.record is not None:
            _update(machine, destroyed=(*machine.record.destroyed, kind.value))
        if kind is StepKind.DESTROY_RECORDS:
            machine.record = None

    return destroy


_EFFECTS: dict[str, Callable[[SimulatedHost, Machine, HostOrder], None]] = {
    "ensure_certificate": _certified,
    "ensure_prepared": _prepared,
    "ensure_image": _image,
    "ensure_root_disk": _root_disk,
    "ensure_seed": _seed,
    "ensure_volume": _volume,
    "ensure_volume_detached": _volume_detached,
    "ensure_network": _network,
    "ensure_booted": _booted,
    "ensure_completed": _completed,
    "ensure_applied": _applied,
    "ensure_paused": _paused,
    "ensure_resumed": _resumed,
    "ensure_stopped": _stopped,
    "ensure_stop_recorded": _stop_recorded,
    "ensure_restart_noted": _restart_noted,
    "ensure_disk_size": _disk_size,
    "ensure_disk_set_aside": _set_aside,
    "ensure_kept_disk_removed": _kept_removed,
    "ensure_quarantined": _quarantined,
    "ensure_released": _released,
    "ensure_process_destroyed": _destroyed(StepKind.DESTROY_PROCESS),
    "ensure_network_destroyed": _destroyed(StepKind.DESTROY_NETWORK),
    "ensure_storage_destroyed": _destroyed(StepKind.DESTROY_STORAGE),
    "ensure_records_destroyed": _destroyed(StepKind.DESTROY_RECORDS),
}
