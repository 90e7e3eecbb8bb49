"""Questions that only a host can answer, such as its consoles: it dials out, so it comes and asks for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from model.errors import Unavailable
from model.ids import new_id

WAIT_SECONDS = 10.0
OPEN_LIMIT = 64


@dataclass(frozen=True)
class Errand:
    """One question to one host."""

    id: str
    kind: str
    vm_id: str
    limit_bytes: int


class Errands:
    """Hand questions to hosts that wait for them, and their answers back."""

    def __init__(self) -> None:
        self._queues: dict[str, asyncio.Queue[Errand]] = {}
        self._answers: dict[tuple[str, str], asyncio.Future[Any]] = {}

    async def ask(self, host_id: str, kind: str, vm_id: str, limit_bytes: int) -> Any:
        """Ask a host and wait for its answer; raise Unavailable when it does not come for it in time."""
        queue = self._queue(host_id)
        if queue.qsize() >= OPEN_LIMIT:
            raise Unavailable("the VM's host has too many questions open; try again in a moment")
        errand = Errand(new_id(), kind, vm_id, limit_bytes)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[host_id, errand.id] = answer
        queue.put_nowait(errand)
        try:
            return await asyncio.wait_for(answer, WAIT_SECONDS)
        except TimeoutError:
            raise Unavailable("the VM's host did not answer within 10 seconds; see `hostler host show`") from None
        finally:
            self._answers.pop((host_id, errand.id), None)

    async def take(self, host_id: str, wait_seconds: float) -> list[Errand]:
        """Return the questions for a host; wait for the first one."""
        queue = self._queue(host_id)
        try:
            first = await asyncio.wait_for(queue.get(), wait_seconds)
        except TimeoutError:
            return []
        found = [first]
        while not queue.empty():
            found.append(queue.get_nowait())
        # Nobody waits any more for what was asked too long ago.
        return [errand for errand in found if (host_id, errand.id) in self._answers]

    def answer(self, host_id: str, errand_id: str, content: Any) -> bool:
        """Take a host's answer; False when nobody waits for it any more."""
        waiting = self._answers.get((host_id, errand_id))
        if waiting is None or waiting.done():
            return False
        waiting.set_result(content)
        return True

    def _queue(self, host_id: str) -> asyncio.Queue[Errand]:
        return self._queues.setdefault(host_id, asyncio.Queue())
