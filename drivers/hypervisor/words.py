"""What a hypervisor said before it died, without a file that it could fill."""

from __future__ import annotations

import os

from drivers.hypervisor import Guest
from model.text import clean_text

LIMIT_BYTES = 4096


class LastWords:
    """A pipe in the place of a program's error output.

    It never blocks the program, which goes on when the pipe is full, or when nobody reads any more because the worker
    was restarted: what it says then is lost.
    """

    def __init__(self) -> None:
        self._reading, self.descriptor = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self.descriptor, False)
        self._said = b""

    def hand_over(self) -> None:
        """Close our copy of the writing end."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def read(self, guest: Guest) -> str:
        """Return what was said so far, cleaned (S-17) and without the host's paths (L-V5)."""
        try:
            while self._reading >= 0 and (chunk := os.read(self._reading, 65536)):
                self._said = (self._said + chunk)[-LIMIT_BYTES:]
        except BlockingIOError:
            pass
        text = self._said.decode(errors="replace").strip()
        for path in (guest.kernel, guest.initrd):
            if path is not None:
                text = text.replace(str(path), path.name)
        return clean_text(text)

    def close(self) -> None:
        self.hand_over()
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1

    def __del__(self) -> None:
        self.close()
