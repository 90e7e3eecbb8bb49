"""What a host does by itself while it cannot reach its control plane: it boots again what ran (H-E6).

Nothing else: what was never whole, is stopped, or waits in quarantine stays so, and whatever an order has in hand is
that order's. Each boot is under the highest fence seen, which it does not raise, so any order ends it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from drivers.host.parts import Parts
from drivers.jobs import Job
from drivers.records import Entry
from drivers.stored import StoredConfig, StoredStatus
from model.decide.setback import STEADY, pause_after_setback
from model.errors import Busy, Fenced, HostlerError
from model.fence import Fence
from model.record import HostOrder
from model.versions import VERSION, is_below
from model.vm import PowerState

LOOK_SECONDS = 1.0
_log = logging.getLogger("hostler.host")
Boot = Callable[[Job, HostOrder, Callable[[str], None]], Awaitable[str | None]]


@dataclass
class _Boots:
    """How often a guest was booted in a row while the host was alone, and when last, by the monotonic clock."""

    count: int = 0
    at: float = 0.0


class Alone:
    """Boot what ran, once no answer of the control plane came for `after_seconds`. None: never."""

    def __init__(
        self, parts: Parts, boot: Boot, look_soon: Callable[[str], None], *, after_seconds: float | None
    ) -> None:
        self._parts = parts
        self._boot = boot
        self._look_soon = look_soon
        self._after_seconds = after_seconds
        self._heard = time.monotonic()
        self._floor: str | None = None
        self._boots: dict[str, _Boots] = {}
        self._booting: dict[str, asyncio.Task[None]] = {}

    def heard(self, floor: str | None) -> None:
        """Note an answer of the control plane, and the floor that it named (H-S5)."""
        self._heard, self._floor = time.monotonic(), floor
        self._boots.clear()

    @property
    def is_alone(self) -> bool:
        """Tell whether the control plane has been out of reach for too long."""
        return self._after_seconds is not None and time.monotonic() - self._heard > self._after_seconds

    async def run(self) -> None:
        """Look again and again until cancelled."""
        try:
            while True:
                if self.is_alone and not is_below(VERSION, self._floor):
                    self._begin()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            tasks = list(self._booting.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> None:
        """Begin the boot of each guest that is due and not under way. The boot slots pace them (L-C7)."""
        for entry in self._parts.records:
            booting = self._booting.get(entry.vm_id)
            if (booting is None or booting.done()) and self._is_due(entry):
                work = self._bring_back(entry.vm_id)
                self._booting[entry.vm_id] = asyncio.create_task(work, context=contextvars.Context())

    def _is_due(self, entry: Entry) -> bool:
        if entry.config is None or entry.status is None or not self._ran(entry.config, entry.status):
            return False
        boots = self._boots.setdefault(entry.vm_id, _Boots())
        if time.monotonic() - boots.at > STEADY.total_seconds():
            boots.count = 0
        return time.monotonic() >= boots.at + pause_after_setback(boots.count + 1).total_seconds()

    def _ran(self, config: StoredConfig, status: StoredStatus) -> bool:
        """Tell whether a whole VM's guest is gone although nobody stopped it (L-V1, L-V4)."""
        record, seen = status.record, self._parts.seen.last(config.vm_id)
        is_whole = record.boot_id is not None and record.create is None and not record.destroyed
        is_meant = not record.stop_intended and record.quarantined_at is None
        stays_off = status.turned_off and config.input.on_guest_poweroff == "stop"
        return is_whole and is_meant and not stays_off and seen.power_state is PowerState.STOPPED

    async def _bring_back(self, vm_id: str) -> None:
        boots = self._boots.setdefault(vm_id, _Boots())
        try:
            async with self._parts.jobs.own_initiative(vm_id) as job:
                waiting = await self._boot(job, self._order(vm_id, job.fence), lambda _: None)
        except (Busy, Fenced):  # whoever has an order for it sees to it
            return
        except HostlerError as error:
            _log.warning("VM %s was not booted while this host is alone: %s", vm_id, error.detail)
            waiting = None
        if waiting is None:
            boots.count, boots.at = boots.count + 1, time.monotonic()
            _log.info("VM %s was booted by this host alone", vm_id)
        self._look_soon(vm_id)

    def _order(self, vm_id: str, fence: Fence) -> HostOrder:
        """Say what the host orders itself: that what was applied last runs again."""
        record = self._parts.records.status(vm_id).record
        wanted = self._parts.records.config(vm_id).input
        return HostOrder(
            vm_id=vm_id,
            fence=fence,
            min_worker_version=None,
            input_digest=record.input_digest,
            power_state=PowerState.RUNNING,
            generation=record.applied_generation,
            spec_generation=record.applied_spec_generation,
            restart_generation=record.applied_restart_generation,
            rebuild_generation=record.applied_rebuild_generation,
            disk_gib=wanted.disk_gib,
            stop_timeout_seconds=wanted.stop_timeout_seconds,
        )
