"""Keeping a VM as it is wanted: started, stopped, paused, restarted, grown, rebuilt, back after its host rebooted."""

from __future__ import annotations

from temporalio import workflow

from activities.passes import PassActivities
from activities.vm import VmActivities
from model.passes import PassStart
from model.step import StepKind
from workflows import policies
from workflows.life import PassEnd
from workflows.making import MakingPass
from workflows.setbacks import counted


@workflow.defn
class ConvergeVm(MakingPass):
    """Make what a VM does equal to what is wanted of it (rules L-V)."""

    type = "ConvergeVm"

    @workflow.run
    async def run(self, start: PassStart) -> PassEnd:
        """Run one pass. The end is: what is wanted is there, or what is left must wait."""
        return await self.live(start)

    async def count_setback(self) -> None:
        """Count what befell the guest, once, before it is brought up again (L-V4, L-V11)."""
        jitter = workflow.random().uniform(0.75, 1.25)
        outcome = counted(self.row, self.seen(), self.ref, self.step_number, jitter=jitter)
        self.take(await self.store(PassActivities.write_outcome, outcome))

    async def grow_disk(self) -> None:
        """Grow the root disk, live where the guest runs (L-V8)."""
        await self.host(VmActivities.ensure_disk_size, policies.PROMPT)

    async def set_aside(self) -> None:
        """Put the root disk aside for a new one, or bring the one that was put aside back (L-V10)."""
        await self.host(VmActivities.ensure_disk_set_aside, policies.PROMPT)

    async def drop_kept(self) -> None:
        """Remove the root disk that was put aside: its time is over."""
        await self.host(VmActivities.ensure_kept_disk_removed, policies.PROMPT)

    async def note_restart(self) -> None:
        """Name the process that a restart replaces, durably, before it is stopped (L-V7)."""
        await self.host(VmActivities.ensure_restart_noted, policies.PROMPT)

    async def record_stop(self) -> None:
        """The guest is gone and is wanted stopped: record it, boot nothing (L-V2)."""
        await self.host(VmActivities.ensure_stop_recorded, policies.PROMPT)

    async def resume(self) -> None:
        await self.host(VmActivities.ensure_resumed, policies.PROMPT)

    async def apply(self) -> None:
        """Record the applied generations on the host; the row is told afterwards (L-N3)."""
        await self.host(VmActivities.ensure_applied, policies.PROMPT)

    steps = {
        **MakingPass.making,
        StepKind.COUNT_SETBACK: count_setback,
        StepKind.GROW_DISK: grow_disk,
        StepKind.SET_ASIDE: set_aside,
        StepKind.DROP_KEPT: drop_kept,
        StepKind.NOTE_RESTART: note_restart,
        StepKind.RECORD_STOP: record_stop,
        StepKind.RESUME: resume,
        StepKind.APPLY: apply,
    }
