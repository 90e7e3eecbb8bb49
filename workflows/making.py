"""The steps that a create and a rebuild share: image, disk, seed, boot, and the record that all of it is there."""

from __future__ import annotations

from activities.image import ImageActivities
from activities.passes import PassActivities
from activities.vm import VmActivities
from model.passes import TakeOver
from model.step import StepKind
from workflows import policies
from workflows.life import Pass


class MakingPass(Pass):
    """A pass that may make a VM. The order is `model.decide`'s."""

    async def take_over(self) -> None:
        """The fleet was restored: the row's counters follow those of the host's record (L-N5)."""
        record = self.seen().record
        if record is not None:
            request = TakeOver(
                **self.ref.model_dump(),
                epoch=record.epoch,
                generation=record.applied_generation,
                spec_generation=record.applied_spec_generation,
                restart_generation=record.applied_restart_generation,
                rebuild_generation=record.applied_rebuild_generation,
            )
            self.take(await self.store(PassActivities.take_over, request))

    async def release(self) -> None:
        """An undeleted VM leaves its quarantine first (L-R4)."""
        await self.host(VmActivities.ensure_released, policies.PROMPT)

    async def certify(self) -> None:
        """Have a host certificate for the VM's key, or a renewed one; the pass ends and waits while there is none.

        The seed gets it next, and the guest reads it at its next boot (L-C2).
        """
        await self.host(VmActivities.ensure_certificate, policies.PROMPT)

    async def prepare(self) -> None:
        """Stop what an earlier attempt booted, fetch the input, draw user and address, write the record (L-C1)."""
        await self.host(VmActivities.ensure_prepared, policies.PROMPT)

    async def fetch_image(self) -> None:
        """Have every file of the image on the host, checked; wait in its queue for a create slot (L-C7, L-C8)."""
        await self.host(ImageActivities.ensure_image, policies.IMAGE, bulk=True)

    async def make_disk(self) -> None:
        """Clone the image to the wanted size, beside and renamed (L-C9)."""
        await self.host(ImageActivities.ensure_root_disk, policies.DISK, bulk=True)

    async def write_seed(self) -> None:
        """Write host name, keys, user-data and network for the guest, which reads them at its next boot (L-C10)."""
        await self.host(VmActivities.ensure_seed, policies.PROMPT)

    async def ensure_volume(self) -> None:
        """Have one volume on the host, as large as is wanted, and in the guest where it runs (H-V2)."""
        await self.host(VmActivities.ensure_volume, policies.PROMPT)

    async def detach_volume(self) -> None:
        """Take a volume from the VM, and out of its guest first where it runs."""
        await self.host(VmActivities.ensure_volume_detached, policies.PROMPT)

    async def set_network(self) -> None:
        """Have what the VM's network lets through as is wanted, at once, also while the guest runs (N-5)."""
        await self.host(VmActivities.ensure_network, policies.NETWORK)

    async def boot(self) -> None:
        """Wait for a boot slot, attach the network and start the guest; its process is recorded before it runs."""
        await self.host(VmActivities.ensure_booted, policies.BOOT)
        self.booted = self.view is None or self.view.waiting is None

    async def pause(self) -> None:
        """A VM wanted paused is booted, then paused (L-C12)."""
        await self.host(VmActivities.ensure_paused, policies.PROMPT)

    async def stop(self) -> None:
        """Ask the guest, then kill it; stopped only once its process is proven gone (L-V3)."""
        await self.host(VmActivities.ensure_stopped, policies.stop_step(self.row.stop_timeout_seconds))

    async def complete(self) -> None:
        """Record that every part is there: from here on the VM exists, or is rebuilt (L-C1, L-V10)."""
        await self.host(VmActivities.ensure_completed, policies.PROMPT)

    making = {
        StepKind.TAKE_OVER: take_over,
        StepKind.RELEASE: release,
        StepKind.CERTIFY: certify,
        StepKind.PREPARE: prepare,
        StepKind.FETCH_IMAGE: fetch_image,
        StepKind.MAKE_DISK: make_disk,
        StepKind.WRITE_SEED: write_seed,
        StepKind.ENSURE_VOLUME: ensure_volume,
        StepKind.DETACH_VOLUME: detach_volume,
        StepKind.SET_NETWORK: set_network,
        StepKind.BOOT: boot,
        StepKind.PAUSE: pause,
        StepKind.STOP: stop,
        StepKind.COMPLETE: complete,
    }
