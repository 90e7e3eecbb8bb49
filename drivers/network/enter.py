"""Enter a network namespace, make a folder reachable for a user, and become a program.

Run as `python -I -S enter.py NETNS UID GID FOLDER PROGRAM…` by root, for a program that gives up root by itself.
NETNS is a path, or empty. It stands alone but for `drivers.jail`, which lays the mounts.
"""

from __future__ import annotations

import ctypes
import os
import sys

# Last in the path, so that nothing there hides a module of the standard library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120 - cost start-up time
from drivers.jail import isolate

CLONE_NEWNET = 0x40000000


def main() -> None:
    netns, uid, gid, folder, *argv = sys.argv[1:]
    if netns:
        descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    os.umask(0o022)  # the folders that it makes on the way are for that user to enter
    isolate({"bind": [folder], "uid": int(uid), "gid": int(gid), "groups": [], "jail": None})
    os.execv(argv[0], argv)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
