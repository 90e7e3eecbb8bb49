"""The prompt steps of one VM on its host. Each is safe to repeat, and answers what is there after it.

What a step does is the host's own (`drivers.host`); the names here are what Temporal and the report call them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio import activity

from activities.progress import report_progress
from model.record import HostOrder, View

if TYPE_CHECKING:
    from drivers.host.steps import HostSteps


class VmActivities:
    """Steps on the host's prompt queue."""

    def __init__(self, host: HostSteps) -> None:
        self._host = host

    @activity.defn
    async def find_vm(self, order: HostOrder) -> View:
        """Look, taking no lock; the order's fence is raised, so that what an older one still does ends."""
        return await self._host.look(order)

    @activity.defn
    async def ensure_certificate(self, order: HostOrder) -> View:
        """Have the VM's host key, made once, and its certificate on the host; it is no part of an attempt (L-C2)."""
        return await self._host.run(order, self._host.certify)

    @activity.defn
    async def ensure_prepared(self, order: HostOrder) -> View:
        """Begin an attempt of a create: what an earlier one left is ended and removed (L-C1)."""
        return await self._host.run(order, self._host.prepare)

    @activity.defn
    async def ensure_seed(self, order: HostOrder) -> View:
        """Write the seed from the order's input."""
        return await self._host.run(order, self._host.write_seed)

    @activity.defn
    async def ensure_volume(self, order: HostOrder) -> View:
        """Have the order's volume on the host, whole, and in the guest where it runs (H-V2)."""
        return await self._host.run(order, self._host.ensure_volume)

    @activity.defn
    async def ensure_volume_detached(self, order: HostOrder) -> View:
        """Take the order's volume out of the guest, and free it for other VMs of the host."""
        return await self._host.run(order, self._host.detach_volume)

    @activity.defn
    async def ensure_network(self, order: HostOrder) -> View:
        """Have what the VM's network lets through as is wanted, at once (N-5)."""
        return await self._host.run(order, self._host.set_network)

    @activity.defn
    async def ensure_booted(self, order: HostOrder) -> View:
        """Let one process run for the VM, once a boot slot is free."""
        return await self._host.run(order, self._host.boot, report_progress)

    @activity.defn
    async def ensure_completed(self, order: HostOrder) -> View:
        """Record that the create completed: the boot id is its sole witness (L-C1)."""
        return await self._host.run(order, self._host.complete)

    @activity.defn
    async def ensure_paused(self, order: HostOrder) -> View:
        return await self._host.run(order, self._host.pause)

    @activity.defn
    async def ensure_resumed(self, order: HostOrder) -> View:
        return await self._host.run(order, self._host.resume)

    @activity.defn
    async def ensure_stopped(self, order: HostOrder) -> View:
        """Ask the guest to stop, then kill it; return when it is proven gone (L-V3)."""
        return await self._host.run(order, self._host.stop)

    @activity.defn
    async def ensure_stop_recorded(self, order: HostOrder) -> View:
        """Record a stop of a guest that is gone already (L-V2)."""
        return await self._host.run(order, self._host.record_stop)

    @activity.defn
    async def ensure_restart_noted(self, order: HostOrder) -> View:
        """Record which process a restart replaces, before it is stopped (L-V7)."""
        return await self._host.run(order, self._host.note_restart)

    @activity.defn
    async def ensure_applied(self, order: HostOrder) -> View:
        """Record the generations that were applied (L-N3)."""
        return await self._host.run(order, self._host.apply)

    @activity.defn
    async def ensure_disk_size(self, order: HostOrder) -> View:
        """Grow the root disk, live or not (L-V8)."""
        return await self._host.run(order, self._host.grow_disk)

    @activity.defn
    async def ensure_disk_set_aside(self, order: HostOrder) -> View:
        """Put the root disk aside for a rebuild, or turn back to the one that was (L-V10)."""
        return await self._host.run(order, self._host.set_aside)

    @activity.defn
    async def ensure_kept_disk_removed(self, order: HostOrder) -> View:
        """Remove the root disk that a rebuild put aside (L-V10)."""
        return await self._host.run(order, self._host.drop_kept)

    @activity.defn
    async def ensure_quarantined(self, order: HostOrder) -> View:
        """Stop the guest for its quarantine; disk and address stay (L-R2)."""
        return await self._host.run(order, self._host.quarantine)

    @activity.defn
    async def ensure_released(self, order: HostOrder) -> View:
        """Take the VM out of its quarantine (L-R4)."""
        return await self._host.run(order, self._host.release)

    @activity.defn
    async def ensure_process_destroyed(self, order: HostOrder) -> View:
        """Prove the process dead, by force; the first of four (L-R5)."""
        return await self._host.run(order, self._host.destroy_process)

    @activity.defn
    async def ensure_network_destroyed(self, order: HostOrder) -> View:
        return await self._host.run(order, self._host.destroy_network)

    @activity.defn
    async def ensure_storage_destroyed(self, order: HostOrder) -> View:
        return await self._host.run(order, self._host.destroy_storage)

    @activity.defn
    async def ensure_records_destroyed(self, order: HostOrder) -> View:
        """Remove the VM's folder, last of all; its fence stays (L-G5)."""
        return await self._host.run(order, self._host.destroy_records)
