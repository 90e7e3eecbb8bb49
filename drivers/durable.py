"""Files that are whole or absent, whatever instant the host lost its power.

A file is written beside its place, flushed, renamed, and its folder flushed. The last folder of a path is opened
without following a symbolic link and everything else happens beneath that descriptor, so that a name which something
else put there is replaced, never followed (S-13). Everything here blocks: call it through `drivers.threads.in_thread`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

from model.errors import OutOfSpace, StepFailed

_NEW = ".new."
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Write(Protocol):
    """How a record is written: as `write_durably` does it."""

    def __call__(self, path: Path, data: bytes, *, mode: int = 0o600) -> None: ...


def write_durably(
    path: Path, data: bytes, *, mode: int = 0o600, uid: int | None = None, gid: int | None = None
) -> None:
    """Replace the file by `data` in one step that survives a loss of power.

    Raises OutOfSpace when the filesystem is full, StepFailed otherwise; the old content then stays as it was.
    """
    with translated(f"write the file {path.name!r}"), open_folder(path.parent) as folder:
        new = new_name(path.name)
        try:
            descriptor = os.open(new, _CREATE, 0o600, dir_fd=folder)
            try:
                _write_all(descriptor, data)
                give(descriptor, mode=mode, uid=uid, gid=gid)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _unlink(new, folder)
            raise
        os.fsync(folder)


def publish_durably(new: Path, path: Path) -> None:
    """Rename a flushed file of the same folder to its name, in one step that survives a loss of power."""
    with translated(f"put {path.name!r} into its place"), open_folder(path.parent) as folder:
        os.rename(new.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)


def remove_durably(path: Path) -> None:
    """Remove a file, the symbolic link itself, or a folder with all that is in it (C7).

    That it is absent, or its folder is or is none, is as good.
    """
    with translated(f"remove the file {path.name!r}"):
        try:
            with open_folder(path.parent) as folder:
                try:
                    _unlink(path.name, folder)
                except IsADirectoryError:
                    shutil.rmtree(path.name, dir_fd=folder)
                os.fsync(folder)
        except (FileNotFoundError, NotADirectoryError):
            return


def make_folder(path: Path, mode: int = 0o700) -> None:
    """Make a folder, or accept the one that is there if it is ours and no symbolic link; its mode becomes `mode`.

    A folder of another user is given back to this process' own (C7), since everything in it is made anew.
    """
    with translated(f"make the folder {path.name!r}"), open_folder(path.parent) as parent:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path.name, 0o700, dir_fd=parent)
            os.fsync(parent)
        descriptor = os.open(path.name, _FOLDER, dir_fd=parent)
        try:
            give(descriptor, mode=mode, uid=os.geteuid(), gid=os.getegid())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path, *, of: str | None = None) -> None:
    """Remove what writers that died in the middle left beside their places; only while none writes there.

    of: the name of the file whose leftovers are meant; None: all of the folder's.
    """
    with translated(f"tidy the folder {folder.name!r}"), open_folder(folder) as descriptor:
        for name in os.listdir(descriptor):  # noqa: PTH208 — a Path takes no descriptor
            if _NEW in name and (of is None or name.startswith(of + _NEW)):
                _unlink(name, descriptor)


def new_name(name: str) -> str:
    """Name a file that is being made beside `name`: unique, and known to `remove_leftovers`."""
    return f"{name}{_NEW}{secrets.token_hex(6)}"


@contextlib.contextmanager
def open_folder(path: Path) -> Generator[int]:
    """Open a folder that is no symbolic link, for calls beneath its descriptor."""
    descriptor = os.open(path, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file beneath its folder, following no symbolic link; other kinds of file raise OSError(EINVAL)."""
    with open_folder(path.parent) as folder:
        return open_regular_at(folder, path.name, flags)


def open_regular_at(folder: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file beneath an open folder; `name` is one component."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return descriptor


def give(descriptor: int, *, mode: int, uid: int | None = None, gid: int | None = None) -> None:
    """Set owner and mode of an open file; what is already so is left alone."""
    now = os.fstat(descriptor)
    owner = (now.st_uid if uid is None else uid, now.st_gid if gid is None else gid)
    if owner != (now.st_uid, now.st_gid):
        os.fchown(descriptor, *owner)
    if stat.S_IMODE(now.st_mode) != mode:
        os.fchmod(descriptor, mode)


@contextlib.contextmanager
def translated(wish: str) -> Generator[None]:
    """Turn an OSError into an error of Hostler that says what was wanted, without a path of the host."""
    try:
        yield
    except OSError as error:
        found = errno.errorcode.get(error.errno or 0, "an unknown error")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfSpace(f"could not {wish}: the host's filesystem is full ({found}); make room there") from error
        where = _missing_folder(error)
        raise StepFailed(f"could not {wish}: {where or f'the host answered {found}'}") from error


def _missing_folder(error: OSError) -> str | None:
    name: object = error.filename
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) and isinstance(name, (str, os.PathLike)):
        return f"{Path(os.fspath(name)).name!r} is missing on the host, or is not what it should be"
    return None


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
