"""What a VM's host is doing right now, asked of Temporal at most once a second per VM however many poll."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from temporalio.client import Client

from runtime.temporal import read_progress

FRESH_SECONDS = 1.0
_KEPT = 1000


class Progress:
    """Share one look at a VM's run among all who ask within a second."""

    def __init__(self) -> None:
        self._looks: OrderedDict[str, tuple[float, asyncio.Task[str | None]]] = OrderedDict()

    async def read(self, client: Client, vm_id: str) -> str | None:
        """Return the host's words, or None where there are none."""
        at, task = self._looks.get(vm_id, (0.0, None))
        if task is None or time.monotonic() - at > FRESH_SECONDS:
            task = asyncio.create_task(read_progress(client, vm_id))
            self._looks[vm_id] = (time.monotonic(), task)
            self._looks.move_to_end(vm_id)
            while len(self._looks) > _KEPT:
                self._looks.popitem(last=False)
        # Shielded: one caller that leaves must not end the look of the others.
        return await asyncio.shield(task)
