"""What stands between a client and a server of the fleet: it lets through, refuses, cuts, or loses answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
_CHUNK = 1 << 16


class Gate:
    """A listener that hands each connection on to the server behind it.

    lose_answers: what the server says is thrown away, and the connection with it. lost: how many answers were.
    """

    def __init__(self, dial: Dial, *, port: int | None = None, path: Path | None = None) -> None:
        self._dial = dial
        self._port = port
        self._path = path
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.lose_answers = False
        self.lost = 0
        self.refused = False

    async def open(self) -> None:
        """Take connections."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, self._path)
            self._path.chmod(0o777)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.refused = False

    async def refuse(self) -> int:
        """Let the kernel refuse new connections, and cut those there are; return how many those were."""
        self.refused = True
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        return await self.cut()

    async def cut(self) -> int:
        """Break every connection; return how many there were."""
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    async def close(self) -> None:
        await self.refuse()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            far_reader, far_writer = await self._dial()
        except OSError:
            _abort(writer)
            del self._open[task]
            return
        ways = [
            asyncio.create_task(self._carry(reader, far_writer, answers=False)),
            asyncio.create_task(self._carry(far_reader, writer, answers=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            _abort(writer)
            _abort(far_writer)
            self._open.pop(task, None)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if answers and self.lose_answers:
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()


def to_port(port: int) -> Dial:
    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return reader, writer

    return dial


def to_path(path: Path) -> Dial:
    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(path)

    return dial


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(Exception):
        writer.transport.abort()
