"""How full a host's filesystem may be: what is warned of, and where no VM is made any more (D-12)."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30
DISK_WARN_PERCENT = 10
DISK_STOP_CREATES_PERCENT = 5


def is_below(percent: int, free_bytes: int | None, total_bytes: int | None) -> bool:
    """Say whether less than so much of a filesystem is free; of one that nobody could measure it is not (H-S7)."""
    return free_bytes is not None and total_bytes is not None and free_bytes * 100 < total_bytes * percent


def describe_room(free_bytes: int | None, total_bytes: int | None) -> str:
    """Write how much is free, for people."""
    return f"{human(free_bytes or 0)} of {human(total_bytes or 0)} free"


def human(size_bytes: int) -> str:
    """Write a size for people: GiB with one decimal, MiB below one GiB."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{-(-size_bytes // MIB)} MiB"
