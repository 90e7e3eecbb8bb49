"""The report: what this host sees, every ten seconds and at once on change (H-S6, H-S11).

It is built from memory: it touches no hypervisor and waits for no VM's lock. What was not acknowledged is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol

from drivers.host.seen import SeenStore
from drivers.host.steps import HostSteps
from drivers.machine import ARCHITECTURE, measure_capacity
from model.capacity import Entitlement
from model.errors import HostlerError, StepFailed
from model.report import Capacity, HostReport, HypervisorReport, ReportAnswer, VmReport
from model.versions import VERSION, is_below
from model.volume import VolumeReport

INTERVAL_SECONDS = 10.0
WHOLE_SECONDS = 600.0
GAP_SECONDS = 0.25
_log = logging.getLogger("hostler.report")


class Api(Protocol):
    """Whom reports are sent to."""

    async def report(self, report: HostReport) -> ReportAnswer: ...


Frame = Callable[[int, bool, tuple[VmReport, ...]], Awaitable[HostReport]]


class Reporter:
    """Send reports for as long as the worker lives.

    frame: makes a report of its number, whether it is whole, and the VMs. on_answer: takes the fleet's epoch and floor.
    """

    def __init__(
        self,
        api: Api,
        seen: SeenStore,
        *,
        next_number: Callable[[], Awaitable[int]],
        frame: Frame,
        on_answer: Callable[[ReportAnswer], Awaitable[None]],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._api = api
        self._seen = seen
        self._next_number = next_number
        self._frame = frame
        self._on_answer = on_answer
        self._interval_seconds = interval_seconds
        self._acknowledged = 0
        self._want_whole = True
        self._whole_at = 0.0
        self._lost = False
        self.heard_at: datetime | None = None

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self._seen.changed.clear()
            delivered = await self.send()
            await asyncio.sleep(GAP_SECONDS)  # at most four a second (S-6)
            if delivered:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_seconds):
                        await self._seen.changed.wait()
            else:
                await asyncio.sleep(self._interval_seconds * random.uniform(0.1, 0.3))  # noqa: S311 - spreading

    async def send(self) -> bool:
        """Send what moved since the last acknowledged report, or everything; say whether it was taken."""
        now = time.monotonic()
        whole = self._want_whole or now - self._whole_at > WHOLE_SECONDS
        count = self._seen.count
        try:
            number = await self._next_number()
            report = await self._frame(number, whole, self._seen.since(0 if whole else self._acknowledged))
            answer = await self._api.report(report)
        except HostlerError as error:
            if not self._lost:
                _log.warning("the report was not delivered, it is kept and sent again: %s", error.detail)
            self._lost = True
            return False
        if self._lost:
            _log.info("reports are delivered again")
        self._lost = False
        self.heard_at = datetime.now(UTC)
        if answer.acknowledged == number:
            self._acknowledged = max(count, 1)
            self._seen.delivered(count)
            if whole:
                self._whole_at = now
        self._want_whole = answer.want_whole
        await self._on_answer(answer)
        return answer.acknowledged == number and not answer.want_whole


class Reports:
    """What frames a report besides its VMs, and what its answer means. `renew` gets the host its next credential."""

    def __init__(
        self, host: HostSteps, activity_names: tuple[str, ...], *, renew: Callable[[], Awaitable[None]]
    ) -> None:
        self._host = host
        self._activity_names = activity_names
        self._renew = renew
        self._sent: tuple[int, tuple[VolumeReport, ...]] = (0, ())
        self._told: tuple[VolumeReport, ...] | None = None

    async def frame(self, number: int, whole: bool, vms: tuple[VmReport, ...]) -> HostReport:
        """Make a report of what memory holds; the machine's room alone is measured, in a thread."""
        parts, identity = self._host.parts, self._host.parts.identity
        shown = [
            _show(found.name, found.available, found.why, found.accelerator, found.version)
            for found in parts.availability
        ]
        self._sent = (number, parts.volumes.report())
        return HostReport(
            number=number,
            instance_id=identity.instance_id,
            machine_id=identity.machine_id,
            boot_id=parts.boot_id(),
            worker_version=VERSION,
            clock=datetime.now(UTC),
            whole=whole,
            activity_names=self._activity_names,
            capacity=await asyncio.to_thread(self._measure, held := parts.ledger.held()),
            caps=parts.ledger.caps,
            disk_room_gib=await asyncio.to_thread(self._find_disk_room),
            held=held,
            architecture=ARCHITECTURE,
            hypervisors=tuple(shown),
            vms=vms,
            volumes=self._sent[1] if whole or self._sent[1] != self._told else None,
            volumes_gone=tuple(sorted(self._host.volumes.gone)),
            unmanaged=self._host.watch.unmanaged,
            emulated=any(found.emulated for found in parts.availability),
            epoch=identity.epoch,
            pass_number=max(parts.jobs.fences.last_pass, self._host.sync.last_number),
        )

    def _find_disk_room(self) -> int | None:
        with contextlib.suppress(StepFailed):  # not measured: unknown, never 0 (H-S7)
            return self._host.parts.ledger.find_disk_room()
        return None

    def _measure(self, held: Entitlement) -> Capacity:
        """Measure the room; what sparse disks have promised is their size less what they hold (H-S7)."""
        promised = sum(max(0, size - taken) for size, taken in self._host.parts.find_sparse())
        home = self._host.parts.paths.home
        return measure_capacity(home, committed_millicores=held.cpu_millicores, promised_bytes=promised)

    async def take(self, answer: ReportAnswer) -> None:
        """Take the fleet's epoch over, what the host is called there, and that the fleet has given it up.

        Volumes that are to go are removed (H-V3), and misplaced VMs stopped and kept (L-R1), but not by a worker that
        knows a higher epoch. One below the fleet's floor acts on no VM, and takes the epoch over all the same (H-S5).
        """
        floored = is_below(VERSION, answer.min_worker_version)
        self._host.watch.floored = floored
        self._host.alone.heard(answer.min_worker_version)
        if answer.host_name is not None:
            self._host.parts.ledger.host = answer.host_name
        identity = self._host.parts.identity
        if answer.acknowledged == self._sent[0]:
            self._told = self._sent[1]
        if answer.epoch >= identity.epoch and not floored:
            await self._host.volumes.remove(answer.remove_volumes)
            if answer.stop_pass is not None:
                self._host.given_up.begin(answer.epoch, answer.stop_pass, answer.stop_vms)
        await identity.raise_epoch(answer.epoch)
        if answer.forgotten_pass is not None and not floored:
            self._host.given_up.begin(answer.epoch, answer.forgotten_pass)
        if answer.renew_credential:
            try:
                await self._renew()
            except HostlerError as error:
                _log.warning("the credential could not be renewed, it is tried again: %s", error.detail)


def _show(name: str, available: bool, why: str, accelerator: str | None, version: str | None) -> HypervisorReport:
    return HypervisorReport(name=name, available=available, why=why, accelerator=accelerator, version=version)
