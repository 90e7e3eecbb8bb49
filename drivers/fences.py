"""The highest order that this host has seen for each VM, durable before anything acts on it (L-G5)."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from drivers.durable import Write, make_folder, remove_durably, remove_leftovers, write_durably
from drivers.formats import FENCE, parse
from drivers.threads import in_thread
from model.base import Frozen
from model.errors import Fenced, Unreadable
from model.fence import Fence
from model.ids import check_label

KEPT_SECONDS = 30 * 86_400


class StoredFence(Frozen):
    """What a file of `fences/` holds. `gone_at`: Unix seconds since when nothing of the VM is left, None before."""

    format: int
    vm_id: str
    fence: Fence
    gone_at: float | None = None


class FenceStore:
    """Keep fences of one host instance; everything but `load` belongs to one event loop."""

    def __init__(
        self, folder: Path, *, fleet_id: str, host_id: str, instance_id: str, write: Write = write_durably
    ) -> None:
        self._folder = folder
        self._write_durably = write
        self._identity = (fleet_id, host_id, instance_id)
        self._durable: dict[str, StoredFence] = {}
        self._seen: dict[str, Fence] = {}
        self._unreadable: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def load(self) -> None:
        """Read every fence. One that cannot be read refuses its VM's orders; it is never taken for 0."""
        make_folder(self._folder)
        remove_leftovers(self._folder)
        for path in sorted(self._folder.glob("*.json")):
            vm_id = path.stem
            try:
                check_label(vm_id)
                stored = StoredFence.model_validate(parse(FENCE, path.name, path.read_bytes()))
            except Unreadable as error:
                self._unreadable[vm_id] = f"of the VM's fences: {error.detail}"
                continue
            except (OSError, ValueError):
                self._unreadable[vm_id] = f"the fence file {path.name} cannot be read: have an operator look at it"
                continue
            if stored.vm_id != vm_id:
                self._unreadable[vm_id] = f"the fence file {path.name} is another VM's: have an operator look at it"
                continue
            self._durable[vm_id] = stored
            self._seen[vm_id] = stored.fence

    def highest(self, vm_id: str) -> Fence | None:
        """Return the highest fence seen, for what the host does by itself (it raises none)."""
        return self._seen.get(vm_id)

    @property
    def last_pass(self) -> int:
        """The highest pass number of all orders that this host has seen and not forgotten."""
        return max((fence.pass_number for fence in self._seen.values()), default=0)

    def check_identity(self, fence: Fence) -> None:
        """Raise Fenced for an order of another fleet, host or instance."""
        if (fence.fleet_id, fence.host_id, fence.instance_id) != self._identity:
            raise Fenced("the order is meant for another fleet, host or instance of this host")

    def check(self, vm_id: str, fence: Fence) -> None:
        """Raise Fenced unless no higher order was seen for the VM; touches no disk, so that it can be asked often."""
        self.check_identity(fence)
        if vm_id in self._unreadable:
            raise Unreadable(self._unreadable[vm_id])
        seen = self._seen.get(vm_id)
        if seen is not None and fence.order < seen.order:
            raise Fenced(f"order {_show(fence)} is older than {_show(seen)}, which this host has seen")

    def see(self, vm_id: str, fence: Fence) -> None:
        """Compare on arrival and refuse all that is lower from this instant on; `make_durable` must follow."""
        check_label(vm_id)
        self.check(vm_id, fence)
        self._seen[vm_id] = fence

    async def make_durable(self, vm_id: str, fence: Fence) -> None:
        """Return once a fence at least as high is on disk, and still none higher was seen.

        Raises Fenced when a newer order came meanwhile, StepFailed or OutOfSpace when it cannot be written.
        """
        lock = self._locks.setdefault(vm_id, asyncio.Lock())
        async with lock:
            stored = self._durable.get(vm_id)
            if stored is None or stored.fence.order < fence.order or stored.gone_at is not None:
                await self._write(StoredFence(format=FENCE.format, vm_id=vm_id, fence=self._seen[vm_id]))
        self.check(vm_id, fence)

    async def mark_gone(self, vm_id: str) -> None:
        """Note that nothing is left of the VM: its fence is kept 30 days from now."""
        lock = self._locks.setdefault(vm_id, asyncio.Lock())
        async with lock:
            stored = self._durable.get(vm_id)
            if stored is not None and stored.gone_at is None:
                await self._write(stored.model_copy(update={"gone_at": time.time()}))

    async def tidy(self, now: float | None = None) -> None:
        """Forget the fences of VMs that have been gone for 30 days."""
        end = (time.time() if now is None else now) - KEPT_SECONDS
        for vm_id, stored in list(self._durable.items()):
            if stored.gone_at is not None and stored.gone_at < end and self._durable.get(vm_id) is stored:
                async with self._locks.setdefault(vm_id, asyncio.Lock()):
                    if self._durable.get(vm_id) is not stored:
                        continue
                    await in_thread(remove_durably, self._folder / f"{vm_id}.json")
                    del self._durable[vm_id]
                    self._seen.pop(vm_id, None)

    async def _write(self, stored: StoredFence) -> None:
        data = json.dumps(stored.model_dump(mode="json")).encode()
        await in_thread(self._write_durably, self._folder / f"{stored.vm_id}.json", data)
        self._durable[stored.vm_id] = stored


def _show(fence: Fence) -> str:
    return "/".join(map(str, fence.order))
