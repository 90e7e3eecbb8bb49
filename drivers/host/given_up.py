"""What a host does that its fleet has given up while it was away: it stops all that it runs, and keeps it (L-R10).

So it does with single VMs whose rows name another host (L-R1).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Collection

from drivers.host.parts import Parts
from drivers.records import Entry
from drivers.stored import StoredStatus
from model.errors import HostlerError
from model.fence import Fence
from model.record import HostOrder
from model.vm import PowerState

AT_ONCE = 4
_log = logging.getLogger("hostler.host")


class GivenUp:
    """Quarantine every VM of the records, or some, under one pass, which is above every order ever sent here of them.

    Each answer to a report says it again, so what failed is done again, and nothing of it is kept but in the records.
    """

    def __init__(self, parts: Parts, quarantine: Callable[[HostOrder], Awaitable[object]]) -> None:
        self._parts = parts
        self._quarantine = quarantine
        self._working: asyncio.Task[None] | None = None
        self._done: set[tuple[str, int]] = set()

    def begin(self, epoch: int, pass_number: int, only: Collection[str] | None = None) -> None:
        """Begin, unless it is under way: a guest may take minutes to stop, and reports go on meanwhile."""
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self.run(epoch, pass_number, only), context=contextvars.Context())

    async def run(self, epoch: int, pass_number: int, only: Collection[str] | None = None) -> None:
        """Quarantine all VMs, or only some, a few at once; one that cannot be leaves the others to it."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(order: HostOrder) -> None:
            async with slots:
                try:
                    await self._quarantine(order)
                    self._done.add((order.vm_id, pass_number))
                except HostlerError as error:
                    _log.warning("VM %s, which is to be stopped and kept, still runs: %s", order.vm_id, error.detail)

        due = [
            entry
            for entry in self._parts.records
            if (only is None or entry.vm_id in only)
            and ((entry.vm_id, pass_number) not in self._done or self._runs(entry.vm_id))
        ]
        await asyncio.gather(
            *(one(self._order(entry, entry.status, epoch, pass_number)) for entry in due if entry.status is not None)
        )

    def _runs(self, vm_id: str) -> bool:
        return self._parts.seen.last(vm_id).process is not None

    def _order(self, entry: Entry, status: StoredStatus, epoch: int, pass_number: int) -> HostOrder:
        identity, record = self._parts.identity, status.record
        return HostOrder(
            vm_id=entry.vm_id,
            fence=Fence(
                fleet_id=identity.fleet_id,
                host_id=identity.host_id,
                instance_id=identity.instance_id,
                epoch=epoch,
                pass_number=pass_number,
                step=1,
            ),
            min_worker_version=None,
            input_digest=record.input_digest,
            power_state=PowerState.STOPPED,
            generation=record.applied_generation,
            spec_generation=record.applied_spec_generation,
            restart_generation=record.applied_restart_generation,
            rebuild_generation=record.applied_rebuild_generation,
            disk_gib=None,
            stop_timeout_seconds=entry.config.input.stop_timeout_seconds if entry.config else 0,
        )
