#!/usr/bin/env python3
"""Build the demo guest from Debian packages: kernel, initrd, root disk.

No root, no loop device, no mount: as another user it runs itself again under `unshare -r`, so
that the files in the disk belong to root. Needs the standard library, apt, dpkg, e2fsprogs,
kmod, qemu-utils and util-linux. A guest that was built from the same inputs is used again,
without a word to the network.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from cache import GuestCache
from kernel import make_initrd, unpack_kernel
from packages import Apt, AptError, Package, sha256_of
from root import FILES, make_root_disk

COMMAND_LINE = (
    "root=/dev/vda console=ttyS0 quiet mitigations=off tsc=reliable no_timer_check random.trust_cpu=on "
    "cryptomgr.notests 8250.nr_uarts=1"
)
ROOT_SIZE = "64M"


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the demo guest, or find it built.")
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished guests and packages")
    parser.add_argument("--print-folder", action="store_true", help="print the folder of the guest")
    parser.add_argument("--print-key", action="store_true", help="print the digest of the inputs, build nothing")
    arguments = parser.parse_args()
    if platform.machine() != "x86_64":
        print(f"guest: made for x86_64; this machine is {platform.machine()}", file=sys.stderr)
        return 1
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # where Debian keeps mke2fs and depmod, off a user's PATH
    cache = GuestCache(arguments.cache.resolve())
    try:
        if arguments.print_key:
            print(cache.known_key() or cache.key(resolve(cache)[1]))
            return 0
        folder = cache.finished(cache.known_key()) or build_as_root(cache)
    except AptError as error:
        print(f"guest: {error}", file=sys.stderr)
        return 1
    if arguments.print_folder:
        print(folder)
    return 0


def build_as_root(cache: GuestCache) -> Path:
    """Build the guest as root, or as what looks like root: then this process is replaced by that one."""
    if os.geteuid():
        os.execvp("unshare", ["unshare", "-r", "--", sys.executable, *sys.argv])  # noqa: S606 (a list, no shell)
    with cache.lock():
        return cache.finished(cache.known_key()) or build_or_fall_back(cache)


def build_or_fall_back(cache: GuestCache) -> Path:
    try:
        apt, packages = resolve(cache)
        key = cache.key(packages)
        folder = cache.finished(key) or build(cache, apt, packages)
    except AptError as error:
        folder = cache.newest_of_these_scripts()
        if folder is None:
            raise
        print(f"guest: using the one built earlier, as {error}", file=sys.stderr)
        return folder
    cache.remember(folder.name)
    return folder


def resolve(cache: GuestCache) -> tuple[Apt, list[Package]]:
    """Name the packages by the machine's lists, else by lists of our own."""
    apt = Apt()
    try:
        return apt, apt.resolve()
    except AptError:
        return resolve_anew(cache)


def resolve_anew(cache: GuestCache) -> tuple[Apt, list[Package]]:
    apt = Apt(cache.own_lists)
    apt.update()
    return apt, apt.resolve()


def build(cache: GuestCache, apt: Apt, packages: list[Package]) -> Path:
    report = Progress()
    try:
        apt.fetch(packages, cache.packages)
    except AptError:  # the machine's lists name files that the mirror no longer has
        apt, packages = resolve_anew(cache)
        apt.fetch(packages, cache.packages)
    report("packages")
    key = cache.key(packages)
    with cache.new(key) as work:
        out = work / "out"
        unpacked, dynamic, kernel = unpack(packages, cache.packages, work)
        report("unpacked")
        modules_folder = make_kernel(unpacked, kernel, out)
        report("kernel and initrd")
        make_root_disk(unpacked, dynamic, modules_folder, work, out / "root.qcow2", ROOT_SIZE)
        report("root disk")
        describe(cache, packages, out)
    return cache.folder / key


def unpack(packages: list[Package], files: Path, work: Path) -> tuple[Path, Path, Path]:
    """Unpack into three folders: the programs, the dynamic busybox (its path clashes), the kernel."""
    programs, dynamic, kernel = (work / name for name in ("programs", "dynamic", "kernel"))
    for package in packages:
        target = programs
        if package.name == "busybox":
            target = dynamic
        elif package.name.startswith("linux-image-"):
            target = kernel
        subprocess.run(["dpkg-deb", "-x", files / package.file, target], check=True)
    return programs, dynamic, kernel


def make_kernel(unpacked: Path, kernel: Path, out: Path) -> Path:
    """Write vmlinux and initrd; return the folder of the kernel's modules."""
    modules_folder = next((kernel / "lib/modules").iterdir())
    if not (modules_folder / "modules.dep").exists():  # made when the package is installed
        subprocess.run(["depmod", "-b", kernel, modules_folder.name], check=True)
    image = next((kernel / "boot").glob("vmlinuz-*")).read_bytes()
    (out / "vmlinux").write_bytes(unpack_kernel(image, unpacked))
    init = (FILES / "initramfs-init").read_bytes()
    (out / "initrd").write_bytes(make_initrd(modules_folder, (unpacked / "bin/busybox").read_bytes(), init))
    return modules_folder


def describe(cache: GuestCache, packages: list[Package], out: Path) -> None:
    """Write image.json: what a fleet must be told to boot this guest, and what it was made from."""
    command = ["qemu-img", "info", "--output=json", out / "root.qcow2"]
    virtual_size = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["virtual-size"]
    description = {
        "name": "demo",
        "architecture": "x86_64",
        "rootfs": {"file": "root.qcow2", "sha256": sha256_of(out / "root.qcow2"), "format": "qcow2"},
        "kernel": {"file": "vmlinux", "sha256": sha256_of(out / "vmlinux")},
        "initrd": {"file": "initrd", "sha256": sha256_of(out / "initrd")},
        "command_line": COMMAND_LINE,
        "virtual_size_bytes": virtual_size,
        "inputs": {"scripts": cache.scripts, "packages": {p.name: p.version for p in packages}},
    }
    (out / "image.json").write_text(json.dumps(description, indent=2) + "\n")


class Progress:
    """Tell on standard error how long each step took."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, step: str) -> None:
        now = time.monotonic()
        print(f"guest: {now - self.last:5.1f} s  {step}", file=sys.stderr, flush=True)
        self.last = now


if __name__ == "__main__":
    sys.exit(main())
