"""How often something may happen for each of many: hosts' reports, and the wake-ups that these lead to (S-6, S-44)."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_KNOWN = 10_000


class Pace:
    """Give out places in time, `per_second` for each key, of which at most `ahead` wait to come (GCRA).

    Of one process: with several behind a balancer each keeps its own.
    """

    def __init__(self, per_second: float, ahead: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._period = 1 / per_second
        self._ahead = ahead * self._period
        self._clock = clock
        self._next: dict[str, float] = {}

    def place(self, key: str) -> float | None:
        """Take the next place of `key` and return in how many seconds it comes; None: too many wait already."""
        now = self._clock()
        at = max(now, self._next.get(key, now))
        if at - now > self._ahead:
            return None
        if key not in self._next and len(self._next) >= MOST_KNOWN:
            self._next = {known: due for known, due in self._next.items() if due > now}
        self._next[key] = at + self._period
        return at - now
