"""A host's sync: what its run reads and writes in the store, and the one step on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio import activity

from model.sync import SyncAnswer, SyncDone, SyncOrder, SyncRef, SyncRow

if TYPE_CHECKING:
    from drivers.host.sync import SyncSteps
    from store.sync import SyncStore


class SyncStoreActivities:
    """A host's row as its syncs see it; each call may be repeated."""

    def __init__(self, store: SyncStore) -> None:
        self._store = store

    @activity.defn
    async def begin_sync(self, ref: SyncRef) -> SyncRow | None:
        """Draw the sync's number; None when there is no such host any more."""
        return await self._store.begin(ref)

    @activity.defn
    async def finish_sync(self, done: SyncDone) -> bool:
        """Write what came of it; False when somebody woke the host meanwhile."""
        return await self._store.finish(done)


class SyncActivities:
    """The step on the host's prompt queue."""

    def __init__(self, sync: SyncSteps) -> None:
        self._sync = sync

    @activity.defn
    async def ensure_sets(self, order: SyncOrder) -> SyncAnswer:
        """Have every set of the order's revision on the host; an order below the highest seen changes nothing."""
        return await self._sync.ensure(order)
