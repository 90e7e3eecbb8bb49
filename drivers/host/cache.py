"""The images that a host keeps: those of its policies, those in use, and any other for a day (D-5, D-12)."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Callable

from drivers.host.parts import Parts
from drivers.host.storage import image_files
from drivers.image_files import StoredFile, stem
from drivers.images import Images
from drivers.records import RecordStore
from drivers.space import Space
from drivers.threads import in_thread
from model.errors import HostlerError
from model.room import DISK_WARN_PERCENT
from model.sync import SyncSets
from model.vm import Image

UNUSED_SECONDS = 86_400.0
NOTE_SECONDS = 600.0
"""How long ago a use may have been noted."""
RETRY_SECONDS = 300.0
_log = logging.getLogger("hostler.images")


class ImagePolicies:
    """The images that the fleet wants on this host whatever its VMs use: kept, and fetched ahead (D-5).

    What may be fetched, from where and for whom is what it is for a VM's image (S-19): each belongs to its owner.
    """

    def __init__(self, images: Images, space: Space) -> None:
        self._images = images
        self._space = space
        self._wanted: tuple[Image, ...] = ()
        self._fetching: asyncio.Task[None] | None = None
        self._again_at = 0.0

    @property
    def stems(self) -> frozenset[str]:
        """The names, but for their endings, of all files that are wanted."""
        return frozenset(stem(image.owner, file) for image in self._wanted for file in image_files(image))

    async def apply(self, sets: SyncSets) -> frozenset[str]:
        """Replace the whole set and begin to fetch what is missing. No VM's input changes by that."""
        self._wanted = sets.image_policies
        self._again_at = 0.0
        self.fetch_ahead()
        return frozenset()

    def fetch_ahead(self) -> None:
        """Fetch what is missing, unless that is under way or failed lately: it belongs to no VM, no step waits for it.

        A fetch of what is not wanted any more goes on: whoever is about to make a VM of it may wait for it.
        """
        under_way = self._fetching is not None and not self._fetching.done()
        if self._wanted and not under_way and time.monotonic() >= self._again_at:
            self._fetching = asyncio.create_task(self._fetch(), name="fetch ahead", context=contextvars.Context())

    async def settled(self) -> None:
        """Wait for the fetches that are under way."""
        if self._fetching is not None:
            await asyncio.wait({self._fetching})

    async def close(self) -> None:
        """Stop waiting for fetches; they belong to the image folder, which ends them."""
        if self._fetching is not None:
            self._fetching.cancel()
            await self.settled()

    async def _fetch(self) -> None:
        done: set[str] = set()
        while missing := [image for image in self._wanted if _key(image) not in done]:
            image = missing[0]
            done.add(_key(image))
            if await in_thread(self._space.is_below, DISK_WARN_PERCENT):
                self._pause()
                return
            for file in image_files(image):
                try:
                    await self._images.ensure(image.owner, file, on_progress=lambda _: None)
                except HostlerError as error:
                    self._pause()
                    _log.warning("an image of the host's policy is not here yet, it is tried again: %s", error.detail)

    def _pause(self) -> None:
        self._again_at = time.monotonic() + RETRY_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreading (H-S12)


def _key(image: Image) -> str:
    return " ".join(stem(image.owner, file) for file in image_files(image))


async def make_room(parts: Parts, policies: ImagePolicies, now: Callable[[], float] = time.time) -> None:
    """Remove what is no policy's, and no VM uses or is about to use: a day after its last use, if not earlier.

    Earlier where there is little room. A use is noted by the file's own time of change.
    """
    used = find_used(parts.records)
    if used is None:
        return
    tight = await in_thread(parts.space.is_below, DISK_WARN_PERCENT)
    kept = used | policies.stems

    def is_kept(stored: StoredFile) -> bool:
        if stored.name.partition(".")[0] in kept:
            if not stored.is_partial and now() - stored.modified_at > NOTE_SECONDS:
                parts.images.note_use(stored)
            return True
        # Half a download has a limit of its own while there is room.
        return not tight and (stored.is_partial or now() - stored.modified_at < UNUSED_SECONDS)

    for stored in await in_thread(parts.images.remove_unused, is_kept):
        _log.warning("removed the %s %s, which nobody uses", stored.kind, stored.name)


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
