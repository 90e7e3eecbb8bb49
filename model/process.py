"""Which process is meant, beyond doubt: a pid alone is reused by the kernel."""

from __future__ import annotations

from model.base import Frozen


class ProcessRecord(Frozen):
    """Name one process of one host.

    pid: as the host's own pid namespace counts it. start_time: field 22 of /proc/PID/stat, in clock ticks since the
    host's boot. boot_id: /proc/sys/kernel/random/boot_id at the start. uid: the user that the process runs as.
    """

    pid: int
    start_time: int
    boot_id: str
    uid: int
