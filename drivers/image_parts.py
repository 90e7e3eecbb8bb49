"""The files that a fetch makes on its way, lent to the user who fetches and taken away again."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path

from drivers.durable import give, open_folder, open_regular, remove_durably, write_durably
from drivers.formats import DOWNLOAD, parse
from drivers.image_files import PART, UNPACKED, VALIDATOR
from drivers.threads import in_thread
from model.errors import StepFailed, Unreadable


class Paths:
    """The files that one fetch makes on its way."""

    def __init__(self, folder: Path, stem: str) -> None:
        self.stem = stem
        self.partial = folder / f"{stem}{PART}"
        self.unpacked = folder / f"{stem}{UNPACKED}"
        self.validator = folder / f"{stem}{VALIDATOR}"

    def read_validator(self) -> str | None:
        """Give what If-Range may carry for the partial file; None when nothing sound is stored."""
        try:
            found: object = parse(DOWNLOAD, self.validator.name, self.validator.read_bytes())["validator"]
        except (FileNotFoundError, KeyError, Unreadable):
            return None
        return found if isinstance(found, str) else None

    async def keep_validator(self, value: str | None) -> None:
        """Store what If-Range may carry, for a resume after a restart too."""
        data = json.dumps({"format": DOWNLOAD.format, "validator": value}).encode()
        await in_thread(write_durably, self.validator, data)

    def tidy(self, keeps_partial: bool) -> None:
        """Remove what a fetch that ended leaves, but for a part that the next one goes on with."""
        remove_durably(self.unpacked)
        if not keeps_partial:
            remove_durably(self.partial)
            remove_durably(self.validator)


def create(path: Path, user: tuple[int, int]) -> int:
    """Make an empty file for the user, in the place of whatever has its name."""
    with open_folder(path.parent) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, 0o600, dir_fd=folder)
    give(descriptor, mode=0o600, uid=user[0], gid=user[1])
    return descriptor


def open_or_create(path: Path, user: tuple[int, int]) -> int:
    """Open the user's file as it was left, or make it; what is no regular file is replaced."""
    try:
        descriptor = open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        return create(path, user)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO):
            raise
        return create(path, user)
    give(descriptor, mode=0o600, uid=user[0], gid=user[1])
    return descriptor


def seal(path: Path) -> int:
    """Flush a file, take it away from the user who made it, and prove that nobody can write to it any more.

    The kernel grants a read lease only while no descriptor or mapping of the file is open for writing (fcntl(2)).
    """
    descriptor = open_regular(path)
    try:
        os.fsync(descriptor)
        give(descriptor, mode=0o444, uid=os.geteuid(), gid=os.getegid())
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        os.close(descriptor)
        raise StepFailed("the fetched image could not be locked on the host; it is tried again") from error
    return descriptor
