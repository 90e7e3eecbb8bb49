"""The end of a VM: stopped and kept for its grace, then destroyed in order, then proven gone."""

from __future__ import annotations

from temporalio import workflow

from activities.passes import PassActivities
from activities.vm import VmActivities
from model.passes import PassStart
from model.step import StepKind
from workflows import policies
from workflows.life import Pass, PassEnd


@workflow.defn
class ReapVm(Pass):
    """Quarantine a deleted VM, wait out its grace on a durable timer, destroy it (rules L-R)."""

    type = "ReapVm"

    @workflow.run
    async def run(self, start: PassStart) -> PassEnd:
        """Run until the VM is gone, undeleted, or what is left must wait."""
        while True:
            end = await self.live(start)
            if end.wait is None:
                return end
            await self.wait_inside(end.wait, "quarantine: until destroy_at")

    async def quarantine(self) -> None:
        """Write the stop intent and the moment, then stop the guest; its disk and address stay (L-R2)."""
        await self.host(VmActivities.ensure_quarantined, policies.stop_step(self.row.stop_timeout_seconds))

    async def note_stopped(self) -> None:
        """A guest that is proven stopped late still gets its grace (L-R3)."""
        self.take(await self.store(PassActivities.note_stopped, self.ref))

    async def mark_destroying(self) -> None:
        """Pass the point of no return, unless an undelete, a hold or a freeze came first (L-R4)."""
        self.take(await self.store(PassActivities.mark_destroying, self.ref))

    async def destroy_process(self) -> None:
        """Prove the process dead before anything is forgotten (L-R5)."""
        await self.host(VmActivities.ensure_process_destroyed, policies.PROMPT)

    async def destroy_network(self) -> None:
        await self.host(VmActivities.ensure_network_destroyed, policies.PROMPT)

    async def destroy_storage(self) -> None:
        await self.host(VmActivities.ensure_storage_destroyed, policies.PROMPT)

    async def destroy_records(self) -> None:
        await self.host(VmActivities.ensure_records_destroyed, policies.PROMPT)

    async def record_gone(self) -> None:
        """The host searched and found nothing: release row, name and address (L-R6)."""
        if await self.store(PassActivities.record_gone, self.ref):
            self.end_as_gone()
        else:
            await self.read_again()

    steps = {
        StepKind.QUARANTINE: quarantine,
        StepKind.NOTE_STOPPED: note_stopped,
        StepKind.MARK_DESTROYING: mark_destroying,
        StepKind.DESTROY_PROCESS: destroy_process,
        StepKind.DESTROY_NETWORK: destroy_network,
        StepKind.DESTROY_STORAGE: destroy_storage,
        StepKind.DESTROY_RECORDS: destroy_records,
        StepKind.RECORD_GONE: record_gone,
    }
