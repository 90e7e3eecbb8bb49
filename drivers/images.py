"""Base images on this host: fetched once per owner and digest, checked, read-only, published by one rename.

A fetch belongs to the host, not to who asked for it: it goes on when a caller leaves, and the next caller joins it, or
hears how it ended (L-C8, L-G10).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import fcntl
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from urllib.parse import urlsplit

from drivers.durable import make_folder, publish_durably, remove_durably, translated
from drivers.headers import SECTOR, DiskHeader, read_header
from drivers.image_child import FetchOrder, Mismatch, fetch, probe
from drivers.image_files import (
    VALIDATOR,
    BaseImage,
    FetchProgress,
    ImageFile,
    StoredFile,
    check_file,
    find_base,
    list_stored,
    open_below,
    redacted_url,
    stem,
)
from drivers.image_parts import Paths, create, open_or_create, seal
from drivers.space import Reservation, Space
from drivers.threads import finish, in_thread
from model.errors import Busy, ImageUnreachable, Permanent, StepFailed

__all__ = ["BaseImage", "FetchProgress", "ImageFile", "Images", "StoredFile", "redacted_url"]

TRIES = 3
IDLE_PARTIALS = 8
IDLE_PARTIAL_SECONDS = 86_400.0
ORPHAN_SECONDS = 15.0
OnProgress = Callable[[FetchProgress], None]


class _Listener:
    """A caller's wish to hear of progress, in the caller's own context; what it raises is that caller's alone."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._context = contextvars.copy_context()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(self, progress: FetchProgress) -> None:
        if self.failed.done():
            return
        try:
            self._context.run(self._on_progress, progress)
        except Exception as error:
            self.failed.set_exception(error)
            self.failed.exception()  # retrieved: the caller may have stopped waiting


class _Flight:
    """One fetch in progress, and who waits for it."""

    def __init__(self) -> None:
        self.task: asyncio.Task[BaseImage] | None = None
        self.listeners: list[_Listener] = []
        self.progress = FetchProgress(0, None)
        self.abandoned = False

    def note(self, progress: FetchProgress) -> None:
        self.progress = progress
        for listener in tuple(self.listeners):
            listener.hear(progress)


class Images:
    """The image folder of one host.

    user: uid and gid that fetching, unpacking and probing run as; None: this process' own. file_root: `file:` URLs are
    taken only below it; None: not at all. allowed: networks besides the public ones that may be connected to (S-19);
    None: any address.
    """

    def __init__(
        self,
        folder: Path,
        *,
        user: tuple[int, int] | None,
        file_root: Path | None,
        space: Space,
        max_virtual_size_bytes: int,
        allowed: Collection[str] | None = None,
    ) -> None:
        self._folder = folder
        self._user = user or (os.geteuid(), os.getegid())
        self._file_root = file_root
        self._space = space
        self._max_virtual_size_bytes = max_virtual_size_bytes
        self._allowed = None if allowed is None else tuple(allowed)
        self._flights: dict[str, _Flight] = {}

    def find(self, owner: str, file: ImageFile) -> BaseImage | None:
        """Find a base image that is whole and checked; a short blocking call."""
        check_file(file)
        return find_base(self._folder, owner, file)

    def progress(self, owner: str, file: ImageFile) -> FetchProgress | None:
        """Tell how far a fetch is; None when none is going on."""
        flight = self._flights.get(stem(owner, file))
        return flight.progress if flight and flight.task and not flight.task.done() else None

    async def ensure(
        self, owner: str, file: ImageFile, *, on_progress: OnProgress, wait_seconds: float = 600
    ) -> BaseImage | None:
        """Fetch a base image unless it is there; None when that still goes on after `wait_seconds`.

        However many ask, there is one fetch; who stops waiting, or is cancelled, stops nothing. Raises
        ImageUnreachable, StepFailed (digest), Permanent (digest's form, hostile file) and OutOfSpace, also when the
        fetch ended while nobody waited.
        """
        if (found := await in_thread(self.find, owner, file)) is not None:
            return found
        key = stem(owner, file)
        await self._await_abandoned(key)
        flight = self._flights.get(key) or self._start(key, owner, file)
        task = flight.task
        if task is None:
            raise StepFailed("the host worker is ending; the image is fetched when it is back")
        listener = _Listener(on_progress)
        listener.hear(flight.progress)
        flight.listeners.append(listener)
        try:
            done, _ = await asyncio.wait(
                {task, listener.failed}, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            flight.listeners.remove(listener)
        if listener.failed in done:
            listener.failed.result()
        if task not in done:
            return None
        if self._flights.get(key) is flight:
            del self._flights[key]
        if task.cancelled():
            raise StepFailed("the host worker ended while the image was fetched; it is tried again")
        return task.result()

    async def abandon(self, owner: str, file: ImageFile) -> None:
        """End a fetch that nobody waits for, and remove what came of it; a whole image stays (case O7)."""
        key = stem(owner, file)
        flight = self._flights.get(key)
        if flight is None or flight.task is None or flight.listeners:
            return
        flight.abandoned = True
        flight.task.cancel()
        await self._await_abandoned(key)

    async def _await_abandoned(self, key: str) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is not None and flight.abandoned:
            await asyncio.wait({flight.task})
            if self._flights.get(key) is flight:
                del self._flights[key]

    def list_files(self) -> tuple[StoredFile, ...]:
        """List base images and partial downloads; a blocking call."""
        try:
            return tuple(list_stored(self._folder))
        except FileNotFoundError:
            return ()

    def remove_unused(self, is_used: Callable[[StoredFile], bool]) -> tuple[StoredFile, ...]:
        """Remove the files that nothing depends on, by the caller's word, and no fetch is writing; a blocking call."""
        removed: list[StoredFile] = []
        for stored in self.list_files():
            if stored.name.split(".")[0] not in self._flights and not is_used(stored):
                remove_durably(self._folder / stored.name)
                if stored.is_partial:
                    remove_durably(self._folder / (stored.name.split(".")[0] + VALIDATOR))
                removed.append(stored)
        return tuple(removed)

    def note_use(self, stored: StoredFile) -> None:
        """Note that a base image is used now, by its time of change; a short blocking call."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._folder / stored.name, follow_symlinks=False)

    async def close(self) -> None:
        """End all fetches; their parts stay and are resumed later."""
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, key: str, owner: str, file: ImageFile) -> _Flight:
        flight = self._flights[key] = _Flight()
        # In a context of its own: what it starts belongs to no job of a VM.
        flight.task = asyncio.create_task(
            self._fly(owner, file, flight), name=f"fetch {key}", context=contextvars.Context()
        )
        flight.task.add_done_callback(lambda task: self._end(key, flight, task))
        return flight

    def _end(self, key: str, flight: _Flight, task: asyncio.Task[BaseImage]) -> None:
        """Forget a fetch that ended, unless its error is still to be told to somebody."""
        if (task.cancelled() or task.exception() is None) and self._flights.get(key) is flight:
            del self._flights[key]

    async def _fly(self, owner: str, file: ImageFile, flight: _Flight) -> BaseImage:
        if (found := await in_thread(self.find, owner, file)) is not None:
            return found
        await in_thread(make_folder, self._folder)
        await in_thread(self._remove_idle_partials)
        paths = Paths(self._folder, stem(owner, file))
        with translated("fetch the image"):
            keeps = False
            try:
                with self._space.reserve(0, "the image") as reservation:
                    return await self._fetch_and_publish(file, paths, flight, reservation)
            except (ImageUnreachable, Busy, asyncio.CancelledError):
                keeps = not flight.abandoned
                raise
            finally:
                await in_thread(paths.tidy, keeps)

    async def _fetch_and_publish(
        self, file: ImageFile, paths: Paths, flight: _Flight, reservation: Reservation
    ) -> BaseImage:
        partial = await self._open_partial(paths)
        try:
            output = await in_thread(create, paths.unpacked, self._user)
            try:
                unpacked = await self._fetch(file, paths, (partial, output), flight, reservation)
            finally:
                os.close(output)
        finally:
            os.close(partial)
        return await self._publish(file, paths.unpacked if unpacked else paths.partial, paths)

    async def _fetch(
        self, file: ImageFile, paths: Paths, files: tuple[int, int], flight: _Flight, reservation: Reservation
    ) -> bool:
        """Fetch until the digest is right, at most so many times."""
        received = 0
        for attempt in range(TRIES):
            source = await in_thread(self._open_source, file)
            validator = await in_thread(paths.read_validator)
            order = FetchOrder(file, self._user, *files, source, validator, self._allowed, self._max_virtual_size_bytes)
            try:
                return await fetch(order, reservation, flight.note, paths.keep_validator)
            except Mismatch as mismatch:
                received = mismatch.received_bytes
                os.ftruncate(files[0], 0)
                await paths.keep_validator(None)
                await asyncio.sleep(0.2 * attempt)  # a server that is being updated may be whole a moment later
            finally:
                if source is not None:
                    os.close(source)
        raise StepFailed(
            f"the image {redacted_url(file.url)} does not have the digest that was asked for: sha256 {file.sha256} "
            f"wanted, {received} bytes received, {TRIES} tries; check the address and the digest"
        )

    async def _open_partial(self, paths: Paths) -> int:
        """Open the partial file under its lock, which a child of a worker that died may hold for a moment."""
        descriptor = await in_thread(open_or_create, paths.partial, self._user)
        try:
            deadline = time.monotonic() + ORPHAN_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return descriptor
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise Busy("an earlier fetch of the same image has not ended yet") from error
                    await asyncio.sleep(0.1)
        except BaseException:
            os.close(descriptor)
            raise

    def _open_source(self, file: ImageFile) -> int | None:
        if urlsplit(file.url).scheme != "file":
            return None
        if self._file_root is None:
            raise Permanent("this host takes no images from files; give an http or https address")
        return open_below(self._file_root, file.url)

    async def _publish(self, file: ImageFile, made: Path, paths: Paths) -> BaseImage:
        """Lock a finished file, look at it with our own eyes and qemu-img's, and give it its name."""
        descriptor = await in_thread(seal, made)
        try:
            if file.kind == "rootfs":
                limit = self._max_virtual_size_bytes
                header = read_header(descriptor, max_virtual_size_bytes=limit, stated_format=file.format)
                if await probe(descriptor, header.format, self._user) != header.virtual_size_bytes:
                    raise Permanent("the image's size is read in two ways; give an image that is what it seems")
            else:
                header = DiskHeader("raw", -(-os.fstat(descriptor).st_size // SECTOR) * SECTOR)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        path = self._folder / f"{paths.stem}.{header.format}"
        await finish(in_thread(publish_durably, made, path))
        return BaseImage(path, header.format, header.virtual_size_bytes, size)

    def _remove_idle_partials(self) -> None:
        """Keep downloads that nobody goes on with few and young (D-7)."""
        idle = [
            stored
            for stored in self.list_files()
            if stored.is_partial and stored.name.split(".")[0] not in self._flights
        ]
        idle.sort(key=lambda stored: stored.modified_at, reverse=True)
        for place, stored in enumerate(idle):
            if place >= IDLE_PARTIALS or time.time() - stored.modified_at > IDLE_PARTIAL_SECONDS:
                remove_durably(self._folder / stored.name)
                remove_durably(self._folder / (stored.name.split(".")[0] + VALIDATOR))
