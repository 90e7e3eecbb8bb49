"""How much room a host's filesystem really has: what copies in flight still need counts as taken (D-7)."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from drivers.reserve import Reserve
from model.errors import OutOfSpace, StepFailed
from model.room import human, is_below


class Reservation:
    """A promise of room for one copy; what has been written of it is no longer promised but gone."""

    def __init__(self, space: Space, what: str) -> None:
        self._space = space
        self._what = what
        self.promised_bytes = 0
        self.written_bytes = 0

    @property
    def outstanding_bytes(self) -> int:
        """What the copy still needs, in bytes."""
        return max(0, self.promised_bytes - self.written_bytes)

    def raise_to(self, total_bytes: int) -> None:
        """Promise room for a copy of `total_bytes` in all, or raise OutOfSpace with the numbers."""
        if total_bytes > self.promised_bytes:
            self._space.check(total_bytes - max(self.promised_bytes, self.written_bytes), self._what)
            self.promised_bytes = total_bytes

    def check_outstanding(self) -> None:
        """Raise OutOfSpace, with the numbers, when what was promised is not there any more."""
        self._space.check(0, self._what, self)

    def keep_ahead(self, written_bytes: int, ahead_bytes: int) -> None:
        """Note what has been written of a copy whose size nobody knows, and promise the next part of it."""
        self.written_bytes = written_bytes
        if self.outstanding_bytes < ahead_bytes // 2:
            self.raise_to(written_bytes + ahead_bytes)


class Space:
    """The free room of the filesystem that holds `folder`, less a reserve that only records may use (D-12).

    Of the reserve only what it does not hold already is still to be left.
    """

    def __init__(self, folder: Path, reserve: Reserve | None = None) -> None:
        self._folder = folder
        self._reserve = reserve
        self._reservations: set[Reservation] = set()

    @property
    def promised_bytes(self) -> int:
        """What all copies in flight still need, in bytes."""
        return sum(r.outstanding_bytes for r in self._reservations)

    def available_bytes(self) -> int:
        """Give what a new copy may take, in bytes; 0 when nothing is left."""
        free, reserve = self._free_and_reserve()
        return max(0, free - reserve - self.promised_bytes)

    def is_below(self, percent: int) -> bool:
        """Say whether less than so much of the filesystem is free, whoever it is for."""
        found = self._look()
        return is_below(percent, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def check(self, needed_bytes: int, what: str, own: Reservation | None = None) -> None:
        """Raise OutOfSpace, with the numbers, unless so much more fits beside what is promised already.

        own: a reservation whose outstanding bytes are asked for too, and so are not counted as taken.
        """
        free, reserve = self._free_and_reserve()
        outstanding = own.outstanding_bytes if own is not None else 0
        needed_bytes += outstanding
        promised = self.promised_bytes - outstanding
        available = max(0, free - reserve - promised)
        if needed_bytes > available:
            raise OutOfSpace(
                f"not enough room for {what}: {human(needed_bytes)} needed, {human(available)} free for it "
                f"({human(free)} free, of which {human(promised)} are promised to copies in flight and "
                f"{human(reserve)} kept for records); make room on the host"
            )

    @contextmanager
    def reserve(self, needed_bytes: int, what: str) -> Generator[Reservation]:
        """Keep room for a copy while it runs; `what` names it in an error, such as `the image`."""
        reservation = Reservation(self, what)
        reservation.raise_to(needed_bytes)
        self._reservations.add(reservation)
        try:
            yield reservation
        finally:
            self._reservations.discard(reservation)

    def _free_and_reserve(self) -> tuple[int, int]:
        found = self._look()
        reserve = max(0, self._reserve.wanted_bytes() - self._reserve.held_bytes()) if self._reserve else 0
        return found.f_bavail * found.f_frsize, reserve

    def _look(self) -> os.statvfs_result:
        try:
            return os.statvfs(self._folder)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "an unknown error")
            raise StepFailed(
                f"could not ask for the free space of the folder {self._folder.name!r}: the host answered {name}"
            ) from error
