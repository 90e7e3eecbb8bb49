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


def find_processes_of(users: range, boot_id: str, also: frozenset[int] = frozenset()) -> list[ProcessRecord]:
    """List every live process with a user of the range, real, effective, saved or of the file system; and those named.

    also: pids that are listed whatever their user is. /proc/PID/status tells; the owner of /proc/PID is root's for a
    process that changed its user and did not begin a program yet.
    """
    found: list[ProcessRecord] = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - hundreds of names, no need of paths
        if not name.isdecimal():
            continue
        pid = int(name)
        uids = find_users(pid)
        if not uids or not (pid in also or any(uid in users for uid in uids)):
            continue
        start_time = find_start_time(pid)
        if start_time is not None:
            uid = next((uid for uid in uids if uid in users), uids[0])
            found.append(ProcessRecord(pid=pid, start_time=start_time, boot_id=boot_id, uid=uid))
    return found


def find_users(pid: int) -> list[int]:
    try:
        descriptor = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return []
    try:
        text = os.read(descriptor, 1024)
    except ProcessLookupError:
        return []
    finally:
        os.close(descriptor)
    return [int(word) for word in text.partition(b"\nUid:")[2].partition(b"\n")[0].split()]


def kill_processes(found: list[ProcessRecord]) -> None:
    for process in found:
        signal_process(process, signal.SIGKILL)


def may_raise_limits() -> bool:
    """Tell whether this process may raise another's limits: capability 24, CAP_SYS_RESOURCE (capabilities(7))."""
    words = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()
    return bool(int(words[0], 16) >> 24 & 1)
