"""Know one process again, beyond doubt, and wait for it or signal it without ever meeting another's reused pid."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Generator
from pathlib import Path

from model.process import ProcessRecord

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    return BOOT_ID_FILE.read_text().strip()


def find_start_time(pid: int) -> int | None:
    """Find when a live process started, in clock ticks since boot (proc(5), field 22); None for a zombie or none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(p: ProcessRecord, boot_id: str) -> bool:
    """Tell whether that very process lives: same boot, same start; a zombie is dead."""
    return p.boot_id == boot_id and find_start_time(p.pid) == p.start_time


@contextlib.contextmanager
def opened_process(p: ProcessRecord) -> Generator[int | None]:
    """Hold a pidfd of that very process, or None when it is gone; what the pidfd names cannot be another's pid."""
    try:
        descriptor = os.pidfd_open(p.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor if find_start_time(p.pid) == p.start_time else None
    finally:
        os.close(descriptor)


async def await_end(p: ProcessRecord, timeout_seconds: float) -> bool:
    """Wait until that very process has ended; tell whether it has."""
    with opened_process(p) as descriptor:
        if descriptor is None:
            return True
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), timeout_seconds)
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(descriptor)
        return True


def signal_process(p: ProcessRecord, number: int) -> None:
    """Send a signal to that very process, or to nobody."""
    with opened_process(p) as descriptor:
        if descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
