"""What is there of a VM: the record beside what hypervisor, network and disk show. A probe that fails is no absence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from drivers.host.exits import note_exit, note_stall
from drivers.host.parts import Parts, is_simulated
from drivers.hypervisor import GuestState
from drivers.records import Entry, find_owners
from drivers.stored import StoredStatus
from model.errors import HostlerError
from model.ids import mac_address
from model.process import ProcessRecord
from model.record import Observed, Record, View
from model.vm import PowerState

Guard = Callable[[], None]


@dataclass(frozen=True)
class Sight:
    """One look at a VM: what is told of it, and the guest's own state where its record can be read."""

    observed: Observed
    state: GuestState | None


class Looker:
    """Look at VMs. Looking takes no lock and changes nothing but what the record says was seen."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def view(self, vm_id: str, guard: Guard) -> View:
        """Look at a VM for an order, and note what was seen."""
        sight = await self.look(vm_id, guard)
        observed = await self._parts.seen.note(vm_id, sight.observed, guard)
        entry = self._parts.records.find(vm_id)
        return View(
            record=entry.status.record if entry and entry.status else None,
            observed=observed,
            unreadable=entry.unreadable if entry else None,
        )

    async def look(self, vm_id: str, guard: Guard) -> Sight:
        """Look at a VM. The end of a guest is recorded when it is first seen (`last_exit`)."""
        entry = self._parts.records.find(vm_id)
        if entry is None or entry.unreadable or entry.config is None:
            return Sight(await self._search(entry, vm_id), None)
        config, status = entry.config, entry.status
        state = await self._parts.hypervisor.find(self._parts.guest(config, status), status.process if status else None)
        if status is not None:
            status = await note_exit(self._parts, status, state, guard)
            await note_stall(self._parts, status, state, guard)
        return Sight(await self._describe(entry, state), state)

    async def _describe(self, entry: Entry, state: GuestState) -> Observed:
        config = entry.config
        stored = (self._parts.records.find(entry.vm_id) or entry).status
        # A process of the VM's user that no record names is not its guest: it is ended before anything boots.
        is_ours = state.process is None or (stored is not None and state.process == stored.process)
        power_state = PowerState(state.power) if state.power else None
        return Observed(
            boot_id=self._parts.boot_id(),
            power_state=power_state if is_ours else PowerState.STOPPED,
            process=state.process,
            guest_ended=state.ended if state.process is not None else None,
            paused_by_hypervisor=state.paused_by_hypervisor,
            disk_bytes=stored.record.disk_bytes if stored else None,
            network=await self._is_attached(entry, state),
            address=str(config.allocation.address) if config else None,
            ssh_host_key=config.host_key.public if config else None,
            certificate_serial=config.host_certificate.serial if config and config.host_certificate else None,
            cause_remains=state.cause_remains,
            emulated=config.allocation.accelerator == "tcg" and not is_simulated(config) if config else None,
            **_told(stored),
            seen_at=datetime.now(UTC),
        )

    async def _is_attached(self, entry: Entry, state: GuestState) -> bool:
        """Say whether the network is as wanted; that the network cannot be asked keeps no guest from being stopped."""
        record = entry.status.record if entry.status else None
        unbooted = record is not None and record.boot_id is None and record.create and not record.create.booted
        if entry.config is None or unbooted:
            return False  # the network of a create that has not booted anything is made by its boot
        try:
            return (await self._parts.network.find(self._parts.attachment(entry.config))).matches
        except HostlerError:
            return False

    async def _search(self, entry: Entry | None, vm_id: str) -> Observed:
        """Search for anything of a VM whose record is absent or cannot be read (L-R6, L-G8)."""
        processes = await self.find_strays(vm_id)
        readable = entry is None or entry.unreadable is None
        nothing = not processes and entry is None and not await self._find_remains(vm_id)
        return Observed(
            boot_id=self._parts.boot_id(),
            power_state=PowerState.STOPPED if readable and not processes else None,
            process=processes[0] if processes else None,
            nothing=nothing,
            seen_at=datetime.now(UTC),
        )

    async def _find_remains(self, vm_id: str) -> bool:
        """Say whether network or filesystem hold anything of a VM; raises StepFailed when one cannot be asked."""
        inventory = await self._parts.network.inventory()
        if inventory.mentions(vm_id, self._parts.names.tap(vm_id), mac_address(vm_id)):
            return True
        paths = self._parts.paths
        found = (paths.folder(vm_id), paths.sockets(vm_id))
        return any(await asyncio.to_thread(lambda: [path.is_symlink() or path.exists() for path in found]))

    async def find_strays(self, vm_id: str) -> tuple[ProcessRecord, ...]:
        """Find live processes of a VM without its record: by its id, and by who owns its files (L-G8).

        A file that belongs to the user of another VM makes no process of that VM one of this (case B9).
        """
        owners = await asyncio.to_thread(self._find_owners, vm_id)
        found = await self._parts.hypervisor.find_strays(vm_id, owners)
        return tuple(sorted(found, key=lambda each: each.pid))

    def _find_owners(self, vm_id: str) -> set[int]:
        owners = find_owners(self._parts.paths.folder(vm_id))
        others = {e.config.allocation.uid for e in self._parts.records if e.config is not None and e.vm_id != vm_id}
        return (owners & set(self._parts.names.users)) - others


def _told(status: StoredStatus | None) -> dict[str, Any]:
    """What the record says of the guest's last process, beside what is seen."""
    if status is None:
        return {}
    names = ("last_exit", "setback", "started_at", "started_for", "restart_count")
    turned_off = status.turned_off and status.record.boot_id is not None
    return {name: getattr(status, name) for name in names} | {"turned_off": turned_off}


def differs(record: Record | None, seen: Observed) -> bool:
    """Say whether what is seen is not what the record says should be: then a pass is asked for (L-G1, L-V1).

    Not for a create under way, whose pass looks itself, and never because nobody can tell (case B2), nor while what
    makes the hypervisor pause the guest surely remains (L-V11).
    """
    if record is None or record.boot_id is None or seen.power_state is None:
        return False
    if record.stop_intended or record.quarantined_at is not None:
        return seen.power_state is not PowerState.STOPPED or seen.process is not None
    return (
        seen.power_state is PowerState.STOPPED
        or record.boot_id != seen.boot_id
        or (seen.paused_by_hypervisor is not None and not seen.cause_remains)
    )
