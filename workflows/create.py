"""The story of a create: take an attempt, prepare the host, image, disk, seed, boot, and record that it is done.

The order is `model.decide.next_step`'s; what each step does on the host is `activities.vm` and `activities.image`.
"""

from __future__ import annotations

from temporalio import workflow

from activities.image import ImageActivities
from activities.passes import PassActivities
from activities.vm import VmActivities
from model.passes import PassStart
from model.step import StepKind
from workflows import policies
from workflows.life import Pass, PassEnd


@workflow.defn
class CreateVm(Pass):
    """Bring a VM into being, or end with the reason why not (rules L-C)."""

    type = "CreateVm"

    @workflow.run
    async def run(self, start: PassStart) -> PassEnd:
        """Run one pass. The end is: ready, failed, waiting, or superseded."""
        return await self.live(start)

    async def take_attempt(self) -> None:
        """Count this pass once, before it changes anything on the host (L-C4)."""
        self.take(await self.store(PassActivities.take_attempt, self.ref))

    async def release(self) -> None:
        """An undeleted VM that never was ready leaves its quarantine and is made (L-R4)."""
        await self.host(VmActivities.ensure_released, policies.PROMPT)

    async def certify(self) -> None:
        """Have a host certificate for the VM's key; the pass ends and waits while there is none (L-C2)."""
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
        """Write host name, keys, user-data and network for the guest (L-C10)."""
        await self.host(VmActivities.ensure_seed, policies.PROMPT)

    async def boot(self) -> None:
        """Wait for a boot slot, attach the network and start the guest; its process is recorded before it runs."""
        await self.host(VmActivities.ensure_booted, policies.BOOT)
        self.booted = True

    async def pause(self) -> None:
        """A VM wanted paused is booted, then paused (L-C12)."""
        await self.host(VmActivities.ensure_paused, policies.PROMPT)

    async def complete(self) -> None:
        """Write the host's boot id on the record: from here on the VM exists (L-C1)."""
        await self.host(VmActivities.ensure_completed, policies.PROMPT)

    steps = {
        StepKind.RELEASE: release,
        StepKind.TAKE_ATTEMPT: take_attempt,
        StepKind.CERTIFY: certify,
        StepKind.PREPARE: prepare,
        StepKind.FETCH_IMAGE: fetch_image,
        StepKind.MAKE_DISK: make_disk,
        StepKind.WRITE_SEED: write_seed,
        StepKind.BOOT: boot,
        StepKind.PAUSE: pause,
        StepKind.COMPLETE: complete,
    }
