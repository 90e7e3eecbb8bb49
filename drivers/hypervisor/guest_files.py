"""The descriptors that a guest's hypervisor gets: disks, tap, and sockets that the worker made (S-11, S-14)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from pathlib import Path

from drivers.durable import make_folder, open_folder, open_regular, translated
from drivers.hypervisor import Guest
from drivers.hypervisor.qemu_arguments import BASE, CONSOLE, DISK, MONITOR, SEED, TAP, VOLUMES
from model.errors import StepFailed

SOCKETS = ("qmp.sock", "console.sock")


@contextlib.contextmanager
def opened_files(guest: Guest, tap_fd: int) -> Generator[dict[int, int]]:
    """Open everything that QEMU needs; yield its numbers there and the descriptors here."""
    with contextlib.ExitStack() as stack, translated("open the guest's files"):
        found = {TAP: tap_fd, DISK: stack.enter_context(opened(guest.disk, os.O_RDWR))}
        found[SEED] = stack.enter_context(opened(guest.seed, os.O_RDONLY))
        if guest.base is not None:
            found[BASE] = stack.enter_context(opened(guest.base, os.O_RDONLY))
        for place, volume in enumerate(guest.volumes):
            found[VOLUMES + place] = stack.enter_context(opened(volume.path, os.O_RDWR))
        for path in (guest.kernel, guest.initrd):
            if path is not None:
                check_readable(path)
        make_folder(guest.sockets)
        for name, number in zip(SOCKETS, (MONITOR, CONSOLE), strict=True):
            found[number] = stack.enter_context(listening(guest.sockets, name)).fileno()
        yield found


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Generator[int]:
    descriptor = open_regular(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check_readable(path: Path) -> None:
    """A kernel is read by its path, as the guest's user."""
    with opened(path, os.O_RDONLY) as descriptor:
        if not os.fstat(descriptor).st_mode & 0o004:
            raise StepFailed(f"{path.name} must be readable by every user of the host to be booted")


def listening(folder: Path, name: str) -> socket.socket:
    """Make a listening Unix socket beneath a folder, in the place of an old one."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with open_folder(folder) as descriptor:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
            listener.bind(f"/proc/self/fd/{descriptor}/{name}")  # no path is too long for it then
            os.chmod(name, 0o600, dir_fd=descriptor)
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener
