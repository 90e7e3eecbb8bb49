"""The story of a host's sync: its complete sets, under an epoch and a number, one at a time per host (H-S1 to H-S5).

What came of it is written by the newest number alone. A fenced, failed or missing answer acknowledges nothing, and
nothing is released or reaped because of one (H-S4, S-4).
"""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from activities.sync import SyncActivities, SyncStoreActivities
from model.fence import Fence
from model.sync import SyncDone, SyncEnd, SyncOrder, SyncRef, SyncRow, SyncStart
from model.temporal import LOOK_AGAIN, host_queue
from workflows import policies
from workflows.failures import FailureKind, read_failure
from workflows.store_calls import StoreAway, StoreCalls

ROUNDS = 3
"""A host that is woken again and again is left to the sweep after so many rounds: runs are short."""


@workflow.defn
class SyncHost(StoreCalls):
    """Bring a host's sets to what the control plane wants, and write down what it acknowledged."""

    @workflow.signal(name=LOOK_AGAIN)
    def look_again(self) -> None:
        """Who woke the host has raised its number of wakes; a poke carries nothing."""

    @workflow.run
    async def run(self, start: SyncStart) -> SyncEnd:
        """Sync until nobody has woken the host meanwhile."""
        end = SyncEnd(result="waiting")
        try:
            for turn in range(ROUNDS):
                ref = SyncRef(host_id=start.host_id, run_key=f"{workflow.info().run_id}#{turn}")
                row = await self.store(SyncStoreActivities.begin_sync, ref)
                if row is None:
                    return SyncEnd(result="gone")
                done = await self._sync(row)
                end = SyncEnd(result=done.result, number=row.number)
                if await self.store(SyncStoreActivities.finish_sync, done):
                    break
        except StoreAway:
            pass  # the host is due, and the sweep begins another run
        return end

    async def _sync(self, row: SyncRow) -> SyncDone:
        """Send the order, unless the host could not take it up."""
        if row.why is not None:
            return SyncDone(row=row, why=row.why)
        config = policies.SYNC.copy()
        config["task_queue"] = host_queue(row.host_id, row.instance_id)
        config["summary"] = "bringing the host's sets to what is wanted"
        try:
            answer = await workflow.execute_activity_method(SyncActivities.ensure_sets, _order(row), **config)
        except FailureError as error:
            if is_cancelled_exception(error):
                raise
            failure = read_failure(error, "sync")
            floored = failure.kind is FailureKind.BELOW_FLOOR
            return SyncDone(row=row, why="host_below_floor" if floored else "no_answer", error=failure.text)
        return SyncDone(row=row, answer=answer)


def _order(row: SyncRow) -> SyncOrder:
    fence = Fence(
        fleet_id=row.fleet_id,
        host_id=row.host_id,
        instance_id=row.instance_id,
        epoch=row.epoch,
        pass_number=row.number,
        step=1,
    )
    return SyncOrder(fence=fence, min_worker_version=row.min_worker_version, revision=row.revision)
