"""Talk to one QEMU by QMP: bounded answers, bounded waits, errors translated (S-14).

QEMU speaks with one client at a time, so there is one connection per guest, shared by all that ask. What is on the
other side may be hostile: its events carry nothing that is believed, they only say "look again".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path
from typing import cast

from qemu.qmp import ExecuteError, Message, QMPClient, QMPError, Runstate

from drivers.durable import open_folder
from model.errors import StepFailed
from model.text import clean_text

# The library logs what the other side said, and every lost connection as an error; both are told by our own errors.
logging.getLogger("qemu.qmp").propagate = False

ANSWER_LIMIT_BYTES = 1 << 20
ANSWER_SECONDS = 5.0


class Monitor:
    """The connection to one guest's QEMU, opened when it is needed and again when it was lost."""

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self._client: QMPClient | None = None
        self._lock = asyncio.Lock()
        self.moved = asyncio.Event()
        """Set by every event of QEMU; who waits for it clears it first and looks afterwards."""

    async def execute(
        self,
        command: str,
        arguments: dict[str, object] | None = None,
        *,
        descriptor: int | None = None,
        timeout_seconds: float = ANSWER_SECONDS,
    ) -> object:
        """Ask one thing and return the answer. StepFailed: QEMU said no, or did not answer in time.

        descriptor: an open file that goes with the command.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(timeout_seconds):
                    client = await self._connect()
                    if descriptor is not None:
                        client.send_fd_scm(descriptor)
                    return await client.execute(command, arguments)
            except ExecuteError as error:
                raise StepFailed(f"QEMU refused {command}: {clean_text(str(error), 500)}") from error
            except (TimeoutError, QMPError, OSError, EOFError) as error:
                await self._drop()
                raise StepFailed(f"QEMU did not answer {command} within {timeout_seconds:g} s") from error
            except BaseException:
                await self._drop()  # an answer that nobody awaits must not meet the next question
                raise

    async def find_status(self) -> str:
        """Ask for QEMU's run state, a word such as `running`."""
        answer = await self.execute("query-status")
        status = cast("dict[str, object]", answer).get("status") if isinstance(answer, dict) else None
        return status if isinstance(status, str) else "unknown"

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _connect(self) -> QMPClient:
        if self._client is not None and self._client.runstate == Runstate.RUNNING:
            return self._client
        await self._drop()
        connection = await connect_socket(self._sockets, "qmp.sock")
        client = QMPClient(readbuflen=ANSWER_LIMIT_BYTES)
        client.events.event_filter = self._hear
        self._client = client
        await client.connect(connection)
        return client

    def _hear(self, event: Message) -> bool:
        """Note that something moved, and keep nothing of the event: their number has no bound."""
        del event
        self.moved.set()
        return False

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TimeoutError, QMPError, OSError, EOFError):
                async with asyncio.timeout(1):
                    await client.disconnect()


async def connect_socket(folder: Path, name: str) -> socket.socket:
    """Connect to a Unix socket beneath a folder's descriptor, so that no path is too long for it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with open_folder(folder) as descriptor:
            await asyncio.get_running_loop().sock_connect(connection, f"/proc/self/fd/{descriptor}/{name}")
    except BaseException:
        connection.close()
        raise
    return connection
