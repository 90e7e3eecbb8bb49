"""The log files of services: written by the services themselves, bounded by the supervisor.

A service holds its log open for appending and outlives the supervisor, so a log is not renamed but copied aside and
cut to nothing; the lines of that instant may be lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path

LIMIT_BYTES = 16 << 20


@contextlib.contextmanager
def opened_log(path: Path) -> Generator[int]:
    """Open a log for appending, so that cutting it is safe while others write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def bound_log(path: Path, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Move a log's content to `<name>.1` when it is over the limit; tell whether it was. Blocks."""
    if not path.exists() or path.stat().st_size <= limit_bytes:
        return False
    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    path.with_name(f"{path.name}.1").chmod(0o600)
    os.truncate(path, 0)
    return True


def read_last_lines(path: Path, count: int = 5, limit_bytes: int = 8192) -> tuple[str, ...]:
    """Read the end of a log for a person: whole lines, control characters escaped (S-17). Blocks."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - limit_bytes))
            text = log.read(limit_bytes).decode(errors="replace")
    except FileNotFoundError:
        return ()
    lines = [line for line in text.splitlines() if line.strip()]
    return tuple(escape(line)[:400] for line in lines[-count:])


def escape(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
