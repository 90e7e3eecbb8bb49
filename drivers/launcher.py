"""Become another program as another user, with nothing but what the order lists (S-11).

Run by `drivers.confine` as `python -I -S launcher.py MODE ORDER STATUS GO`, where the last three are descriptors: the
order is marshalled, what goes wrong is answered on STATUS, which the kernel closes when the program has begun. MODE is
`exec` (this process becomes the program, and ends with its parent) or `detach` (a child that belongs to nobody does,
once a byte comes on GO, and ends if GO closes first). It needs `drivers.jail` alone and imports little (no json, signal
or pathlib, which cost 15 ms): each import delays every guest and every helper.
"""

# pathlib and itertools cost start-up time, and to start a program is what this is for:
# ruff: noqa: PTH100, PTH120, RUF007, S606

from __future__ import annotations

import ctypes
import fcntl
import marshal
import os
import resource
import sys

# Last in the path, so that nothing there hides a module of the standard library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from drivers.jail import LaunchError, check, isolate, leave_process_ids, libc

TYPE_CHECKING = False  # importing `typing` for it would cost more than all the rest of a start
if TYPE_CHECKING:
    from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 1, 24, 38, 47, 4
CAPABILITY_VERSION_3 = 0x20080522
EINVAL = 22
SIGKILL, SIGSTOP, SIGXFSZ, SIG_SETMASK = 9, 19, 25, 2


def read_order(descriptor: int) -> dict[str, Any]:
    with os.fdopen(descriptor, "rb") as file:
        return marshal.loads(file.read())  # noqa: S302 - written by the parent, on a descriptor that only it had


def join_cgroups(files: list[str]) -> None:
    """Join first, so that all that the program ever uses is charged to it."""
    for file in files:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, b"0")
        os.close(descriptor)


def place_descriptors(wanted: dict[int, int], own: list[int]) -> list[int]:
    """Give each wanted descriptor its number, close all others, and return the new numbers of this script's own."""
    for number in (0, 1, 2):
        if number not in wanted:
            wanted[number] = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    above = max([*wanted, *wanted.values(), *own]) + 1
    raised = {number: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, above) for number, source in wanted.items()}
    own = [fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, above) for source in own]
    for number, source in raised.items():
        os.dup2(source, number, inheritable=True)
    kept = [-1, *sorted([*wanted, *own]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]]
    for lower, upper in zip(kept, kept[1:], strict=False):
        if lower + 1 < upper:  # an empty range from 0 would close all
            os.closerange(lower + 1, upper)
    return own


def set_limits(limits: dict[str, int]) -> None:
    for name, value in (limits | {"RLIMIT_CORE": 0}).items():
        resource.setrlimit(getattr(resource, name), (value, value))


def become_user(uid: int, gid: int, groups: list[int]) -> None:
    """Change to the user for good: no capability is left, nor any way to gain one."""
    if os.geteuid() == 0:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        if uid != 0:
            drop_bounding_set()
        os.setresuid(uid, uid, uid)
    elif (os.getuid(), os.getgid()) != (uid, gid):
        raise LaunchError("another user: only root may change it")
    if uid != 0:
        libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
        check(libc.capset(header, (ctypes.c_uint32 * 6)()), "dropping all capabilities")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")


def drop_bounding_set() -> None:
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() == EINVAL and capability > 0:
                return  # past the last one that this kernel knows
            check(-1, "emptying the bounding set")


def end_with(parent: int) -> None:
    """Be killed as soon as whoever asked for this is gone: nothing that it began may act after its successor (L-G2).

    A change of user takes the wish back (prctl(2)), so it is made again afterwards; one who died before is seen.
    """
    check(libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "ending with the parent")
    if os.getppid() != parent:
        os._exit(125)


def reset_signals() -> None:
    """Undo what others set, but ignore SIGXFSZ: a file at its size limit is an error to handle, not a death."""
    for number in range(1, 65):
        if number not in (SIGKILL, SIGSTOP, SIGXFSZ):
            libc.signal(number, None)
    check(libc.sigprocmask(SIG_SETMASK, (ctypes.c_uint64 * 16)(), None), "unblocking signals")


def prepare(order: dict[str, Any], own: list[int]) -> None:
    """Do everything that comes before the program; `own` are this script's descriptors, renumbered."""
    join_cgroups(order["cgroup_files"])
    os.umask(0o022)  # whatever the caller's is: the user must enter what is made on the way to a bound path
    isolate(order)
    os.umask(0o077)
    os.chdir("/")
    own[:] = place_descriptors(order["descriptors"], own)
    set_limits(order["limits"])
    become_user(order["uid"], order["gid"], order["groups"])
    os.chdir(order["working_directory"])
    reset_signals()


def become(order: dict[str, Any], own: list[int]) -> NoReturn:
    """Turn into the program, or answer what prevented it and end."""
    try:
        prepare(order, own)
        if len(own) > 1:
            answer(own[0], "ready")
            if os.read(own[1], 1) != b"g":
                os._exit(125)
        else:
            end_with(order["parent"])
        os.execve(order["argv"][0], order["argv"], order["environment"])
    except LaunchError as error:
        answer(own[0], f"error {error}")
    except Exception as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
        answer(own[0], f"error {find_step(error)}: {reason}")
    os._exit(126)


def find_step(error: BaseException) -> str:
    """Find the name of the function above in which an error arose; its own text may hold a path."""
    trace, name = error.__traceback__, "start"
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == __file__:
            name = trace.tb_frame.f_code.co_name
        trace = trace.tb_next
    return name.replace("_", " ")


def answer(status: int, text: str) -> None:
    os.write(status, text.encode() + b"\n")


def main() -> None:
    mode, order_descriptor, status, go = sys.argv[1], *map(int, sys.argv[2:5])
    order = read_order(order_descriptor)
    end_with(order["parent"])
    if mode == "exec":
        os.setsid()
        order["descriptors"] = {0: 0, 1: 1, 2: 2} | order["descriptors"]
        become(order, [status])
    leave_process_ids(order)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        become(order, [status, go])
    answer(status, f"pid {pid}")


if __name__ == "__main__":
    main()
