"""What a pass reads and writes in the store: local activities, each stating whole values, so that it may run twice."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from temporalio import activity

from model.passes import ClaimRequest, Finish, Finished, GiveBack, Outcome, PassRef, StepNote, TakeOver
from model.row import Row
from model.waiting import Waiting

if TYPE_CHECKING:
    from store.passes import PassStore

_log = logging.getLogger("hostler.passes")


class PassActivities:
    """A VM's row as its passes see it. A write by a pass that is not the owner changes nothing and says so."""

    def __init__(self, store: PassStore) -> None:
        self._store = store

    @activity.defn
    async def claim_vm(self, request: ClaimRequest) -> Row | None:
        """Take ownership of the row, or return None when there is no such row any more."""
        return await self._store.claim(request)

    @activity.defn
    async def read_vm(self, ref: PassRef) -> Row | None:
        return await self._store.read(ref)

    @activity.defn
    async def begin_step(self, note: StepNote) -> Row | None:
        return await self._store.begin_step(note)

    @activity.defn
    async def renew_claim(self, ref: PassRef) -> bool:
        return await self._store.renew(ref)

    @activity.defn
    async def take_attempt(self, ref: PassRef) -> Row | None:
        return await self._store.take_attempt(ref)

    @activity.defn
    async def give_back_attempt(self, request: GiveBack) -> Row | None:
        return await self._store.give_back(request)

    @activity.defn
    async def write_outcome(self, outcome: Outcome) -> Row | None:
        """Write what a pass found; what no pass may mend is told to the log, too."""
        if outcome.waits is Waiting.CORRUPT_COUNTERS:
            _log.error("the VM %s is refused (L-N5): %s", outcome.vm_id, outcome.error)
        return await self._store.write_outcome(outcome)

    @activity.defn
    async def take_over(self, request: TakeOver) -> Row | None:
        return await self._store.take_over(request)

    @activity.defn
    async def note_stopped(self, ref: PassRef) -> Row | None:
        return await self._store.note_stopped(ref)

    @activity.defn
    async def mark_destroying(self, ref: PassRef) -> Row | None:
        return await self._store.mark_destroying(ref)

    @activity.defn
    async def record_gone(self, ref: PassRef) -> bool:
        return await self._store.record_gone(ref)

    @activity.defn
    async def finish_pass(self, finish: Finish) -> Finished:
        return await self._store.finish(finish)
