"""Image, root disk and seed of a VM on this host (L-C8 to L-C10)."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Generator

from drivers.headers import DiskFormat
from drivers.host.parts import GIB, Parts
from drivers.host.prepare import attempt_of, check_memory, is_making, progressed
from drivers.image_files import stem
from drivers.images import BaseImage, FetchProgress, ImageFile
from drivers.jobs import Job
from drivers.ledger import wish_of
from drivers.seed import SeedInput, seed_image, write_seed
from drivers.stored import StoredConfig, StoredImages, StoredStatus
from drivers.threads import in_thread
from model.capacity import Entitlement
from model.errors import HostlerError, NoRoom, Permanent, StepFailed, Unavailable
from model.record import HostOrder, Refusal
from model.vm import Image

IMAGE_SECONDS = 600.0
MIB = 1 << 20
Say = Callable[[str], None]


class StorageSteps:
    """Fetch images, make and grow root disks, write seeds."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def fetch_image(self, job: Job, order: HostOrder, say: Say) -> str | None:
        """Have every file of the image here, inside a create slot; the text of L-G10 when that must wait.

        The VM's lock is free meanwhile: a stop or delete never waits for a download.
        """
        vm_id = order.vm_id
        attempt_of(self._parts.records.status(vm_id).record, order)
        config = self._parts.records.config(vm_id)
        waiting = await self._take_slot(config, say)
        if waiting is not None:
            return waiting
        with self._in_slot(vm_id):
            found, text = await self._ensure_files(config.input.image, say)
            if text is not None:
                return text
            names = StoredImages(
                rootfs=found["rootfs"].path.name,
                rootfs_format=found["rootfs"].format,
                kernel=found["kernel"].path.name if "kernel" in found else None,
                initrd=found["initrd"].path.name if "initrd" in found else None,
            )
            async with job.locked():
                await self._parts.records.update(vm_id, lambda now: _with_images(now, order, names), job.guard)
        return None

    async def _take_slot(self, config: StoredConfig, say: Say) -> str | None:
        wanted = config.input
        return await self._parts.create_slots.take(
            config.vm_id, say, boot_priority=wanted.boot_priority, created_at=wanted.created_at
        )

    @contextlib.contextmanager
    def _in_slot(self, vm_id: str) -> Generator[None]:
        """Use the VM's create slot; a step that fails gives it back, one that is cut off keeps its place."""
        slots = self._parts.create_slots
        with slots.used(vm_id):
            try:
                yield
            except HostlerError:
                slots.release(vm_id)
                raise

    async def _ensure_files(self, image: Image, say: Say) -> tuple[dict[str, BaseImage], str | None]:
        deadline = time.monotonic() + IMAGE_SECONDS
        found: dict[str, BaseImage] = {}
        for file in image_files(image):
            said = "fetching the image"

            def tell(progress: FetchProgress) -> None:
                nonlocal said
                said = describe_progress(progress)
                say(said)

            base = await self._parts.images.ensure(
                image.owner, file, on_progress=tell, wait_seconds=max(0.0, deadline - time.monotonic())
            )
            if base is None:
                return found, said
            found[file.kind] = base
        return found, None

    async def make_disk(self, job: Job, order: HostOrder, say: Say) -> str | None:
        """Make the root disk beside its place and rename it; the create slot is given back at the end (L-C9)."""
        vm_id, parts = order.vm_id, self._parts
        attempt_of(parts.records.status(vm_id).record, order)
        config = parts.records.config(vm_id)
        waiting = await self._take_slot(config, say)
        if waiting is not None:
            return waiting
        with self._in_slot(vm_id):
            say("making the root disk")
            async with job.locked():
                record = parts.records.status(vm_id).record
                attempt_of(record, order)
                base = await self._find_rootfs(config.input.image)
                uid = config.allocation.uid
                size = None if order.disk_gib is None else order.disk_gib * GIB
                wish = Entitlement(disk_gib=-(-(size or base.virtual_size_bytes) // GIB))

                def change(status: StoredStatus) -> StoredStatus:
                    status = progressed(status, order, disk=True)
                    record = status.record.model_copy(update={"disk_bytes": made.virtual_size_bytes})
                    return status.model_copy(update={"record": record})

                with parts.ledger.admitted(vm_id, wish):  # as large as its image: known only now (H-A1)
                    made = await parts.disks_of(config).make_overlay(
                        base, parts.paths.disk(vm_id, record.disk), size, uid=uid, gid=uid, guard=job.guard
                    )
                    await parts.records.update(vm_id, change, job.guard)
        parts.create_slots.release(vm_id)
        return None

    async def _find_rootfs(self, image: Image) -> BaseImage:
        base = await in_thread(self._parts.images.find, image.owner, image_files(image)[0])
        if base is None:
            raise StepFailed("the image is not on the host any more: it is fetched again")
        return base

    async def write_seed(self, job: Job, order: HostOrder) -> None:
        """Write the seed from the input of the order's digest; of a completed VM that may be a newer one (L-V8).

        One that this host cannot give a VM that lives is refused: noted, and the VM keeps what it has.
        """
        vm_id, records = order.vm_id, self._parts.records
        status, config = records.status(vm_id), records.config(vm_id)
        if is_making(status.record):
            attempt_of(status.record, order)
        if config.input.digest == order.input_digest:
            await self._write_seed(job, order, config)
            return
        config = config.model_copy(update={"input": await self._parts.fetch_input(vm_id, order.input_digest)})
        async with self._admitted(job, order, wish_of(config.input)) as fits:
            if fits:
                await self._write_seed(job, order, config)

    async def _write_seed(self, job: Job, order: HostOrder, config: StoredConfig) -> None:
        vm_id, records = order.vm_id, self._parts.records
        data = await in_thread(seed_image, describe_seed(config))
        async with job.locked():
            await records.write_config(config, job.guard)
            uid = self._parts.owner(config)
            await write_seed(self._parts.paths.seed(vm_id), data, uid=uid, gid=uid, guard=job.guard)

            def change(now: StoredStatus) -> StoredStatus:
                if is_making(now.record):
                    now = progressed(now, order, seed=True)
                digests = {"seed_digest": order.input_digest, "input_digest": order.input_digest, "refused": None}
                return now.model_copy(update={"record": now.record.model_copy(update=digests)})

            await records.update(vm_id, change, job.guard)

    @contextlib.asynccontextmanager
    async def _admitted(self, job: Job, order: HostOrder, wish: Entitlement) -> AsyncGenerator[bool]:
        """Commit for the block what a VM is to have from now on; False where this host cannot give it that.

        A VM that lives keeps what it has then, and its record says why (L-V8); while it is being made, it is raised.
        """
        with contextlib.ExitStack() as stack:
            try:
                check_memory(wish.memory_mib)
                stack.enter_context(self._parts.ledger.admitted(order.vm_id, wish))
            except (Permanent, NoRoom) as error:
                if is_making(self._parts.records.status(order.vm_id).record):
                    raise
                await self._note_refused(job, order, error.detail)
                yield False
                return
            yield True

    async def _note_refused(self, job: Job, order: HostOrder, reason: str) -> None:
        refused = Refusal(digest=order.input_digest, boot_id=self._parts.boot_id(), reason=reason)

        def change(now: StoredStatus) -> StoredStatus:
            return now.model_copy(update={"record": now.record.model_copy(update={"refused": refused})})

        async with job.locked():
            await self._parts.records.update(order.vm_id, change, job.guard)

    async def grow_disk(self, job: Job, order: HostOrder) -> None:
        """Grow the root disk to the order's size, live or not; a smaller one is refused (L-V8)."""
        if order.disk_gib is None:
            return
        async with self._admitted(job, order, Entitlement(disk_gib=order.disk_gib)) as fits:
            if not fits:
                return
            async with job.locked():
                await self._grow(job, order, order.disk_gib * GIB)

    async def _grow(self, job: Job, order: HostOrder, size: int) -> None:
        vm_id, records = order.vm_id, self._parts.records
        status, config = records.status(vm_id), records.config(vm_id)
        if status.record.disk_bytes == size:
            return
        if status.record.disk_bytes is not None and size < status.record.disk_bytes:
            raise Permanent(f"a disk only grows: it has {status.record.disk_bytes >> 30} GiB already")
        guest = self._parts.guest(config, status)
        state = await self._parts.hypervisor.find(guest, status.process)
        if state.process is None:
            uid = config.allocation.uid
            disks, path = self._parts.disks_of(config), self._parts.paths.disk(vm_id, status.record.disk)
            await disks.grow(path, size, uid=uid, gid=uid, guard=job.guard)
        elif state.power is None or state.process != status.process:
            raise Unavailable("the guest's process does not answer: its disk is grown when it does")
        else:
            job.guard()
            await self._parts.hypervisor.grow_disk(guest, state.process, size)

        def change(now: StoredStatus) -> StoredStatus:
            return now.model_copy(update={"record": now.record.model_copy(update={"disk_bytes": size})})

        await records.update(vm_id, change, job.guard)


async def abandon_image(parts: Parts, vm_id: str) -> None:
    """End the fetch of a VM that is not to be made any more, unless another one waits for the same file (case O7)."""
    image = parts.records.config(vm_id).input.image
    wanted = {
        stem(entry.config.input.image.owner, file)
        for entry in parts.records
        if entry.vm_id != vm_id and entry.config is not None and _is_being_made(entry.status)
        for file in image_files(entry.config.input.image)
    }
    for file in image_files(image):
        if stem(image.owner, file) not in wanted:
            await parts.images.abandon(image.owner, file)


def _is_being_made(status: StoredStatus | None) -> bool:
    return status is not None and is_making(status.record) and status.record.quarantined_at is None


def _with_images(status: StoredStatus, order: HostOrder, found: StoredImages) -> StoredStatus:
    """Note the image's files. A disk that was brought back reads through to the very file that it was made from."""
    now = progressed(status, order, image=True)
    brought_back = now.record.create is not None and now.record.create.undo
    if brought_back and status.images is not None and status.images.rootfs != found.rootfs:
        raise Permanent("the root disk that was put aside was made from another image: it cannot be brought back")
    return now.model_copy(update={"images": found})


def image_files(image: Image) -> tuple[ImageFile, ...]:
    """List an image's files as they are fetched, the root disk's first."""
    disk_format: DiskFormat | None = image.format
    files = [ImageFile(image.rootfs.url, image.rootfs.sha256, disk_format, "rootfs")]
    if image.kernel is not None:
        files.append(ImageFile(image.kernel.url, image.kernel.sha256, None, "kernel"))
    if image.initrd is not None:
        files.append(ImageFile(image.initrd.url, image.initrd.sha256, None, "initrd"))
    return tuple(files)


def describe_progress(progress: FetchProgress) -> str:
    """Say how far a fetch is: without a known total the amount alone, MiB below one GiB (L-G10)."""
    done, total = progress.done_bytes, progress.total_bytes
    if total is None:
        return f"fetching the image: {_amount(done, done)}"
    return f"fetching the image: {_amount(done, total, unit=False)} of {_amount(total, total)}"


def _amount(size: int, largest: int, *, unit: bool = True) -> str:
    if largest < GIB:
        return f"{size // MIB}{' MiB' if unit else ''}"
    return f"{size / GIB:.1f}{' GiB' if unit else ''}"


def describe_seed(config: StoredConfig) -> SeedInput:
    """Say what a guest is told of itself."""
    wanted = config.input
    return SeedInput(
        vm_id=config.vm_id,
        hostname=wanted.name,
        ssh_authorized_keys=wanted.ssh_authorized_keys,
        user_data=None if wanted.user_data is None else base64.b64decode(wanted.user_data),
        mac=config.allocation.mac,
        host_key_private=config.host_key.private,
        host_key_public=config.host_key.public,
        host_certificate=config.host_certificate.text if config.host_certificate else None,
        ssh_user_cas=wanted.ssh_user_cas,
        metadata=wanted.metadata,
    )
