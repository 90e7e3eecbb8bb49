"""Root disks: overlays on base images, made beside their place, grown offline, read with our own eyes (D-4, L-C9).

`qemu-img` always runs as the VM's own user with the disk as a descriptor and its format stated, so that what a guest
wrote into its disk can lead it nowhere (S-13). The base's name in the overlay is for people and `qemu-img` only: a
hypervisor gets both files as descriptors, with the block graph spelled out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drivers.confine import Confinement, Jail, run_confined
from drivers.durable import (
    give,
    new_name,
    open_folder,
    open_regular,
    publish_durably,
    remove_durably,
    remove_leftovers,
    translated,
)
from drivers.headers import MIB, SECTOR, DiskFormat, read_header
from drivers.images import BaseImage
from drivers.space import Space, human
from drivers.threads import in_thread
from model.errors import OutOfSpace, Permanent, StepFailed, Unreadable

Guard = Callable[[], None]

QEMU_IMG_SECONDS = 60.0
_LIMITS = {"RLIMIT_CPU": 30, "RLIMIT_AS": 1 << 30}
_TABLES_BYTES = MIB
_DISK = 3
_MAX_DISK_BYTES = 1 << 50


@dataclass(frozen=True)
class DiskState:
    """What a root disk is now, by its header: its format, its size for the guest and its room on the host."""

    format: DiskFormat
    virtual_size_bytes: int
    allocated_bytes: int


class Disks:
    """The root disks of one host; never touches a volume."""

    def __init__(self, space: Space) -> None:
        self._space = space

    async def make_overlay(
        self, base: BaseImage, path: Path, size_bytes: int | None, *, uid: int, gid: int, guard: Guard
    ) -> DiskState:
        """Make the disk unless it is there; what earlier tries left beside it goes.

        size_bytes: None takes the image's own size; rounded up to whole sectors. guard: raises when a newer order has
        come; asked before each effect. Raises Permanent when the image is larger, OutOfSpace or StepFailed.
        """
        if (found := await self.find(path)) is not None:
            return found
        size = base.virtual_size_bytes if size_bytes is None else _whole_sectors(size_bytes)
        if size < base.virtual_size_bytes:
            raise Permanent(
                f"the root disk is to have {human(size)}, but its image has {human(base.virtual_size_bytes)}; "
                "ask for a larger disk"
            )
        with self._space.reserve(_TABLES_BYTES, "the root disk"):
            guard()
            await in_thread(lambda: remove_leftovers(path.parent, of=path.name))
            new = path.parent / new_name(path.name)
            try:
                descriptor = await in_thread(_create, new, uid, gid)
                try:
                    backing = ("-b", str(base.path), "-F", base.format)
                    await _qemu_img(
                        ("create", "-q", "-f", "qcow2", "-u", *backing, f"/dev/fd/{_DISK}", str(size)),
                        descriptor,
                        (uid, gid),
                        "make the root disk",
                    )
                    await in_thread(os.fsync, descriptor)
                finally:
                    os.close(descriptor)
                guard()
                await in_thread(publish_durably, new, path)
            except BaseException:
                await in_thread(remove_durably, new)
                raise
        return await self._look(path)

    async def grow(self, path: Path, size_bytes: int, *, uid: int, gid: int, guard: Guard) -> DiskState:
        """Grow the disk of a VM that does not run to `size_bytes`; nothing happens when it has that size.

        Raises Permanent when the disk is larger, StepFailed when it is in use or absent.
        """
        size = _whole_sectors(size_bytes)
        found = await self._look(path)
        if found.virtual_size_bytes > size:
            raise Permanent(
                f"the root disk has {human(found.virtual_size_bytes)} and cannot shrink to {human(size)}; ask for "
                "no less than it has"
            )
        if found.virtual_size_bytes == size:
            return found
        self._space.check(_TABLES_BYTES, "growing the root disk")
        descriptor = await in_thread(_open_own, path, uid)
        try:
            guard()
            # Without its base: growing needs none, and so no name in the disk's header leads anywhere.
            image = {
                "driver": "qcow2",
                "backing": None,
                "file": {"driver": "file", "filename": f"/dev/fd/{_DISK}"},
            }
            await _qemu_img(
                ("resize", "-q", f"json:{json.dumps(image)}", str(size)),
                descriptor,
                (uid, gid),
                "grow the root disk",
            )
            await in_thread(os.fsync, descriptor)
        finally:
            os.close(descriptor)
        return await self._look(path)

    async def find(self, path: Path) -> DiskState | None:
        """Look at a disk; None when there is none. Raises Unreadable when it is not what was made."""
        return await in_thread(_find, path)

    async def remove(self, path: Path) -> None:
        """Remove a disk and what tries to make it left beside it; that there is none is as good."""
        await in_thread(_remove, path)

    async def _look(self, path: Path) -> DiskState:
        found = await self.find(path)
        if found is None:
            raise StepFailed("the root disk is missing on the host")
        return found


def _whole_sectors(size_bytes: int) -> int:
    if not 0 < size_bytes <= _MAX_DISK_BYTES:
        raise Permanent(f"a root disk of {size_bytes} bytes cannot be made; ask for more than 0 and at most 1 PiB")
    return -(-size_bytes // SECTOR) * SECTOR


def _create(path: Path, uid: int, gid: int) -> int:
    with translated("make the root disk"), open_folder(path.parent) as folder:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, 0o600, dir_fd=folder)
        give(descriptor, mode=0o600, uid=uid, gid=gid)
        return descriptor


def _open_own(path: Path, uid: int) -> int:
    """Open a disk for its VM's user; another owner means that it is another VM's."""
    with translated("open the root disk"):
        descriptor = open_regular(path, os.O_RDWR)
    if os.fstat(descriptor).st_uid != uid:
        os.close(descriptor)
        raise Unreadable("the root disk on the host belongs to another user than its VM's")
    return descriptor


def _find(path: Path) -> DiskState | None:
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable("the root disk on the host is not a regular file; look at it there") from error
    try:
        header = read_header(descriptor, max_virtual_size_bytes=_MAX_DISK_BYTES, stated_format="qcow2", overlay=True)
        return DiskState(header.format, header.virtual_size_bytes, os.fstat(descriptor).st_blocks * 512)
    except Permanent as error:
        raise Unreadable("the root disk on the host is damaged or not what was made; look at it there") from error
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.parent.is_dir() and not path.parent.is_symlink():
        remove_leftovers(path.parent, of=path.name)
    remove_durably(path)


async def _qemu_img(arguments: tuple[str, ...], disk: int, user: tuple[int, int], wish: str) -> None:
    finished = await run_confined(
        Confinement(
            argv=("qemu-img", *arguments),
            uid=user[0],
            gid=user[1],
            descriptors={_DISK: disk},
            limits=_LIMITS,
            jail=Jail(reopened=(_DISK,)),
        ),
        timeout_seconds=QEMU_IMG_SECONDS,
    )
    if finished.returncode == 0:
        return
    if b"lock" in finished.stderr:
        raise StepFailed(f"could not {wish}: another process has it open; stop the VM first")
    if b"No space left" in finished.stderr:
        raise OutOfSpace(f"could not {wish}: the host's filesystem is full; make room there")
    raise StepFailed(f"could not {wish}: qemu-img answered with status {finished.returncode}")
