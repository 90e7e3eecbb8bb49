"""Keeping a VM as it is wanted: started, stopped, paused, restarted, grown, back after a reboot of its host."""

from __future__ import annotations

from temporalio import workflow

from activities.vm import VmActivities
from model.passes import PassStart
from model.step import StepKind
from workflows import policies
from workflows.life import Pass, PassEnd


@workflow.defn
class ConvergeVm(Pass):
    """Make what a VM does equal to what is wanted of it (rules L-V)."""

    type = "ConvergeVm"

    @workflow.run
    async def run(self, start: PassStart) -> PassEnd:
        """Run one pass. The end is: what is wanted is there, or what is left must wait."""
        return await self.live(start)

    async def release(self) -> None:
        """An undeleted VM leaves its quarantine first (L-R4)."""
        await self.host(VmActivities.ensure_released, policies.PROMPT)

    async def grow_disk(self) -> None:
        """Grow the root disk, live where the guest runs (L-V8)."""
        await self.host(VmActivities.ensure_disk_size, policies.PROMPT)

    async def write_seed(self) -> None:
        """Changed keys and metadata go into the seed at once; the guest reads them at its next boot."""
        await self.host(VmActivities.ensure_seed, policies.PROMPT)

    async def note_restart(self) -> None:
        """Name the process that a restart replaces, durably, before it is stopped (L-V7)."""
        await self.host(VmActivities.ensure_restart_noted, policies.PROMPT)

    async def stop(self) -> None:
        """Ask the guest, then kill it; stopped only once its process is proven gone (L-V3)."""
        await self.host(VmActivities.ensure_stopped, policies.stop_step(self.row.stop_timeout_seconds))

    async def record_stop(self) -> None:
        """The guest is gone and is wanted stopped: record it, boot nothing (L-V2)."""
        await self.host(VmActivities.ensure_stop_recorded, policies.PROMPT)

    async def boot(self) -> None:
        """Boot a VM that is lost or stopped and wanted up; its network is made to match first (L-V2)."""
        await self.host(VmActivities.ensure_booted, policies.BOOT)
        self.booted = True

    async def pause(self) -> None:
        await self.host(VmActivities.ensure_paused, policies.PROMPT)

    async def resume(self) -> None:
        await self.host(VmActivities.ensure_resumed, policies.PROMPT)

    async def certify(self) -> None:
        """Fetch a renewed host certificate; the seed gets it next, the guest reads it at its next boot (L-C2)."""
        await self.host(VmActivities.ensure_certificate, policies.PROMPT)

    async def apply(self) -> None:
        """Record the applied generations on the host; the row is told afterwards (L-N3)."""
        await self.host(VmActivities.ensure_applied, policies.PROMPT)

    steps = {
        StepKind.RELEASE: release,
        StepKind.GROW_DISK: grow_disk,
        StepKind.WRITE_SEED: write_seed,
        StepKind.NOTE_RESTART: note_restart,
        StepKind.STOP: stop,
        StepKind.RECORD_STOP: record_stop,
        StepKind.BOOT: boot,
        StepKind.PAUSE: pause,
        StepKind.RESUME: resume,
        StepKind.CERTIFY: certify,
        StepKind.APPLY: apply,
    }
