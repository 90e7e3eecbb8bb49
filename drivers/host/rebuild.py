"""Rebuilds on a host: a VM's root disk has two places, and the record says which one is in use (L-V10).

Nothing is renamed: putting a disk aside and turning back to it are one write of the record each, so that a crash at
any instant leaves one disk in use and at most one that is kept. The place of a new disk is empty before that write.
"""

from __future__ import annotations

from dataclasses import dataclass

from drivers.host.parts import Parts
from drivers.host.prepare import PrepareSteps
from drivers.jobs import Job
from drivers.ledger import wish_of
from drivers.stored import StoredConfig, StoredImages, StoredStatus
from drivers.threads import in_thread
from model.errors import StepFailed, Superseded
from model.record import CreateProgress, HostOrder, KeptDisk
from model.vm import DISK_NAMES, DiskName


@dataclass(frozen=True)
class _Turn:
    """Which disk is in use from now on, what is kept beside it, and which place must be empty before."""

    disk: DiskName
    disk_bytes: int | None
    images: StoredImages | None
    kept: KeptDisk | None
    kept_images: StoredImages | None
    clear: DiskName | None


class RebuildSteps:
    """Put root disks aside, turn back to them, remove them when told."""

    def __init__(self, parts: Parts, prepare: PrepareSteps) -> None:
        self._parts = parts
        self._prepare = prepare

    async def set_aside(self, job: Job, order: HostOrder) -> None:
        """Begin a rebuild: what is in use is put aside, or changes places with what was; the guest is stopped.

        Raises Superseded when the input is another, NoRoom when the host's caps do not allow it (L-V8), Permanent when
        this host cannot run it.
        """
        vm_id, records = order.vm_id, self._parts.records
        config = records.config(vm_id)
        if config.input.digest != order.input_digest:
            config = config.model_copy(update={"input": await self._parts.fetch_input(vm_id, order.input_digest)})
        await self._prepare.check_support(config.input)
        with self._parts.ledger.admitted(vm_id, wish_of(config.input)):
            await self._set_aside(job, order, config)

    async def _set_aside(self, job: Job, order: HostOrder, config: StoredConfig) -> None:
        vm_id, records = order.vm_id, self._parts.records
        async with job.locked():
            status = records.status(vm_id)
            if status.record.boot_id is None or status.record.applied_rebuild_generation >= order.rebuild_generation:
                raise Superseded("this rebuild is done, or the VM is still being made: nothing is put aside")
            await self._check_stopped(vm_id)
            turn = _turn_of(status, order, await self._find_disks(vm_id))
            await records.write_config(config, job.guard)
            if turn.clear is not None:
                job.guard()
                await self._parts.disks_of(config).remove(self._parts.paths.disk(vm_id, turn.clear))
            await records.update(vm_id, lambda now: _begun(now, order, turn), job.guard)

    async def _find_disks(self, vm_id: str) -> set[DiskName]:
        paths = self._parts.paths
        return {name for name in DISK_NAMES if await in_thread(paths.disk(vm_id, name).exists)}

    async def _check_stopped(self, vm_id: str) -> None:
        status = self._parts.records.status(vm_id)
        guest = self._parts.guest(self._parts.records.config(vm_id), status)
        if (await self._parts.hypervisor.find(guest, status.process)).process is not None:
            raise StepFailed("a process of the VM still lives: it must be stopped before its disk is replaced")

    async def drop_kept(self, job: Job, order: HostOrder) -> None:
        """Remove the disk that a rebuild put aside, then the word of it; the one in use is never touched."""
        vm_id, records = order.vm_id, self._parts.records
        async with job.locked():
            record, config = records.status(vm_id).record, records.config(vm_id)
            if record.kept is None:
                return
            if record.kept.name == record.disk or record.applied_rebuild_generation < order.rebuild_generation:
                raise Superseded("a rebuild was asked for since: the kept disk is its business")
            job.guard()
            await self._parts.disks_of(config).remove(self._parts.paths.disk(vm_id, record.kept.name))

            def change(status: StoredStatus) -> StoredStatus:
                forgotten = status.record.model_copy(update={"kept": None})
                return status.model_copy(update={"record": forgotten, "kept_images": None})

            await records.update(vm_id, change, job.guard)


def _turn_of(status: StoredStatus, order: HostOrder, there: set[DiskName]) -> _Turn:
    """Decide what a rebuild or an undo does with the disks that are there; another pass finds it done already.

    Only a disk that a guest may have used is kept: a new one that no rebuild has finished is made anew.
    """
    record, kept, begun = status.record, status.record.kept, status.record.create
    is_whole = record.disk in there and (begun is None or begun.undo)
    aside = KeptDisk(name=record.disk, by=order.kept_by, disk_bytes=record.disk_bytes) if is_whole else None
    aside_images = status.images if is_whole else None
    if order.undo_of is None:
        if not is_whole or (kept is not None and kept.by == order.kept_by):
            return _Turn(record.disk, None, None, kept, status.kept_images, clear=record.disk)
        other: DiskName = "disk-2" if record.disk == "disk" else "disk"
        return _Turn(other, None, None, aside, aside_images, clear=other)
    if kept is not None and kept.by == order.undo_of and kept.name in there:
        clear = None if is_whole else record.disk
        return _Turn(kept.name, kept.disk_bytes, status.kept_images, aside, aside_images, clear)
    if not is_whole or (kept is not None and kept.by == order.undo_of):
        raise StepFailed(
            "the root disk that was put aside is missing on the host: it cannot be brought back; a rebuild with "
            "`discard` makes a new one"
        )
    return _Turn(record.disk, record.disk_bytes, status.images, kept, status.kept_images, clear=None)


def _begun(status: StoredStatus, order: HostOrder, turn: _Turn) -> StoredStatus:
    """Take the turn; this pass makes what is missing. Of the old guest's end nothing stays (case I6)."""
    is_undo = order.undo_of is not None
    progress = CreateProgress(
        pass_number=order.fence.pass_number,
        rebuild_generation=order.rebuild_generation,
        undo=is_undo,
        disk=is_undo,
    )
    begun = status.record.model_copy(
        update={
            "disk": turn.disk,
            "disk_bytes": turn.disk_bytes,
            "kept": turn.kept,
            "create": progress,
            "input_digest": order.input_digest,
            "seed_digest": None,
            "refused": None,
            "restart_of": None,
            "restart_of_generation": None,
        }
    )
    return status.model_copy(
        update={
            "record": begun,
            "images": turn.images,
            "kept_images": turn.kept_images,
            "process": None,
            "exit_of": None,
            "last_exit": None,
            "turned_off": False,
            "started_at": None,
            "stalled": False,
            "restart_count": 0,
        }
    )
