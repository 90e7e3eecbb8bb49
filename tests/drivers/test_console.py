"""The console log: everything is taken, little is kept, and what nobody heard is said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from pathlib import Path

import pytest

from drivers.console import LISTENING, LOG, OLDER, ConsoleLog


class Speaker:
    """A guest's end of the console socket, one listener at a time as QEMU has it."""

    def __init__(self, sockets: Path) -> None:
        self.path = sockets / "console.sock"
        self.writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self.all: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Speaker:
        self.path.unlink(missing_ok=True)
        self.server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.all.append(writer)
        await self.writers.put(writer)

    async def listener(self) -> asyncio.StreamWriter:
        return await asyncio.wait_for(self.writers.get(), 10)

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for writer in self.all:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)


@pytest.fixture
def sockets(tmp_path) -> Path:
    folder = tmp_path / "s"
    folder.mkdir()
    return folder


@pytest.fixture
async def log(tmp_path):
    folder = tmp_path / "machine"
    folder.mkdir()
    log = ConsoleLog(folder, 8192)
    yield log
    await log.stop()


async def test_raw_bytes_are_kept_for_root_alone(log: ConsoleLog, sockets: Path, tmp_path):
    """S-14, S-42: raw, 0600; the listener may be there before the guest."""
    log.start(sockets)
    log.start(sockets)
    async with Speaker(sockets) as speaker:
        writer = await speaker.listener()
        writer.write(b"\x1b[2Jlogin: \x00\xff")
        await until(lambda: log.tail(100) == b"\x1b[2Jlogin: \x00\xff")
        assert log.tail(2) == b"\x00\xff"
        for name in (LOG, LISTENING):
            assert stat.S_IMODE((tmp_path / "machine" / name).stat().st_mode) == 0o600
        writer.close()


async def test_the_log_is_bounded_and_the_guest_never_waits(log: ConsoleLog, sockets: Path, tmp_path):
    """S-14: two files of half the limit; all is taken, however much comes."""
    log.start(sockets)
    async with Speaker(sockets) as speaker:
        writer = await speaker.listener()
        for n in range(2000):
            writer.write(b"%06d " % n * 40)
            await asyncio.wait_for(writer.drain(), 10)
        writer.write(b"the end")
        await until(lambda: log.tail(7) == b"the end")
        folder = tmp_path / "machine"
        assert (folder / LOG).stat().st_size <= 4096
        assert (folder / OLDER).stat().st_size == 4096
        whole = log.tail(1 << 20)
        assert len(whole) <= 8192
        assert log.tail(5000) == whole[-5000:]
        writer.close()


async def test_what_nobody_heard_is_said(log: ConsoleLog, sockets: Path, tmp_path):
    """S-14: what a guest prints while no worker runs is lost, and the log says from when to when."""
    async with Speaker(sockets) as speaker:
        log.start(sockets)
        writer = await speaker.listener()
        writer.write(b"before")
        await until(lambda: log.tail(100) == b"before")
        await log.stop()
        writer.close()
        hour_ago = time.time() - 3600
        os.utime(tmp_path / "machine" / LISTENING, (hour_ago, hour_ago))
        log.start(sockets)
        writer = await speaker.listener()
        writer.write(b"after")
        await until(lambda: log.tail(5) == b"after")
        said = log.tail(1000).decode()
        assert said.startswith("before\r\n[hostler: nobody listened from 20")
        assert " to 20" in said
        writer.close()


async def test_the_end_of_a_guest_is_no_gap(log: ConsoleLog, sockets: Path):
    """A guest that ended said nothing; its next boot is heard from the first byte."""
    log.start(sockets)
    async with Speaker(sockets) as speaker:
        writer = await speaker.listener()
        writer.write(b"one")
        await until(lambda: log.tail(100) == b"one")
        writer.close()
        writer = await speaker.listener()
        writer.write(b"two")
        await until(lambda: log.tail(100) == b"onetwo")
        writer.close()


async def test_a_link_in_its_place_is_not_followed(log: ConsoleLog, sockets: Path, tmp_path):
    """S-13: root follows no link, not even in its own folder; what cannot be kept is taken all the same."""
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "machine" / LOG).symlink_to(target)
    log.start(sockets)
    async with Speaker(sockets) as speaker:
        writer = await speaker.listener()
        writer.write(b"evil")
        await asyncio.sleep(0.1)
        (tmp_path / "machine" / LOG).unlink()
        writer.write(b"good")
        await until(lambda: log.tail(100) == b"good")
        assert target.read_bytes() == b"precious"
        writer.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_case_j7_a_gigabyte_of_output_leaves_a_bounded_log(log: ConsoleLog, sockets: Path, tmp_path):
    """Case J7, S-14: the files never exceed their limit, the last lines are there, and the guest was never held up."""
    log.start(sockets)
    block = b"".join(b"line %08d of a chatty guest\r\n" % number for number in range(32_768))
    folder = tmp_path / "machine"
    async with Speaker(sockets) as speaker:
        writer = await speaker.listener()
        for _ in range((1 << 30) // len(block)):
            writer.write(block)
            await asyncio.wait_for(writer.drain(), 60)
            assert sum(_size(path) for path in folder.iterdir()) <= 8192
        writer.write(b"the last words")
        await until(lambda: log.tail(14) == b"the last words")
        assert log.tail(100).endswith(b"of a chatty guest\r\nthe last words")
        writer.close()


def _size(path: Path) -> int:
    """A log that is turned over while it is looked at has no size for a moment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
