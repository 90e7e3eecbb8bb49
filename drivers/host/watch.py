"""Watching over a host's VMs without touching them: adoption at start, exits at once, slow looks as the backstop.

A worker's restart never touches a guest (H-E5): it is found again by the records, and only looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from drivers.console import ConsoleLog
from drivers.host.cache import ImagePolicies, make_room
from drivers.host.look import Looker, differs
from drivers.host.parts import Parts
from drivers.threads import in_thread
from model.errors import Busy, Fenced, HostlerError
from model.record import Observed

SLOW_SECONDS = 60.0
KEEP_SECONDS = 60.0
PROBE_SECONDS = 10.0
CAUSE_SECONDS = 10.0
"""How often a guest is looked at whose hypervisor paused it for what is still there."""
TIDY_SECONDS = 3600.0
BUSY_LOOK_SECONDS = 0.5
LIFE_SECONDS = 30.0
LIFE_LOOK_SECONDS = 0.25
CONSOLE_LIMIT_BYTES = 4 << 20
LOOKS_AT_ONCE = 4
_log = logging.getLogger("hostler.watch")


class Watch:
    """Keep what was seen of each VM fresh. Everything runs in tasks of its own that belong to no job."""

    def __init__(self, parts: Parts, looker: Looker, policies: ImagePolicies) -> None:
        self.unmanaged = 0
        self.floored = False
        """Whether this worker is below the fleet's floor: then it looks at no VM, and writes no record (H-S5)."""
        self._policies = policies
        self._parts = parts
        self._looker = looker
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, float] = {}
        self._soon: set[str] = set()
        self._looking = asyncio.Semaphore(LOOKS_AT_ONCE)
        parts.started = self.follow
        parts.stopped = self.leave

    async def run(self) -> None:
        """Adopt every VM of the records, then look again and again until cancelled."""
        kept = probed = tidied = time.monotonic()
        try:
            while True:
                self._look_at_due()
                self._parts.create_slots.advance()
                self._parts.boot_slots.advance()
                if time.monotonic() - kept > KEEP_SECONDS:
                    kept = time.monotonic()
                    await self._attempt("keep the network", self._parts.network.keep())
                    await self._attempt("count processes", self.count_unmanaged())
                    await self._attempt("make room", make_room(self._parts, self._policies))
                    self._policies.fetch_ahead()
                    await self._attempt("keep the reserve", in_thread(self._parts.reserve.keep))
                if time.monotonic() - probed > PROBE_SECONDS:
                    probed = time.monotonic()
                    await self._attempt("find out what can run here", self._parts.probe())
                if time.monotonic() - tidied > TIDY_SECONDS:
                    tidied = time.monotonic()
                    await self._attempt("tidy fences", self._parts.jobs.fences.tidy())
                await asyncio.sleep(1)
        finally:
            await self.close()

    async def close(self) -> None:
        """End every watcher; the guests go on."""
        await self._policies.close()
        tasks = [*self._tasks, *self._following.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def adopt(self) -> None:
        """Look at every VM of the records once, so that the first report tells what is (H-E5, case B11)."""
        await self.count_unmanaged()
        await asyncio.gather(*(self._look_slowly(entry.vm_id) for entry in self._parts.records))

    async def count_unmanaged(self) -> None:
        """Count live processes of our users that no readable record accounts for."""
        known = {entry.config.allocation.uid for entry in self._parts.records if entry.config is not None}
        found = await self._parts.hypervisor.find_processes()
        self.unmanaged = len({process.uid for process in found} - known)

    def _look_at_due(self) -> None:
        """Begin the slow look of each VM whose time has come, 60 s ± 20 % after its last (L-G1, H-S12)."""
        now = time.monotonic()
        present = {entry.vm_id for entry in self._parts.records}
        for vm_id in list(self._due):
            if vm_id not in present:
                del self._due[vm_id]
        for vm_id in present:
            if self._due.setdefault(vm_id, now + _jittered()) <= now:
                self._due[vm_id] = now + _jittered()
                self._begin(self._look_slowly(vm_id))

    async def _look_slowly(self, vm_id: str) -> None:
        async with self._looking:
            self._due[vm_id] = time.monotonic() + _jittered()
            await self.look(vm_id)

    def look_soon(self, vm_id: str) -> None:
        """Look at a VM now, without waiting for it; what a look that has not begun yet will see needs no other."""
        if vm_id not in self._soon:
            self._soon.add(vm_id)
            self._begin(self._look_now(vm_id))

    async def _look_now(self, vm_id: str) -> None:
        self._soon.discard(vm_id)
        await self.look(vm_id)

    async def look(self, vm_id: str) -> None:
        """Look at a VM of the host's own accord; what an operation overlaps is void and looked at again (case B6)."""
        while not self.floored:
            try:
                observed = await self._look_between_operations(vm_id)
            except Fenced:
                await asyncio.sleep(BUSY_LOOK_SECONDS)
                continue
            except HostlerError as error:
                _log.warning("VM %s cannot be looked at: %s", vm_id, error.detail)
                return
            if observed.process is not None:
                self.follow(vm_id)
            if observed.cause_remains:
                self._due[vm_id] = time.monotonic() + CAUSE_SECONDS
            if not observed.network:
                await self._attempt(f"repair the network of VM {vm_id}", self._repair_network(vm_id, observed))
            return

    async def _look_between_operations(self, vm_id: str) -> Observed:
        jobs = self._parts.jobs
        before = jobs.ended.get(vm_id, 0)

        def guard() -> None:
            if jobs.is_busy(vm_id) or jobs.ended.get(vm_id, 0) != before:
                raise Fenced("an operation has changed the VM since it was looked at")

        guard()
        sight = await self._looker.look(vm_id, guard)
        guard()
        entry = self._parts.records.find(vm_id)
        record = entry.status.record if entry and entry.status else None
        return await self._parts.seen.note(vm_id, sight.observed, guard, look=differs(record, sight.observed))

    async def _repair_network(self, vm_id: str, observed: Observed) -> None:
        """Give a VM that lives, or is stopped on this host, its network back: after a reboot all of it (N-8)."""
        entry = self._parts.records.find(vm_id)
        if entry is None or entry.config is None or entry.status is None:
            return
        record = entry.status.record
        if record.boot_id is None or record.destroyed or (record.quarantined_at is not None and not observed.process):
            return
        with contextlib.suppress(Busy, Fenced):  # whoever has an order for it sees to its network
            async with self._parts.jobs.own_initiative(vm_id) as job, job.locked():
                await self._parts.network.ensure(self._parts.attachment(entry.config), guard=job.guard)

    def follow(self, vm_id: str) -> None:
        """Watch a VM's process to its end, and take what its console says."""
        running = self._following.get(vm_id)
        if running is None or running.done():
            context = contextvars.Context()
            self._following[vm_id] = asyncio.create_task(self._follow(vm_id), name=f"watch {vm_id}", context=context)
        if self._parts.boot_slots.holds(vm_id):
            self._begin(self._await_life(vm_id))

    def leave(self, vm_id: str) -> None:
        """Stop watching a VM whose folder is about to go."""
        task = self._following.pop(vm_id, None)
        if task is not None:
            task.cancel()

    async def _follow(self, vm_id: str) -> None:
        entry = self._parts.records.find(vm_id)
        if entry is None or entry.config is None or entry.status is None or entry.status.process is None:
            return
        guest, process = self._parts.guest(entry.config, entry.status), entry.status.process
        console = ConsoleLog(self._parts.paths.folder(vm_id), CONSOLE_LIMIT_BYTES)
        sockets = self._parts.hypervisor.find_console(guest)
        if sockets is None:
            self._parts.boot_slots.release(vm_id)  # no first word to wait for
        else:
            console.start(sockets)
        try:
            async for _ in self._parts.hypervisor.watch(guest, process):
                self.look_soon(vm_id)
        except HostlerError as error:
            _log.warning("VM %s is not watched until its next look: %s", vm_id, error.detail)
        finally:
            await console.stop()
        # A process that took this one's place while it ended is watched in its turn.
        self._following.pop(vm_id, None)
        self.look_soon(vm_id)

    async def _await_life(self, vm_id: str) -> None:
        """Give the boot slot back at the guest's first word on its console, at the latest after 30 s (L-C7)."""
        log = self._parts.paths.folder(vm_id) / "console.log"
        before, deadline = await in_thread(_size, log), time.monotonic() + LIFE_SECONDS
        while time.monotonic() < deadline and self._parts.boot_slots.holds(vm_id):
            if await in_thread(_size, log) != before:
                break
            await asyncio.sleep(LIFE_LOOK_SECONDS)
        self._parts.boot_slots.release(vm_id)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, wish: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HostlerError as error:
            _log.warning("could not %s: %s", wish, error.detail)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _jittered() -> float:
    return SLOW_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreading, no secret
