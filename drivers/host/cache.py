"""Images that nothing depends on make room where a host's filesystem is nearly full (D-5, D-12)."""

from __future__ import annotations

import logging

from drivers.host.parts import Parts
from drivers.host.storage import image_files
from drivers.image_files import StoredFile, stem
from drivers.records import RecordStore
from drivers.threads import in_thread
from model.room import DISK_STOP_CREATES_PERCENT

_log = logging.getLogger("hostler.images")


async def make_room(parts: Parts) -> None:
    """Remove what no VM uses or is about to use, once there is so little room that no VM is made."""
    if not await in_thread(parts.space.is_below, DISK_STOP_CREATES_PERCENT):
        return
    used = find_used(parts.records)
    if used is None:
        return

    def is_used(stored: StoredFile) -> bool:
        return stored.name.partition(".")[0] in used

    for stored in await in_thread(parts.images.remove_unused, is_used):
        _log.warning("removed the unused %s %s: the filesystem is nearly full", stored.kind, stored.name)


def find_used(records: RecordStore) -> frozenset[str] | None:
    """Return the files that a VM's disk or boot depends on, or that it is made from, by their names' stems.

    None while a record cannot be read: nobody can tell then.
    """
    used: set[str] = set()
    for entry in records:
        if entry.unreadable is not None or entry.config is None:
            return None
        image = entry.config.input.image
        used |= {stem(image.owner, file) for file in image_files(image)}
        for files in (entry.status.images, entry.status.kept_images) if entry.status else ():
            used |= {name.partition(".")[0] for name in files.names} if files else set()
    return frozenset(used)
