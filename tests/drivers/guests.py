"""What a test of a real guest needs around it: a tap in a network namespace of its own, disk, seed and folders."""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drivers.hypervisor import Guest
from drivers.names import HostNames

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
TAP_FLAGS = 0x0002 | 0x1000 | 0x4000  # IFF_TAP | IFF_NO_PI | IFF_VNET_HDR


@contextmanager
def open_tap() -> Iterator[int]:
    """Open a tap in a namespace that has no name and goes with it."""
    found: list[int] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", b"tap0", TAP_FLAGS))
        found.append(descriptor)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    try:
        yield found[0]
    finally:
        os.close(found[0])


def make_names() -> HostNames:
    """Draw an installation's names that no other test uses."""
    base = 300_000 + secrets.randbelow(50_000) * 10
    return HostNames(cgroup=f"hst-{secrets.token_hex(4)}", uid_base=base, uid_count=10)


def make_guest(folder: Path, names: HostNames, demo, vm_id: str = "vm-1", **more) -> Guest:
    """Make disk and seed of a guest that boots the demo image by its kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    disk, seed = folder / "disk", folder / "seed.iso"
    size = 256 << 20
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(demo.root_qcow2), str(disk), str(size)],
        check=True,
    )
    seed.write_bytes(bytes(1 << 20))
    uid = names.uid_base
    os.chown(disk, uid, uid)
    disk.chmod(0o600)
    values = {
        "vm_id": vm_id,
        "uid": uid,
        "gid": uid,
        "cpu_millicores": 1000,
        "memory_mib": 128,
        "mac": names.mac(vm_id),
        "disk": disk,
        "disk_format": "qcow2",
        "disk_bytes": size,
        "seed": seed,
        "sockets": folder / "sockets",
        "accelerator": "tcg",
        "kernel": demo.vmlinux,
        "initrd": demo.initrd,
        "command_line": demo.command_line,
        "base": demo.root_qcow2,
        "base_format": "qcow2",
    }
    return Guest(**{**values, **more})
