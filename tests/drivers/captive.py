#!/usr/bin/python3 -IB
"""A program in another's place: tells what it can see, open, reach and signal, on the descriptor of its disk.

A test starts a copy of it in which TRIED says what of the host to try, and TOLD which descriptor is the disk's.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import socket

TRIED: dict[str, list] = {}
TOLD = -1
PTRACE_SEIZE, SHM_RDONLY, MS_REMOUNT = 0x4206, 0o10000, 0x20
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_ssize_t


def can(attempt) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def tree(folder: str, depth: int) -> list[str]:
    """List what is beneath a folder, but of /usr only that it is there."""
    found: list[str] = []
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        found.append(entry.path)
        if entry.is_dir(follow_symlinks=False) and depth and entry.path != "/usr":
            with contextlib.suppress(PermissionError):
                found += tree(entry.path, depth - 1)
    return found


def climb(descriptor: int) -> bool:
    """Try to walk out of the root by a folder's descriptor."""

    def walk() -> None:
        os.fchdir(descriptor)
        os.chdir("/".join([".."] * 12))
        os.scandir("etc").close()

    return can(walk)


def find_descriptors() -> dict[str, str]:
    kinds = {0o140000: "socket", 0o100000: "file", 0o040000: "folder", 0o020000: "device", 0o010000: "pipe"}
    found: dict[str, str] = {}
    for number in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        with contextlib.suppress(OSError):
            found[str(number)] = kinds[os.fstat(number).st_mode & 0o170000]
    return found


def reach(address: tuple[str, int]) -> bool:
    def connect() -> None:
        socket.create_connection(address, 1).close()

    return can(connect)


def reach_abstract(name: str) -> bool:
    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\0" + name)

    return can(connect)


def tell() -> dict[str, object]:
    descriptors = find_descriptors()  # before this opens any of its own
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {
        "users": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
        "pid": os.getpid(),
        "session": os.getsid(0),
        "environment": {name: value for name, value in os.environ.items() if name != "LC_CTYPE"},
        "host name": os.uname().nodename,
        "tree": tree("/", 8),
        "writable": [path for path in ["/", *tree("/", 8)] if os.access(path, os.W_OK, follow_symlinks=False)],
        "usr is read-only": bool(os.statvfs("/usr").f_flag & os.ST_RDONLY and os.statvfs("/usr").f_flag & os.ST_NOSUID),
        "descriptors": descriptors,
        "climbs": [number for number in descriptors if climb(int(number))],
        "opens": [path for path in TRIED["paths"] if can(lambda path=path: os.close(os.open(path, os.O_RDONLY)))],
        "interfaces": [name for _, name in socket.if_nameindex()],
        "reaches": [address for address in TRIED["addresses"] if reach(tuple(address))],
        "reaches by name": [name for name in TRIED["abstract"] if reach_abstract(name)],
        "signals": [pid for pid in TRIED["pids"] if can(lambda pid=pid: os.kill(pid, 0))],
        "traces": [pid for pid in TRIED["pids"] if libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0],
        "sees": [pid for pid in range(2, 100_000) if can(lambda pid=pid: os.getpgid(pid))],
        "shares memory": [name for name in TRIED["memory"] if libc.shmat(name, None, SHM_RDONLY) != -1],
        "mounts": libc.mount(None, b"/", None, MS_REMOUNT, None) == 0,
        "becomes root": any(can(lambda become=become: become(0)) for become in (os.setuid, os.setgid)),
        "limits": {name: limits[name] for name in TRIED["limits"]},
    }


if __name__ == "__main__":
    told = json.dumps(tell()).encode()
    if TOLD > 2:
        os.ftruncate(TOLD, 0)
    while told:
        told = told[os.write(TOLD, told) :]
