"""Listen to a guest's console for as long as it speaks, and keep a bounded log of it (S-14).

QEMU keeps no file that could grow; whoever listens writes one. A listener that does not read would make the guest
wait, so what comes is always taken. The log is raw: nothing decides by it, and it is shown only to who asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from drivers.durable import open_folder, translated
from drivers.hypervisor.monitor import connect_socket

LOG, OLDER, LISTENING = "console.log", "console.log.1", "console.listening"
CHUNK_BYTES = 1 << 16
RETRY_SECONDS = 0.05
LISTENING_SECONDS = 10.0
"""How exactly a log knows when a worker that was killed had listened last."""
GAP_SECONDS = 1.0


class ConsoleLog:
    """The console log of one guest: two files of half the limit each, in the guest's own folder.

    `console.listening` lies beside while somebody listens; its time says until when.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._half = max(1024, limit_bytes // 2)
        self._task: asyncio.Task[None] | None = None

    def start(self, sockets: Path) -> None:
        """Listen at the console socket in a folder, now or as soon as it is there, until `stop`."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(sockets), name="console")

    async def stop(self) -> None:
        """Stop listening. The guest goes on; what it says until the next `start` is lost, and the log says so."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def tail(self, limit_bytes: int) -> bytes:
        """Return the last bytes of the log, raw."""
        found = b""
        with translated("read the console log"), open_folder(self._folder) as folder:
            for name in (LOG, OLDER):
                if len(found) < limit_bytes:
                    found = read_end(folder, name, limit_bytes - len(found)) + found
        return found

    async def _listen(self, sockets: Path) -> None:
        while True:
            try:
                connection = await connect_socket(sockets, "console.sock")
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)  # no guest yet, or none any more
                continue
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=CHUNK_BYTES)
            try:
                await self._do(self._begin)
                await self._drain(reader)
                await self._do(self._end)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _drain(self, reader: asyncio.StreamReader) -> None:
        """Take all that comes until the guest's hypervisor closes."""
        reading: asyncio.Task[bytes] | None = None
        try:
            while True:
                reading = reading or asyncio.create_task(reader.read(CHUNK_BYTES))
                await asyncio.wait((reading,), timeout=LISTENING_SECONDS)
                chunk: bytes | None = None
                if reading.done():
                    chunk, reading = reading.result(), None
                    if not chunk:
                        return
                await self._do(self._keep, chunk or b"")
        except ConnectionResetError:
            return
        finally:
            if reading is not None:
                reading.cancel()
            with contextlib.suppress(OSError):
                self._touch()

    async def _do(self, what: Callable[..., None], *arguments: bytes) -> None:
        """Write without holding up the loop; what the filesystem refuses is lost: the guest never waits."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(what, *arguments)

    def _begin(self) -> None:
        """Note from when to when nobody listened, if somebody had and did not hear the end."""
        with contextlib.suppress(FileNotFoundError):
            last = (self._folder / LISTENING).lstat().st_mtime
            if time.time() - last > GAP_SECONDS:
                self._keep(f"\r\n[hostler: nobody listened from {say(last)} to {say(time.time())}]\r\n".encode())
        self._touch()

    def _end(self) -> None:
        (self._folder / LISTENING).unlink(missing_ok=True)

    def _touch(self) -> None:
        with open_folder(self._folder) as folder:
            descriptor = os.open(
                LISTENING, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
            )
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)

    def _keep(self, data: bytes) -> None:
        """Append to the log; when it is full it becomes the older one."""
        self._touch()
        while data:
            with open_folder(self._folder) as folder:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(LOG, flags, 0o600, dir_fd=folder)
                try:
                    room = self._half - os.fstat(descriptor).st_size
                    if room > 0:
                        data = data[os.write(descriptor, data[:room]) :]
                finally:
                    os.close(descriptor)
                if room <= 0:
                    os.rename(LOG, OLDER, src_dir_fd=folder, dst_dir_fd=folder)


def read_end(folder: int, name: str, limit_bytes: int) -> bytes:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return b""
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        file.seek(max(0, os.fstat(descriptor).st_size - limit_bytes))
        return file.read(limit_bytes)


def say(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
