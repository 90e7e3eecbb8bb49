"""Wait until a guest's SSH server says its first words."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from dataclasses import dataclass
from pathlib import Path

RETRY_SECONDS = 0.02
LEASE_LOOK_SECONDS = 0.01
ATTEMPT_SECONDS = 0.5
BANNER_SECONDS = 5.0
"""How long a server that took the connection may be silent before it is asked anew."""
TICKS = os.sysconf("SC_CLK_TCK")


def await_banner(address: str, mac: str, leases: Path, timeout_seconds: float) -> None:
    """Return once an SSH server at the address has said its version; TimeoutError when none does in time.

    leases: the DHCP server's file (dnsmasq(8)). Nothing is sent before the guest has its address: to an emulated guest
    that boots, each packet is work. Then a connection is begun every 20 ms, whatever became of those before, since a
    lost SYN is repeated only after a second. As soon as one is taken no further one is begun.
    """
    deadline = time.monotonic() + timeout_seconds
    while f" {mac} {address} " not in (leases.read_text() if leases.exists() else ""):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the guest asked for no address within {timeout_seconds:g} s")
        time.sleep(LEASE_LOOK_SECONDS)
    while time.monotonic() < deadline:
        connected = _connect(address, deadline)
        with connected:
            connected.settimeout(BANNER_SECONDS)
            with contextlib.suppress(OSError):
                if connected.recv(64).startswith(b"SSH-"):
                    return
    raise TimeoutError(f"no SSH server at {address} within {timeout_seconds:g} s")


def _connect(address: str, deadline: float) -> socket.socket:
    """Return the first of many connections that was taken, with no other left open."""
    attempts: dict[socket.socket, float] = {}
    due = time.monotonic()
    with selectors.DefaultSelector() as selector:
        try:
            while (now := time.monotonic()) < deadline:
                if now >= due:
                    due = max(due + RETRY_SECONDS, now)
                    attempt = _begin(address)
                    attempts[attempt] = now
                    selector.register(attempt, selectors.EVENT_WRITE)
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    selector.unregister(ready)
                    del attempts[ready]
                    if ready.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                        return ready
                    ready.close()
                for old in [each for each, begun in attempts.items() if begun < now - ATTEMPT_SECONDS]:
                    selector.unregister(old)
                    del attempts[old]
                    old.close()
        finally:
            for each in attempts:
                each.close()
    raise TimeoutError(f"{address} took no connection on port 22 in time")


def _begin(address: str) -> socket.socket:
    attempt = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    code = attempt.connect_ex((address, 22))
    if code not in (0, errno.EINPROGRESS):
        attempt.close()
        raise OSError(code, os.strerror(code))
    return attempt


@dataclass(frozen=True)
class Process:
    """A guest's process, to 10 ms: when it began, on the monotonic clock, and how long it has had a processor since."""

    began: float
    worked_seconds: float


def find_process(pid: int) -> Process:
    """Look at a process (proc(5), fields 14, 15 and 22 of stat)."""
    fields = [int(word) for word in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:20]]
    slept = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return Process(began=fields[8] / TICKS - slept, worked_seconds=(fields[0] + fields[1]) / TICKS)
