"""Reports: whole at first, then what moved; nothing is lost while nobody hears (H-S6, H-S11)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from drivers.host.seen import SeenStore
from drivers.records import RecordStore
from model.errors import Unavailable
from model.record import Observed
from model.report import HostReport, ReportAnswer
from model.vm import PowerState
from tests.fixtures.records import make_config, make_status
from workers.host_report import Reporter


def nothing() -> None:
    """A guard that lets all pass."""


class Ears:
    """The API's side: validates what it hears, and answers as told."""

    def __init__(self) -> None:
        self.reports: list[HostReport] = []
        self.deaf = False
        self.loses_answers = False
        self.want_whole = False
        self.heard = asyncio.Event()

    async def report(self, report: HostReport) -> ReportAnswer:
        if self.deaf:
            raise Unavailable("nobody hears")
        report = HostReport.model_validate_json(report.model_dump_json())
        assert not self.reports or report.number > self.reports[-1].number
        self.reports.append(report)
        self.heard.set()
        if self.loses_answers:
            raise Unavailable("the answer was lost")
        return ReportAnswer(acknowledged=report.number, want_whole=self.want_whole, epoch=1)


class World:
    def __init__(self, records: RecordStore) -> None:
        self.records = records
        self.seen = SeenStore(records, lambda: "boot-1")
        self.seen.load()
        self.ears = Ears()
        self.number = 0
        self.reporter = self.make_reporter()

    def make_reporter(self, **more) -> Reporter:
        async def next_number() -> int:
            self.number += 1
            return self.number

        async def frame(number, whole, vms) -> HostReport:
            return HostReport(
                number=number,
                instance_id="i1",
                machine_id="m1",
                boot_id="boot-1",
                worker_version="1.0.0",
                clock=datetime.now(UTC),
                whole=whole,
                vms=vms,
            )

        async def take(answer) -> None:
            assert answer.epoch == 1

        return Reporter(self.ears, self.seen, next_number=next_number, frame=frame, on_answer=take, **more)

    async def see(self, vm_id: str, power: PowerState | None, *, look: bool = False) -> Observed:
        observed = Observed(boot_id="boot-1", power_state=power, seen_at=datetime.now(UTC))
        return await self.seen.note(vm_id, observed, nothing, look=look)

    @property
    def last(self) -> HostReport:
        return self.ears.reports[-1]


@pytest.fixture
async def world(tmp_path) -> World:
    records = RecordStore(tmp_path / "machines")
    records.load()
    for vm_id in ("vm1", "vm2"):
        await records.write_config(make_config(vm_id), nothing)
        await records.begin(make_status(vm_id), nothing)
    return World(records)


async def test_the_first_report_is_whole_and_the_next_tells_what_moved(world) -> None:
    """H-S6."""
    await world.reporter.send()
    assert world.last.whole
    assert [vm.vm_id for vm in world.last.vms] == ["vm1", "vm2"]
    await world.see("vm2", PowerState.RUNNING, look=True)
    await world.reporter.send()
    assert not world.last.whole
    (vm,) = world.last.vms
    assert (vm.vm_id, vm.look, vm.observed.power_state) == ("vm2", True, PowerState.RUNNING)
    await world.reporter.send()
    assert world.last.vms == ()


async def test_news_are_kept_while_nobody_hears(world) -> None:
    """H-S11: also when only the answer was lost."""
    await world.reporter.send()
    world.ears.deaf = True
    await world.see("vm1", PowerState.RUNNING)
    assert not await world.reporter.send()
    await world.see("vm2", PowerState.STOPPED, look=True)
    world.ears.deaf, world.ears.loses_answers = False, True
    assert not await world.reporter.send()
    world.ears.loses_answers = False
    assert await world.reporter.send()
    assert [(vm.vm_id, vm.look) for vm in world.last.vms] == [("vm1", False), ("vm2", True)]


async def test_a_change_while_a_report_is_on_its_way_is_sent_next(world) -> None:
    await world.reporter.send()
    await world.see("vm1", PowerState.RUNNING)
    ears_report = world.ears.report

    async def slow(report):
        await world.see("vm1", PowerState.STOPPED, look=True)
        return await ears_report(report)

    world.ears.report = slow
    await world.reporter.send()
    world.ears.report = ears_report
    await world.reporter.send()
    (vm,) = world.last.vms
    assert (vm.look, vm.observed.power_state) == (True, PowerState.STOPPED)


async def test_a_whole_report_is_sent_when_asked_for(world) -> None:
    """H-S6."""
    world.ears.want_whole = True
    assert not await world.reporter.send()
    world.ears.want_whole = False
    assert await world.reporter.send()
    assert world.last.whole
    assert len(world.last.vms) == 2


async def test_revisions_rise_with_each_change_and_over_restarts(world, tmp_path) -> None:
    """L-G9: the same sight moves nothing; a new worker goes on above."""
    first = await world.see("vm1", PowerState.RUNNING)
    again = await world.see("vm1", PowerState.RUNNING)
    assert again.revision == first.revision
    other = await world.see("vm1", PowerState.STOPPED)
    assert other.revision == first.revision + 1
    records = RecordStore(tmp_path / "machines")
    records.load()
    fresh = World(records)
    (vm1, _) = fresh.seen.since(0)
    assert vm1.observed == other
    assert (await fresh.see("vm1", PowerState.RUNNING)).revision == other.revision + 1


async def test_a_turn_is_reported_although_nothing_moved(world) -> None:
    """L-C7: the host reports at once when a turn comes."""
    await world.reporter.send()
    world.seen.call("vm1")
    assert world.seen.changed.is_set()
    await world.reporter.send()
    (vm,) = world.last.vms
    assert vm.look


async def test_the_loop_reports_a_change_at_once(world) -> None:
    """H-S11."""
    reporter = world.make_reporter(interval_seconds=60)
    task = asyncio.create_task(reporter.run())
    try:
        async with asyncio.timeout(10):
            await world.ears.heard.wait()
            world.ears.heard.clear()
            await world.see("vm1", PowerState.RUNNING)
            await world.ears.heard.wait()
        assert [vm.vm_id for vm in world.last.vms] == ["vm1"]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
