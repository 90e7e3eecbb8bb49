"""What a guest's processes may take of its host: by its control group, and by limits of their own."""

from __future__ import annotations

import contextlib
import resource

from drivers.cgroups import CgroupLimits
from drivers.hypervisor import Guest
from drivers.hypervisor.qemu_arguments import TRANSLATION_CACHE_MIB
from drivers.processes import may_raise_limits
from model.process import ProcessRecord

MIB = 1 << 20
OVERHEAD_MIB = 192
"""What QEMU needs beside the guest's memory and its translation cache."""

PROCESS_LIMIT = 160
"""Threads: one per vCPU, and up to 64 for disks."""


def find_limits(guest: Guest) -> CgroupLimits:
    """Find what a guest's processes may take: its memory, the translation cache, and QEMU itself."""
    cache = TRANSLATION_CACHE_MIB if guest.accelerator == "tcg" else 0
    memory_mib = guest.memory_mib + cache + OVERHEAD_MIB
    return CgroupLimits(cpu_millicores=guest.cpu_millicores, memory_bytes=memory_mib * MIB, pids=PROCESS_LIMIT)


def find_process_limits(guest: Guest) -> dict[str, int]:
    """Find the limits of a guest's process (getrlimit(2)).

    The size of files is limited only where it can be raised again when the disk grows: a worker without
    CAP_SYS_RESOURCE, as in many containers, could not, and its guests' disks would be stuck.
    """
    limits = {"RLIMIT_NOFILE": 256, "RLIMIT_NPROC": PROCESS_LIMIT, "RLIMIT_MEMLOCK": 0}
    return limits | ({"RLIMIT_FSIZE": find_file_limit(guest)} if may_raise_limits() else {})


def raise_file_limit(guest: Guest, process: ProcessRecord, size_bytes: int) -> None:
    """Let a running guest's process have a file of so many bytes, beside those that it has."""
    if may_raise_limits():
        limit = find_file_limit(guest, size_bytes)
        with contextlib.suppress(ProcessLookupError):  # the question that follows then finds it gone
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))


def find_file_limit(guest: Guest, size_bytes: int = 0) -> int:
    """Find how large a file of the guest may become: its largest disk, its tables, and some room for their order."""
    disk_bytes = max(guest.disk_bytes, size_bytes, *(volume.size_bytes for volume in guest.volumes))
    return disk_bytes + disk_bytes // 512 + 64 * MIB
