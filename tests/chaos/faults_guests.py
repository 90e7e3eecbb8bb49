"""Faults of simulated guests: what happens to one, and what it is made to do."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

from model.errors import HostlerError
from tests.chaos.faults import NotNow, Stage, fault
from tests.chaos.model import Ask

MOST_DEATHS = 6
"""A guest that dies again and again is begun again ever later, and counts as failed from the fifth time on."""
_deaths: Counter[str] = Counter()


def _some_guest(stage: Stage) -> str:
    vms, live = stage.model.vms.values(), stage.fleet.machine.live
    ids = sorted(
        vm.vm_id for vm in vms if vm.hypervisor == "simulated" and live(vm.vm_id) and _deaths[vm.vm_id] < MOST_DEATHS
    )
    if not ids:
        raise NotNow
    return stage.rng.choice(ids)


def _cause(stage: Stage, vm_id: str, what: Any) -> None:
    before = len(stage.fleet.simulation.journal())
    vm = stage.model.vms[vm_id]
    vm.setbacks = None if vm.setbacks is None else vm.setbacks + 1
    try:
        stage.fleet.simulation.cause(vm_id, what)
    except (HostlerError, OSError):
        raise NotNow from None  # the disk is full
    if len(stage.fleet.simulation.journal()) == before:
        raise NotNow  # it has ended by itself
    _deaths[vm_id] += 1


@fault("a guest dies", 10)
async def crash(stage: Stage) -> AsyncGenerator[str]:
    vm_id = _some_guest(stage)
    _cause(stage, vm_id, "crash")
    yield vm_id


@fault("a guest powers itself off", 12)
async def poweroff(stage: Stage) -> AsyncGenerator[str]:
    """Those who are to be left stopped then are made so by the API, whenever it hears of it."""
    vm_id = _some_guest(stage)
    may = Ask(vm_id, "guest", {"power_state": "stopped"})
    may.outcome = "lost"
    stage.model.ask(may)
    _cause(stage, vm_id, "poweroff")
    yield vm_id


@fault("a guest reboots", 3)
async def guest_reboot(stage: Stage) -> AsyncGenerator[str]:
    vm_id = _some_guest(stage)
    _cause(stage, vm_id, "reboot")
    yield vm_id


@contextlib.contextmanager
def _controlled(stage: Stage, **controls: Any) -> Any:
    """Have a VM that exists do something for a while."""
    vms = [vm for vm in stage.model.vms.values() if vm.hypervisor == "simulated"]
    ids = sorted(vm.vm_id for vm in vms if vm.exists_surely and vm.may_be_kept())
    vm_id = stage.rng.choice(ids) if ids else None
    place = stage.fleet.host / "simulated" / "controls" / f"{vm_id}.json"
    if vm_id is None or place.exists():
        raise NotNow
    try:
        stage.fleet.simulation.control(vm_id, **controls)
    except (HostlerError, OSError):
        raise NotNow from None  # the disk is full
    try:
        yield f"{vm_id} {controls}"
    finally:
        place.unlink(missing_ok=True)


@fault("a guest says nothing", 4, (1, 12))
async def silent(stage: Stage) -> AsyncGenerator[str]:
    with _controlled(stage, answers=False) as what:
        yield what


@fault("boots are refused", 4, (1, 8))
async def refuse_boots(stage: Stage) -> AsyncGenerator[str]:
    with _controlled(stage, refuse_boots=1 << 30) as what:
        yield what


@fault("a guest is deaf to its power button", 3, (1, 12))
async def deaf(stage: Stage) -> AsyncGenerator[str]:
    with _controlled(stage, ignores_power_button=True) as what:
        yield what


@fault("a guest survives a kill", 2, (1, 8))
async def survives(stage: Stage) -> AsyncGenerator[str]:
    with _controlled(stage, survives_kill=True) as what:
        yield what


@fault("the hypervisor's answers are lost", 6, (1, 10))
async def lost(stage: Stage) -> AsyncGenerator[str]:
    calls = stage.rng.sample(("boot", "pause", "resume", "press", "end", "grow"), 2)
    with _controlled(stage, lost={call: stage.rng.choice(("raise", "hang")) for call in calls}) as what:
        yield what


@fault("the hypervisor is slow", 4, (1, 10))
async def slow(stage: Stage) -> AsyncGenerator[str]:
    with _controlled(stage, answer_seconds=stage.rng.uniform(0.5, 6), boot_seconds=stage.rng.uniform(0, 3)) as what:
        yield what


@fault("taps are refused", 3, (1, 8))
async def refuse_taps(stage: Stage) -> AsyncGenerator[str]:
    with _controlled(stage, refuses_taps=True) as what:
        yield what
