"""What may come of a host's report about VMs that have no row, by properties: nothing but of one that says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.foreign import APART, FleetFacts, ForeignVm, judge, named, placed, reaches_brake
from model.record import Observed
from model.report import HostReport, VmReport
from model.vm import PowerState

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FLEET = FleetFacts(epoch=3, floor="1.4.0", held=False)


def told(*vm_ids: str, **changes: Any) -> HostReport:
    seen = Observed(boot_id="b", power_state=PowerState.RUNNING, seen_at=NOW)
    fields: dict[str, Any] = {
        "number": 1,
        "instance_id": "one",
        "machine_id": "m",
        "boot_id": "b",
        "worker_version": "1.4.0",
        "clock": NOW,
        "whole": True,
        "epoch": 3,
        "vms": tuple(VmReport(vm_id=vm_id, observed=seen) for vm_id in vm_ids),
    }
    return HostReport(**{**fields, **changes})


def found(report: HostReport, before: dict[str, ForeignVm]) -> dict[str, ForeignVm]:
    kept = {} if report.whole else dict(before)
    return kept | {vm.vm_id: named(vm, before.get(vm.vm_id)) for vm in report.vms}


def test_a_vm_vanished_when_two_whole_reports_a_minute_apart_name_it():
    """L-R1: the second report, of the same instance, at least a minute later."""
    first = judge(found(told("a"), {}), told("a"), FLEET, now=NOW, lately=0)
    assert first.vanished == ()
    before = {vm.vm_id: vm for vm in first.kept}
    early = judge(found(told("a"), before), told("a"), FLEET, now=NOW + APART / 2, lately=0)
    assert early.vanished == ()
    second = judge(found(told("a"), before), told("a"), FLEET, now=NOW + APART, lately=0)
    assert second.vanished == ("a",)


@pytest.mark.parametrize(
    "changes",
    [
        {"whole": False},
        {"epoch": 2},
        {"epoch": 4},
        {"epoch": 0},
        {"worker_version": "1.3.9"},
        {"worker_version": "dev"},
        {"instance_id": "two"},
    ],
)
def test_a_second_report_that_does_not_count_makes_nothing_vanish(changes: dict[str, Any]):
    """L-R1, H-S5, H-S4: incomplete, another fleet's, another epoch's, floored, of another instance."""
    before = {vm.vm_id: vm for vm in judge(found(told("a"), {}), told("a"), FLEET, now=NOW, lately=0).kept}
    other = told("a", **changes)
    assert judge(found(other, before), other, FLEET, now=NOW + timedelta(days=1), lately=0).vanished == ()


@pytest.mark.parametrize(("vanishing", "vms", "braked"), [(3, 3, False), (4, 4, True), (4, 79, True), (4, 80, False)])
def test_the_brake(vanishing: int, vms: int, braked: bool):
    """H-R2: more than three, or 5 % of a large host."""
    assert reaches_brake(vanishing, vms, 3) is braked


def test_who_was_braked_waits_for_an_operator():
    """H-R2: also when fewer are left, none is stopped by itself, and while some are held by it nobody else is."""
    names = ("a", "b", "c", "d")
    first = judge(found(told(*names), {}), told(*names), FLEET, now=NOW, lately=0)
    assert [vm.choice for vm in first.kept] == ["braked"] * 4
    before = {vm.vm_id: vm for vm in first.kept}
    alone = judge(found(told("a"), before), told("a"), FLEET, now=NOW + APART, lately=0)
    assert (alone.vanished, [vm.choice for vm in alone.kept]) == ((), ["braked"])


def test_a_misplaced_vm_is_stopped_once_and_one_that_is_kept_already_is_let_be():
    """L-R1: its row names another host; it is stopped after two reports, and never made a row of."""
    first = judge(placed_on_h2("a"), told("a"), FLEET, now=NOW, lately=0)
    before = {vm.vm_id: vm for vm in first.kept}
    second = judge({"a": named(told("a").vms[0], before["a"])}, told("a"), FLEET, now=NOW + APART, lately=0)
    assert (second.vanished, second.misplaced) == ((), ("a",))
    stopped = before["a"].model_copy(update={"power_state": PowerState.STOPPED, "quarantined_at": NOW})
    assert judge({"a": stopped}, told("a"), FLEET, now=NOW + APART, lately=0).misplaced == ()


def placed_on_h2(*vm_ids: str) -> dict[str, ForeignVm]:
    return {vm.vm_id: placed(named(vm, None), "h2", is_gone=False) for vm in told(*vm_ids).vms}


def test_where_a_vm_is_placed_must_be_the_same_in_both_reports():
    """L-R1: one that had its row elsewhere at the first report was named without one only since the second."""
    first = judge(placed_on_h2("a"), told("a"), FLEET, now=NOW, lately=0).kept[0]
    lost = placed(first, None, is_gone=False)
    assert judge({"a": lost}, told("a"), FLEET, now=NOW + APART, lately=0).vanished == ()


STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "vms": st.sets(st.sampled_from("abcdefg"), max_size=7),
            "minutes": st.sampled_from([0.2, 0.5, 1.0, 10.0, 70.0]),
            "whole": st.sampled_from([True, True, False]),
            "instance_id": st.sampled_from(["one", "one", "one", "two"]),
            "epoch": st.sampled_from([3, 3, 3, 2, 4, 0]),
            "worker_version": st.sampled_from(["1.4.0", "1.10.0", "1.3.0", "dev"]),
            "held": st.sampled_from([False, False, True]),
            "rows": st.sets(st.sampled_from("abcdefg"), max_size=3),
            "gone": st.sets(st.sampled_from("abcdefg"), max_size=2),
            "left": st.sets(st.sampled_from("abcdefg"), max_size=1),
        }
    ),
    max_size=12,
)
Proof = tuple[datetime, str, bool]
"""Since when, by which instance, and whether a row placed it elsewhere."""


@given(STEPS)
def test_nothing_vanishes_but_by_reports_that_say_so(steps: list[dict[str, Any]]):
    """L-R1, H-R2, H-S5: whatever reports came before, in any order; an independent count of what they prove."""
    kept: dict[str, ForeignVm] = {}
    counted: dict[str, Proof] = {}
    moved_at: list[datetime] = []
    now = NOW
    for step in steps:
        now += timedelta(minutes=step["minutes"])
        names = ("whole", "instance_id", "epoch", "worker_version")
        report = told(*sorted(step["vms"]), **{name: step[name] for name in names})
        lately = sum(now - at < timedelta(hours=1) for at in moved_at)
        fleet = FleetFacts(epoch=3, floor="1.4.0", held=step["held"])
        judged = judge(_there(step, found(report, kept)), report, fleet, now=now, lately=lately)
        good = (
            step["whole"]
            and (step["epoch"], step["held"]) == (3, False)
            and step["worker_version"] in ("1.4.0", "1.10.0")
        )
        for vm_id in (*judged.vanished, *judged.misplaced):
            assert good
            assert vm_id in step["vms"] - step["gone"] - step["left"]
            since, instance, elsewhere = counted[vm_id]
            assert now - since >= APART
            assert (instance, elsewhere) == (step["instance_id"], vm_id in judged.misplaced)
            assert elsewhere == (vm_id in step["rows"])
        moved = (*judged.vanished, *judged.misplaced)
        assert lately + len(moved) <= 3, "the brake holds within each hour"
        _count(counted, step, good=good, now=now)
        moved_at += [now for _ in moved]
        kept = {vm.vm_id: vm for vm in judged.kept if vm.vm_id not in moved}
        for vm_id in moved:
            counted.pop(vm_id, None)


def _there(step: dict[str, Any], named_ones: dict[str, ForeignVm]) -> dict[str, ForeignVm]:
    """What the store knows of each at that moment."""
    there = {
        vm_id: placed(vm, "h2" if vm_id in step["rows"] else None, is_gone=vm_id in step["gone"])
        for vm_id, vm in named_ones.items()
    }
    left = {vm_id: vm.model_copy(update={"choice": "left"}) for vm_id, vm in there.items() if vm_id in step["left"]}
    return there | left


def _count(counted: dict[str, Proof], step: dict[str, Any], *, good: bool, now: datetime) -> None:
    """Count what one report proves; a report that does not count proves at most that something is otherwise by now."""
    for vm_id in "abcdefg":
        elsewhere = vm_id in step["rows"]
        if vm_id in counted and (vm_id in step["gone"] or counted[vm_id][2] != elsewhere):
            counted.pop(vm_id)
        if not good:
            continue
        if vm_id not in step["vms"] - step["gone"]:
            counted.pop(vm_id, None)
        elif vm_id not in counted or counted[vm_id][1] != step["instance_id"]:
            counted[vm_id] = (now, step["instance_id"], elsewhere)
