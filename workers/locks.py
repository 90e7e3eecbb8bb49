"""Who works on a state directory: one supervisor for as long as it lives, one `hostler up` or `down` at a time."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from model.errors import Unavailable
from workers.choice import REGISTRY

_LOCK_SECONDS = 600.0
_LOOK_SECONDS = 0.1


def try_lock(path: Path) -> int | None:
    """Lock a file for as long as the returned descriptor is open; None when another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def lock_supervisor(run: Path) -> int | None:
    """Take the lock that one supervisor per state directory holds for its life; None when another has it."""
    return try_lock(run / "supervisor.lock")


def is_supervised(run: Path) -> bool:
    """Tell whether a supervisor lives: its lock is held as long as it does."""
    if not run.exists():
        return False
    lock = lock_supervisor(run)
    if lock is None:
        return True
    os.close(lock)
    return False


@contextlib.asynccontextmanager
async def locked(home: Path) -> AsyncGenerator[None]:
    """Let one `hostler up` or `hostler down` at a time work on a state directory, which need not be there yet."""
    REGISTRY.mkdir(mode=0o755, exist_ok=True)
    path = REGISTRY / f"{hashlib.sha256(os.fsencode(home)).hexdigest()[:24]}.lock"
    descriptor = try_lock(path)
    for _ in range(int(_LOCK_SECONDS / _LOOK_SECONDS)):
        if descriptor is not None:
            break
        await asyncio.sleep(_LOOK_SECONDS)
        descriptor = try_lock(path)
    if descriptor is None:
        raise Unavailable("another `hostler up` or `hostler down` works on this state directory")
    try:
        yield
    finally:
        os.close(descriptor)
