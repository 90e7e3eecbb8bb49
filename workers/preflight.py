"""What must be there before anything is started; `make up` brings it, this only says what is missing."""

from __future__ import annotations

import os
import shutil

from drivers.confine import PROGRAM_FOLDERS

PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "dnsmasq": "dnsmasq-base",
    "nft": "nftables",
    "useradd": "passwd",
}
"""A program that the host worker runs -> the Debian package that has it."""

RULES_WITHOUT_ROOT = {
    "S-2": "one user is everything: API, Temporal, Postgres and guests can read each other's files",
    "S-9": "whoever is this user may enter Postgres' socket folder",
    "S-10": "guests have no users of their own",
    "S-11": "a hypervisor process is not jailed",
}
"""What cannot hold without root, and why (S-2)."""


def find_missing() -> tuple[str, ...]:
    """List what stands in the way, each as a sentence; empty: nothing."""
    missing: list[str] = []
    if os.geteuid() != 0:
        missing.append("root is needed for users, taps and firewall: run it as root, or `make up`, which asks for sudo")
    packages = sorted({package for name, package in PROGRAMS.items() if not shutil.which(name, path=PROGRAM_FOLDERS)})
    if packages:
        missing.append(f"Debian packages are missing: apt-get install {' '.join(packages)}")
    return tuple(missing)
