"""The complete sets of this host, applied in order under an epoch and a number that are durable first (H-S1 to H-S4).

The newest sync wins as the newest order of a VM does: an older one in hand ends there and then. A set whose part is off
on this host is kept as it was told, and answered so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import pydantic

from drivers.durable import Write
from drivers.fences import FenceStore
from drivers.formats import SETS, parse
from drivers.host.parts import Parts
from drivers.jobs import Job, Jobs
from drivers.threads import in_thread
from model.base import Frozen
from model.errors import Fenced, HostlerError, NotFound, Unavailable, Unreadable
from model.sync import SET_NAMES, SetName, SetState, SyncAnswer, SyncedVm, SyncOrder, SyncSets
from model.versions import VERSION

Pair = tuple[int, int]
Part = Callable[[SyncSets], Awaitable[frozenset[str]]]
"""Applies one set, whole; returns the VMs whose inputs that changed."""

T = TypeVar("T")
_HOST = "host"
_log = logging.getLogger("hostler.sync")


class StoredSets(Frozen):
    """sets.json, 0600: each set as it was reached last; URLs of images may hold what only this host may know."""

    format: int = SETS.format
    release: str = VERSION
    sets: SyncSets


class SyncSteps:
    """A host's sync. parts_on: what applies each set whose part is on here."""

    def __init__(self, parts: Parts, parts_on: Mapping[SetName, Part]) -> None:
        folder, identity = parts.paths.home / "sync", parts.identity
        self._parts = parts
        self._parts_on = parts_on
        self._file = parts.paths.home / "sets.json"
        self._write: Write = parts.reserve.write
        fences = FenceStore(
            folder,
            fleet_id=identity.fleet_id,
            host_id=identity.host_id,
            instance_id=identity.instance_id,
            write=self._write,
        )
        self._jobs = Jobs(folder, fences)

    @property
    def last_number(self) -> int:
        """The highest number of a sync that this host has seen."""
        return self._jobs.fences.last_pass

    async def load(self) -> None:
        """Take up the sets of the last sync, before any work is asked for; no guest is touched."""
        await self.load_pair()
        try:
            stored = await in_thread(self._read)
        except Unreadable as error:
            _log.error("the host's sets wait for the next sync: %s", error.detail)
            return
        if stored is not None:
            for part in self._parts_on.values():
                await part(stored)

    async def load_pair(self) -> None:
        """Read the highest pair that was seen before this worker."""
        await in_thread(self._jobs.fences.load)

    async def ensure(self, order: SyncOrder) -> SyncAnswer:
        """Apply every set of the order's revision, in order, up to the first error.

        A lower pair than the highest seen is answered as fenced, an equal one is a repeat. Raises Unreadable,
        StepFailed or OutOfSpace while the pair cannot be read or written: it is never taken for 0.
        """
        fences, pair = self._jobs.fences, (order.fence.epoch, order.fence.pass_number)
        fences.check_identity(order.fence)
        if pair < self._seen():
            return self._fenced()
        try:
            async with self._jobs.order(_HOST, order.fence) as job, job.locked():
                await self._parts.identity.raise_epoch(order.fence.epoch)
                states, error = await self._apply(order.revision, job)
        except Fenced:
            if pair < self._seen():
                return self._fenced()
            raise  # an earlier try of this very sync: nobody waits for its answer
        return self._answer(pair, states=states, error=error)

    def _seen(self) -> Pair:
        """Return the highest pair that this host has seen; an epoch counts whoever told it."""
        fence = self._jobs.fences.highest(_HOST)
        if fence is None and self._file.exists():
            raise Unreadable(
                "the number of the last sync is missing beside its sets, or cannot be read: restore sync/host.json, or "
                "enrol this host anew"
            )
        known = (self._parts.identity.epoch, 0)
        return known if fence is None else max((fence.epoch, fence.pass_number), known)

    async def _apply(self, revision: int, job: Job) -> tuple[dict[SetName, SetState], str | None]:
        """Replace each set whole; what was not reached stays as it was (H-S2)."""
        states: dict[SetName, SetState] = dict.fromkeys(SET_NAMES, "not_reached")
        changed: set[str] = set()
        try:
            sets = await _found(self._parts.fetch_sets(revision))
            for name in SET_NAMES:
                job.guard()
                part = self._parts_on.get(name)
                states[name] = "failed"
                await self._keep(name, sets)
                changed |= await _found(part(sets)) if part is not None else frozenset()
                states[name] = "off" if part is None else "applied"
        except Fenced:
            raise
        except HostlerError as error:
            return states, error.detail
        finally:
            for vm_id in sorted(changed):
                self._parts.seen.call(vm_id)
        return states, None

    async def _keep(self, name: SetName, sets: SyncSets) -> None:
        """Keep a set for the next start of the worker, as it is being applied; the others stay as they were kept."""
        try:
            stored = await in_thread(self._read)
        except Unreadable:
            stored = None
        before = stored or SyncSets(revision=0)
        after = before.model_copy(update={"revision": sets.revision, name: getattr(sets, name)})
        if after != stored:
            data = json.dumps(StoredSets(sets=after).model_dump(mode="json")).encode()
            await in_thread(self._write, self._file, data)

    def _read(self) -> SyncSets | None:
        try:
            return StoredSets.model_validate(parse(SETS, self._file.name, self._file.read_bytes())).sets
        except FileNotFoundError:
            return None
        except (OSError, pydantic.ValidationError) as error:
            raise Unreadable(f"{self._file.name} cannot be read: the next sync writes it anew") from error

    def _fenced(self) -> SyncAnswer:
        return self._answer(self._seen(), fenced=True)

    def _answer(
        self,
        pair: Pair,
        *,
        fenced: bool = False,
        states: dict[SetName, SetState] | None = None,
        error: str | None = None,
    ) -> SyncAnswer:
        """Answer with what is there, quarantined VMs and volumes included, from one listing of what was last seen."""
        listing = tuple(
            SyncedVm(
                vm_id=vm.vm_id,
                power_state=vm.observed.power_state,
                quarantined_at=vm.quarantined_at,
                unreadable=vm.unreadable is not None,
            )
            for vm in self._parts.seen.since(0)
        )
        return SyncAnswer(
            fenced=fenced,
            epoch=pair[0],
            number=pair[1],
            states=states or {},
            error=error,
            vms=listing,
            volumes=self._parts.volumes.report(),
        )


async def _found(work: Awaitable[T]) -> T:
    """Say "not found" as unavailable: inside a sync it proves of nothing that it is gone (H-S3)."""
    try:
        return await work
    except NotFound as error:
        raise Unavailable(f"unavailable now: {error.detail}") from error
