"""How many VMs of a host may be in one heavy phase at once, and who is next (L-C7)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import datetime

WAIT_SECONDS = 60.0
PLACE_SECONDS = 180.0


@dataclass
class _Place:
    """One VM's place. `called`: its turn has come and a slot is kept for it; `users`: steps that wait or work now."""

    vm_id: str
    key: tuple[int, float, int]
    called: bool
    until: float
    users: int = 0
    turn: asyncio.Event = field(default_factory=asyncio.Event)


class Slots:
    """A queue by boot priority (higher first), then by the age of the row.

    A place without a step that uses it ends 3 minutes after the last one, whether it waits or holds a slot, so that a
    pass which died keeps nothing for ever. `on_turn` is called when a turn comes while nobody of the VM waits for it.
    """

    def __init__(
        self,
        words: str,
        limit: int,
        on_turn: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._words = words
        self._limit = limit
        self._on_turn = on_turn
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self._count = 0

    @property
    def busy(self) -> int:
        """How many slots are taken or kept for a VM whose turn has come."""
        return sum(place.called for place in self._places.values())

    def text(self) -> str:
        """The text of L-G10 for one that waits."""
        return self._words.format(busy=self.busy, limit=self._limit)

    async def take(
        self,
        vm_id: str,
        say: Callable[[str], None],
        *,
        boot_priority: int,
        created_at: datetime,
        wait_seconds: float = WAIT_SECONDS,
    ) -> str | None:
        """Take a slot, or have it already: None. After `wait_seconds` without one: the text that says so.

        say: hears that text as soon as there is a wait. The place is kept for 3 minutes, longer where it is `used`.
        """
        place = self._places.get(vm_id)
        if place is None:
            self._count += 1
            place = _Place(vm_id, (-boot_priority, created_at.timestamp(), self._count), False, 0.0)
            self._places[vm_id] = place
        with self._used(place):
            self.advance()
            if not place.called:
                say(self.text())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await place.turn.wait()
            return None if place.called else self.text()

    @contextlib.contextmanager
    def _used(self, place: _Place) -> Generator[None]:
        place.users += 1
        try:
            yield
        finally:
            place.users -= 1
            place.until = self._clock() + PLACE_SECONDS

    @contextlib.contextmanager
    def used(self, vm_id: str) -> Generator[None]:
        """Keep the VM's slot while work goes on in it, and for 3 minutes after."""
        place = self._places.get(vm_id)
        if place is None:
            yield
            return
        with self._used(place):
            yield

    def holds(self, vm_id: str) -> bool:
        """Say whether the VM has a slot."""
        place = self._places.get(vm_id)
        return place is not None and place.called

    def is_called(self, vm_id: str) -> bool:
        """Say whether the VM's turn has come while none of its steps was there to take it."""
        place = self._places.get(vm_id)
        return place is not None and place.called and place.users == 0

    def release(self, vm_id: str) -> None:
        """Give slot or place back; that there is none is as good."""
        self._places.pop(vm_id, None)
        self.advance()

    def advance(self) -> None:
        """Drop what is over and call whose turn it is; the host calls this every few seconds."""
        now = self._clock()
        for place in list(self._places.values()):
            if place.users == 0 and place.until <= now:
                del self._places[place.vm_id]
        waiting = sorted((p for p in self._places.values() if not p.called), key=lambda place: place.key)
        for place in waiting:
            if self._limit and self.busy >= self._limit:
                return
            place.called = True
            place.until = now + PLACE_SECONDS
            place.turn.set()
            if place.users == 0:
                self._on_turn(place.vm_id)
