"""Questions that only a host can answer, such as its consoles: it dials out, so it comes and asks for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from model.errors import Unavailable
from model.ids import new_id

WAIT_SECONDS = 10.0
OPEN_LIMIT = 64
ErrandKind = Literal["console", "record"]


class Errand(BaseModel):
    """One question to one host."""

    model_config = ConfigDict(frozen=True)

    id: str
    kind: ErrandKind
    vm_id: str
    limit_bytes: int


@dataclass
class _Questions:
    """What one host is asked: not yet handed out, and not yet answered."""

    waiting: list[Errand] = field(default_factory=list[Errand])
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    answers: dict[str, asyncio.Future[bytes]] = field(default_factory=dict[str, "asyncio.Future[bytes]"])


class Errands:
    """Hand questions to hosts that wait for them, and their answers back."""

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._wait_seconds = wait_seconds
        self._hosts: dict[str, _Questions] = {}

    async def ask(self, host_id: str, kind: ErrandKind, vm_id: str, limit_bytes: int) -> bytes:
        """Ask a host and wait for its answer; raise Unavailable when it does not come for it in time."""
        host = self._host(host_id)
        if len(host.answers) >= OPEN_LIMIT:
            raise Unavailable("the VM's host has too many questions open; try again in a moment")
        errand = Errand(id=new_id(), kind=kind, vm_id=vm_id, limit_bytes=limit_bytes)
        answer = host.answers[errand.id] = asyncio.get_running_loop().create_future()
        host.waiting.append(errand)
        host.arrived.set()
        try:
            async with asyncio.timeout(self._wait_seconds):
                return await answer
        except TimeoutError:
            raise Unavailable(
                f"the VM's host did not answer within {self._wait_seconds:g} seconds; see whether its worker runs"
            ) from None
        finally:
            host.answers.pop(errand.id, None)
            host.waiting = [each for each in host.waiting if each is not errand]

    async def take(self, host_id: str, wait_seconds: float) -> list[Errand]:
        """Return the questions for a host; wait for the first one. A caller that is cancelled has taken none."""
        host = self._host(host_id)
        if not host.waiting:
            host.arrived.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await host.arrived.wait()
            except TimeoutError:
                return []
        found, host.waiting = host.waiting, []
        return found

    def answer(self, host_id: str, errand_id: str, content: bytes) -> bool:
        """Take a host's answer; False when nobody waits for it from this host (any more)."""
        waiting = self._host(host_id).answers.get(errand_id)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(content)
        return True

    def _host(self, host_id: str) -> _Questions:
        return self._hosts.setdefault(host_id, _Questions())
