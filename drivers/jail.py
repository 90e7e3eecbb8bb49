"""Namespaces and a root of its own for a program that the launcher starts (S-11).

Part of `drivers.launcher`, and as careful of start-up time: no pathlib, and nothing imported that it can do without.
"""

# ruff: noqa: PTH103, PTH112, PTH116, PTH120, PTH211

from __future__ import annotations

import ctypes
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 0x1, 0x2, 0x4, 0x20
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
MNT_DETACH = 2
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
"""The same numbers on every architecture; the C library has no names for them."""
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, AT_EMPTY_PATH, MOVE_MOUNT_F_EMPTY_PATH, AT_FDCWD = 1, 0o2000000, 0x1000, 4, -100

MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
"""What a system with a merged /usr has as links into it."""
NEW_ROOT = "/dev"
"""A folder that every host has; the new root is laid over it before it takes the place of the old one."""

libc = ctypes.CDLL(None, use_errno=True)


class LaunchError(Exception):
    """What was being done when the kernel refused, without a path."""


def check(result: int, doing: str) -> None:
    """Raise a LaunchError for a libc call that returned below zero."""
    if result < 0:
        raise LaunchError(f"{doing}: {os.strerror(ctypes.get_errno())}")


def leave_process_ids(order: dict[str, Any]) -> None:
    """Let the next child of this process be the first of an own PID namespace; its pid here is the host's still."""
    if order["jail"] is not None:
        check(libc.unshare(CLONE_NEWPID), "own process ids")


def isolate(order: dict[str, Any]) -> None:
    """Enter the namespaces that the order asks for, and in a jail the root that has only what is listed."""
    jail = order["jail"]
    if jail is not None:
        # A mount of this namespace can be taken along; one of another namespace could not be bound any more.
        files = {number: take_file(order["descriptors"][number]) for number in jail["reopened"]}
        own_network = 0 if jail["network"] else CLONE_NEWNET
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | own_network), "own namespaces")
        check(libc.sethostname(b"guest", 5), "own host name")
        check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
        change_root(order, files)
    elif order["bind"]:
        check(libc.unshare(CLONE_NEWNS), "own mount namespace")
        check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
        bind_unreachable(order)


def take_file(descriptor: int) -> int:
    """Make a mount of an open file that is nowhere yet."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH
    taken = libc.syscall(SYS_OPEN_TREE, descriptor, b"", flags)
    check(taken, "taking an open file along")
    return taken


def change_root(order: dict[str, Any], files: dict[int, int]) -> None:
    """Stand in a root of its own, read-only, from which no path leads back."""
    devices = ["null", "urandom", *order["jail"]["devices"]]
    opened = [(f"/dev/{name}", open_path(f"/dev/{name}")) for name in devices]
    opened += [
        (path, open_path(path)) for path in sorted({"/usr", *order["bind"], *map(os.path.realpath, order["bind"])})
    ]
    mounted = libc.mount(b"tmpfs", NEW_ROOT.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=256k")
    check(mounted, "own root")
    os.chdir(NEW_ROOT)
    for name in MERGED:
        if os.path.isdir(f"/usr/{name}"):
            os.symlink(f"usr/{name}", name)
    for path, descriptor in opened:
        if not is_same(path[1:], descriptor):  # a wider bind may have brought it along
            bind(path[1:], descriptor, read_only=True)
        os.close(descriptor)
    os.makedirs("dev/fd", 0o755)
    for number, taken in files.items():
        make_target(f"dev/fd/{number}", is_folder=False)
        target = f"dev/fd/{number}".encode()
        moved = libc.syscall(SYS_MOVE_MOUNT, taken, b"", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH)
        check(moved, "placing an open file")
        os.close(taken)
    flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV
    check(libc.mount(None, b".", None, flags, None), "read-only root")
    check(libc.pivot_root(b".", b"."), "changing the root")
    check(libc.umount2(b".", MNT_DETACH), "leaving the old root")
    os.chdir("/")


def open_path(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def bind_unreachable(order: dict[str, Any]) -> None:
    """Make paths reachable that lie below folders which the user may not enter, without opening those folders."""
    paths = [os.path.realpath(path) for path in order["bind"]]
    opened = [(path, open_path(path)) for path in paths]
    covered: list[str] = []
    for path, descriptor in sorted(opened):
        closed = find_closed_ancestor(path, order)
        if closed is not None:
            mount = libc.mount(b"tmpfs", closed.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=1m")
            check(mount, "laying over a closed folder")
            covered.append(closed)
        if any(path.startswith(folder + "/") for folder in covered) and not is_same(path, descriptor):
            bind(path, descriptor)
        os.close(descriptor)


def find_closed_ancestor(path: str, order: dict[str, Any]) -> str | None:
    """Find the first folder above a path, seen from the root, that the order's user may not enter."""
    parts = path.split("/")[1:-1]
    for end in range(1, len(parts) + 1):
        folder = "/" + "/".join(parts[:end])
        try:
            found = os.stat(folder)
        except FileNotFoundError:
            return None
        if found.st_uid == order["uid"]:
            entered = found.st_mode & stat.S_IXUSR
        elif found.st_gid == order["gid"] or found.st_gid in order["groups"]:
            entered = found.st_mode & stat.S_IXGRP
        else:
            entered = found.st_mode & stat.S_IXOTH
        if not entered:
            return folder
    return None


def is_same(path: str, descriptor: int) -> bool:
    """Tell whether a path already leads to what the descriptor holds: a wider bind has brought it along."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def bind(path: str, descriptor: int, *, read_only: bool = False) -> None:
    """Bind what a descriptor holds at a path; read-only: without what is mounted beneath it, which would not be."""
    kind = os.fstat(descriptor).st_mode
    make_target(path, is_folder=stat.S_ISDIR(kind))
    source = b"/proc/self/fd/%d" % descriptor
    depth = 0 if read_only else MS_REC
    check(libc.mount(source, path.encode(), None, MS_BIND | depth, None), "binding a path")
    flags = MS_BIND | MS_REMOUNT | MS_NOSUID
    flags |= 0 if stat.S_ISCHR(kind) else MS_NODEV
    flags |= MS_RDONLY if read_only else 0
    check(libc.mount(None, path.encode(), None, flags, None), "binding a path without devices")


def make_target(path: str, *, is_folder: bool) -> None:
    if is_folder:
        os.makedirs(path, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
