"""What was last seen of each VM of this host: the report is built from it and touches nothing else (H-S6, H-S11)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from drivers.records import Entry, RecordStore
from drivers.stored import StoredStatus
from model.errors import Fenced, HostlerError, NotFound, Unreadable
from model.record import Observed
from model.report import Recorded, VmReport

Guard = Callable[[], None]


@dataclass
class _Seen:
    """The newest report of one VM; `moved` is the count at its last change, `look` stays until it was delivered."""

    report: VmReport
    moved: int
    look: bool = False


class SeenStore:
    """Keep the last observation of each VM. Its revision rises with each change and is durable before it is told."""

    def __init__(self, records: RecordStore, boot_id: Callable[[], str]) -> None:
        self.changed = asyncio.Event()
        self._records = records
        self._boot_id = boot_id
        self._seen: dict[str, _Seen] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """How many changes there were: what was built at this count need not be sent again once acknowledged."""
        return self._count

    def load(self) -> None:
        """Take over what the records say was last seen, with its time (H-S6)."""
        for entry in self._records:
            self._set(entry.vm_id, self.last(entry.vm_id), look=False)

    def last(self, vm_id: str) -> Observed:
        """Return the last observation, or one that says that nobody has looked."""
        seen = self._seen.get(vm_id)
        if seen is not None:
            return seen.report.observed
        entry = self._records.find(vm_id)
        status = entry.status if entry else None
        if status is not None and status.observed is not None:
            return status.observed.model_copy(update={"revision": status.revision})
        return Observed(
            boot_id=self._boot_id(),
            power_state=None,
            revision=status.revision if status else 0,
            seen_at=datetime.now(UTC),
        )

    async def note(self, vm_id: str, observed: Observed, guard: Guard, *, look: bool = False) -> Observed:
        """Take an observation: return it with its revision, raised and durable when it differs from the last one.

        When the disk cannot take the revision, the observation is told all the same, and noted at the next look.
        """
        last = self.last(vm_id)
        if _same(last, observed):
            observed = observed.model_copy(update={"revision": last.revision})
            self._set(vm_id, observed, look=look)
            return observed
        revision = last.revision + 1
        observed = observed.model_copy(update={"revision": revision})

        def change(status: StoredStatus) -> StoredStatus:
            return status.model_copy(update={"observed": observed, "revision": max(revision, status.revision)})

        try:
            await self._records.update(vm_id, change, guard)
        except (NotFound, Unreadable):
            pass  # nothing to keep it in: memory must do
        except Fenced:
            raise
        except HostlerError:
            return observed.model_copy(update={"revision": last.revision})
        self._set(vm_id, observed, look=look)
        return observed

    def call(self, vm_id: str) -> None:
        """Ask for a pass of this VM with the next report: its turn for a slot has come."""
        if vm_id not in self._seen:
            self._set(vm_id, self.last(vm_id), look=True)
        else:
            self._set(vm_id, self._seen[vm_id].report.observed, look=True)

    def forget(self, vm_id: str, up_to: int) -> None:
        """Drop a VM of which nothing is left once that was delivered."""
        seen = self._seen.get(vm_id)
        if seen is not None and seen.moved <= up_to and seen.report.observed.nothing and not seen.look:
            del self._seen[vm_id]

    def since(self, count: int) -> tuple[VmReport, ...]:
        """Return what moved after `count`; 0: everything."""
        moved = (vm_id for vm_id, seen in sorted(self._seen.items()) if seen.moved > count or count == 0)
        return tuple(self._newest(vm_id) for vm_id in moved)

    def _newest(self, vm_id: str) -> VmReport:
        """Return what is told of a VM, with what its record says by now."""
        entry, report = self._records.find(vm_id), self._seen[vm_id].report
        recorded = _recorded(entry.status) if entry and entry.status else None
        return report.model_copy(update={"recorded": recorded})

    def delivered(self, up_to: int) -> None:
        """Note that the API has everything up to this count."""
        for vm_id, seen in list(self._seen.items()):
            if seen.moved <= up_to:
                seen.look = False
                seen.report = seen.report.model_copy(update={"look": False})
                self.forget(vm_id, up_to)

    def _set(self, vm_id: str, observed: Observed, *, look: bool) -> None:
        old = self._seen.get(vm_id)
        look = look or (old is not None and old.look)
        report = describe(self._records.find(vm_id), vm_id, observed, look=look)
        if old is not None and _same_report(old.report, report):
            old.report = report
            return
        self._count += 1
        self._seen[vm_id] = _Seen(report, self._count, look)
        self.changed.set()


def describe(entry: Entry | None, vm_id: str, observed: Observed, *, look: bool) -> VmReport:
    """Tell a VM as the report does: the observation beside what the record says."""
    status = entry.status if entry else None
    return VmReport(
        vm_id=vm_id,
        observed=observed,
        completed=status is not None and status.record.boot_id is not None,
        quarantined_at=status.record.quarantined_at if status else None,
        unreadable=entry.unreadable if entry else None,
        look=look,
        guest_stopped_itself=observed.turned_off,
    )


def _recorded(status: StoredStatus) -> Recorded:
    record = status.record
    return Recorded(
        epoch=record.epoch,
        generation=record.applied_generation,
        spec_generation=record.applied_spec_generation,
        restart_generation=record.applied_restart_generation,
        rebuild_generation=record.applied_rebuild_generation,
        input_digest=record.input_digest,
    )


def _same(one: Observed, other: Observed) -> bool:
    plain = {"revision": 0, "seen_at": one.seen_at}
    return one.model_copy(update=plain) == other.model_copy(update=plain)


def _same_report(one: VmReport, other: VmReport) -> bool:
    return _same(one.observed, other.observed) and (one.model_copy(update={"observed": other.observed}) == other)
