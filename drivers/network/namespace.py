"""Work inside a network namespace by name, without leaving the caller's own.

`ip netns exec` is not used: it lays a new /sys over the old one and so hides the cgroups.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from drivers.threads import in_thread
from model.errors import StepFailed

Result = TypeVar("Result")

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def namespace_path(netns: str | None) -> Path:
    """Return where the kernel shows a namespace: a named one, or that of this process."""
    return Path("/proc/self/ns/net") if netns is None else Path("/run/netns") / netns


def prefix(netns: str | None) -> tuple[str, ...]:
    """Return what comes before a program's arguments so that it runs in the namespace."""
    return () if netns is None else ("nsenter", f"--net={namespace_path(netns)}")


def run_inside(netns: str | None, work: Callable[[], Result]) -> Result:
    """Run `work` in the namespace, on a thread that then ends; blocks. Raises what `work` raises."""
    if netns is None:
        return work()
    results: list[Result] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            _enter(netns)
            results.append(work())
        except BaseException as error:  # it belongs to the caller, not to this thread
            errors.append(error)

    thread = threading.Thread(target=enter, name=f"netns {netns}")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


async def run_inside_async(netns: str | None, work: Callable[[], Result]) -> Result:
    """Run `work`, which may block, in the namespace; return only when it has ended, also when cancelled."""
    return await in_thread(run_inside, netns, work)


def _enter(netns: str) -> None:
    try:
        descriptor = os.open(namespace_path(netns), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise StepFailed(f"network namespace {netns} is not there: make it, or correct the setting") from error
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET):
            raise StepFailed(f"network namespace {netns} cannot be entered: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
