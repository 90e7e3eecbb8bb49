"""One operation at a time on each VM of this host, and the newest order wins (L-G2, L-G5).

    async with jobs.order(vm_id, fence) as job:     # compared, durable; older orders in hand are cancelled
        ...                                         # waiting for an image or a slot: the lock is free
        async with job.locked():                    # the VM's lock; Busy after 5 s
            job.guard()                             # before each record write and side effect

The lock is free only when the last thread that a step began has ended, also when its task was cancelled in the middle.
Children are ended and awaited by the drivers that start them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from drivers.durable import make_folder
from drivers.fences import FenceStore
from drivers.threads import OWNER, OwnedExecutor, finish
from model.errors import Busy, Fenced
from model.fence import Fence
from model.ids import check_label

BUSY_SECONDS = 5.0
RETRY_SECONDS = 0.05
THREADS = 64


class Job:
    """An order in hand: its fence, and the threads that were begun for it."""

    def __init__(self, jobs: Jobs, vm_id: str, fence: Fence, *, own_initiative: bool) -> None:
        self.vm_id = vm_id
        self.fence = fence
        self.own_initiative = own_initiative
        self.is_locked = False
        self._jobs = jobs
        self._task = asyncio.current_task()
        self._threads: set[Future[Any]] = set()
        self._superseded = False

    def guard(self) -> None:
        """Raise Fenced when a newer order was seen; synchronous, so that nothing comes between it and the act."""
        if self._superseded:
            raise Fenced("a newer order for this VM has arrived")
        self._jobs.fences.check(self.vm_id, self.fence)

    def own(self, thread: Future[Any]) -> None:
        """Note a thread that must end before the VM's lock is free."""
        self._threads.add(thread)
        thread.add_done_callback(self._threads.discard)

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Hold the VM's lock; raise Busy when an earlier step does not end within 5 s."""
        async with self._jobs.lock(self.vm_id):
            self.guard()
            token = OWNER.set(self)
            self.is_locked = True
            try:
                yield
            finally:
                self.is_locked = False
                OWNER.reset(token)
                await finish(self.await_threads())

    async def await_threads(self) -> None:
        while threads := set(self._threads):
            await asyncio.wait([asyncio.wrap_future(_Quiet(thread)) for thread in threads])

    def supersede(self) -> None:
        """End the order there and then: a newer one has come."""
        if not self._superseded:
            self._superseded = True
            if self._task is not None:
                self._task.cancel()

    def settle(self) -> None:
        """Turn the cancel that `supersede` made into Fenced, unless the task is cancelled by others too."""
        if self._superseded and (self._task is None or self._task.uncancel() == 0):
            raise Fenced("a newer order for this VM has arrived: this one was ended")


class _Quiet(Future[None]):
    """Follow another future's end without its result, and without cancelling it."""

    def __init__(self, thread: Future[Any]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        thread.add_done_callback(lambda _: self.set_result(None))


class Jobs:
    """Every order in hand on this host, and the locks of its VMs (files outside the VMs' folders).

    machines: where the VMs' folders are; the lock of a VM without one is not kept. None: all locks are.
    """

    def __init__(self, folder: Path, fences: FenceStore, *, machines: Path | None = None) -> None:
        self.fences = fences
        self.ended: dict[str, int] = {}
        """How many locked operations of a VM have ended: an observation across one of them is void (case B6)."""
        self._folder = folder
        self._machines = machines
        self._orders: dict[str, set[Job]] = {}
        self._holders: dict[str, asyncio.Lock] = {}

    def start(self) -> None:
        """Prepare the folder, and let the running loop's threads be owned by the jobs that begin them."""
        make_folder(self._folder)
        asyncio.get_running_loop().set_default_executor(OwnedExecutor(THREADS, "host"))

    @contextlib.asynccontextmanager
    async def order(self, vm_id: str, fence: Fence) -> AsyncGenerator[Job]:
        """Enter an order; raises Fenced when it is older than one already seen, or becomes so while it is in hand."""
        self.fences.see(vm_id, fence)
        for other in list(self._orders.get(vm_id, ())):
            if other.own_initiative or other.fence.order < fence.order:
                other.supersede()
        async with self._in_hand(Job(self, vm_id, fence, own_initiative=False)) as job:
            await self.fences.make_durable(vm_id, fence)
            yield job

    @contextlib.asynccontextmanager
    async def own_initiative(self, vm_id: str) -> AsyncGenerator[Job]:
        """Enter what the host starts by itself (H-E6): under the highest fence seen, cancelled by any order.

        Raises Busy when an order is in hand, Fenced when the VM never had one.
        """
        fence = self.fences.highest(vm_id)
        if fence is None:
            raise Fenced("no order for this VM has been seen: the host does nothing with it by itself")
        if self._orders.get(vm_id):
            raise Busy("an order for this VM is in hand")
        async with self._in_hand(Job(self, vm_id, fence, own_initiative=True)) as job:
            yield job

    def is_busy(self, vm_id: str) -> bool:
        """Say whether an operation holds the VM's lock."""
        return any(job.is_locked for job in self._orders.get(vm_id, ()))

    @contextlib.asynccontextmanager
    async def _in_hand(self, job: Job) -> AsyncGenerator[Job]:
        orders = self._orders.setdefault(job.vm_id, set())
        orders.add(job)
        try:
            yield job
        except BaseException:
            job.settle()
            raise
        else:
            job.settle()
        finally:
            orders.discard(job)
            if not orders and self._orders.get(job.vm_id) is orders:
                del self._orders[job.vm_id]

    @contextlib.asynccontextmanager
    async def lock(self, vm_id: str) -> AsyncGenerator[None]:
        """Hold a VM's lock, in this process and by flock; raise Busy after 5 s."""
        holder = self._holders.setdefault(check_label(vm_id), asyncio.Lock())
        deadline = time.monotonic() + BUSY_SECONDS
        try:
            async with asyncio.timeout(BUSY_SECONDS):
                await holder.acquire()
        except TimeoutError as error:
            raise Busy("an earlier step of this VM has not ended yet") from error
        try:
            descriptor = await self._flock(vm_id, deadline)
            try:
                yield
            finally:
                # Nothing is left of the VM, or nothing of it ever was here: its lock goes, too.
                with contextlib.suppress(OSError):  # a folder that cannot be looked at may be there
                    if self._machines is not None and not (self._machines / vm_id).exists():
                        self._path(vm_id).unlink()
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)
        finally:
            self.ended[vm_id] = self.ended.get(vm_id, 0) + 1
            holder.release()

    def _path(self, vm_id: str) -> Path:
        return self._folder / f"{vm_id}.lock"

    async def _flock(self, vm_id: str, deadline: float) -> int:
        path = self._path(vm_id)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                await _lock(descriptor, deadline)
                # The last operation of a VM removes the file under the lock: what was waited for is no lock then.
                if os.fstat(descriptor).st_nlink:
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


async def _lock(descriptor: int, deadline: float) -> None:
    """Take the flock; raise Busy at the deadline."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise Busy("an earlier step of this VM has not ended yet") from error
        await asyncio.sleep(RETRY_SECONDS)
