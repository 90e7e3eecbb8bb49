"""Room that only records may use: without it a full filesystem would keep a guest from being stopped (D-12)."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from drivers.durable import write_durably
from model.errors import OutOfSpace
from model.room import GIB, MIB

PIECE_BYTES = MIB
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Reserve:
    """A file of nothing, 1 GiB or 2 % of its filesystem, that gives way to records piece by piece. Everything blocks.

    Guests' disks grow as their guests write, so what is merely counted as free is free for them, too.
    """

    def __init__(self, home: Path, *, wanted_bytes: int | None = None) -> None:
        self._path = home / "reserve"
        self._wanted_bytes = wanted_bytes
        self._lock = threading.Lock()

    def wanted_bytes(self) -> int:
        """Return how large the reserve is when it is whole."""
        if self._wanted_bytes is not None:
            return self._wanted_bytes
        found = os.statvfs(self._path.parent)
        return min(GIB, found.f_blocks * found.f_frsize // 50)

    def held_bytes(self) -> int:
        """Return how much room the reserve takes now."""
        try:
            return self._path.lstat().st_blocks * 512
        except OSError:
            return 0

    def keep(self) -> None:
        """Fill the reserve up while there is room for twice what it lacks; what cannot be had now is tried again."""
        with self._lock, contextlib.suppress(OSError):
            lacking = self.wanted_bytes() - self.held_bytes()
            found = os.statvfs(self._path.parent)
            if lacking <= 0 or found.f_bavail * found.f_frsize < 2 * lacking:
                return
            descriptor = os.open(self._path, _FLAGS, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self.wanted_bytes())
            finally:
                os.close(descriptor)

    def write(self, path: Path, data: bytes, *, mode: int = 0o600) -> None:
        """Write a record durably; where the filesystem is full, in room that the reserve gives up."""
        while True:
            try:
                write_durably(path, data, mode=mode)
                return
            except OutOfSpace:
                if not self._give_way():
                    raise

    def _give_way(self) -> bool:
        """Free a piece; say whether there was one."""
        with self._lock:
            try:
                size = self._path.lstat().st_size
                if size == 0:
                    return False
                os.truncate(self._path, max(0, size - PIECE_BYTES))
            except OSError:
                return False
            return True
