"""What is played to a process by the library beneath it: another time of day, a slow disk (`tricks.c`)."""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("tricks.c")
_NUMBERS = struct.Struct("qq")


def build_library(folder: Path) -> Path:
    """Compile the library. Raises CalledProcessError with the compiler's words."""
    library = folder / "tricks.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class Tricks:
    """The two numbers of one process, and of what takes its place."""

    def __init__(self, path: Path, library: Path) -> None:
        path.write_bytes(_NUMBERS.pack(0, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBERS.size)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_TRICKS": str(path)}

    def set(self, *, clock_seconds: float = 0, flush_seconds: float = 0) -> None:
        self._map[:] = _NUMBERS.pack(int(clock_seconds * 1e9), int(flush_seconds * 1e9))
