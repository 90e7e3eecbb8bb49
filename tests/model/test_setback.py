"""A guest that ends by itself or is paused by its hypervisor: what is decided, case by case (L-V4, L-V11)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from model.decide import next_step
from model.decide.setback import FAILING, STEADY
from model.step import NOTHING_TO_DO, Step, StepKind
from model.vm import LastExit, PowerState
from model.waiting import Waiting
from tests.model.test_decide import created, run_until_rest
from tests.model.world import NOW, World


def decided(world: World) -> Step:
    return next_step(world.row, world.view)


def test_an_end_is_counted_once_before_the_boot():
    """L-V4: not again when its pass is repeated, and not while the guest runs."""
    world = created()
    world.die()
    assert run_until_rest(world) == [StepKind.COUNT_SETBACK, StepKind.BOOT, StepKind.SETTLED]
    assert run_until_rest(world) == [StepKind.SETTLED]
    assert world.row.status.setbacks == 1


def test_a_guest_that_ended_is_booted_after_its_pause():
    """L-V4: shown as such; a host's reboot, or a user's stop, is no end of its own and waits for nothing."""
    world = created()
    world.die()
    world.apply(decided(world))
    until = NOW + timedelta(seconds=10)
    world.status(up_again_at=until)
    assert decided(world).waits is Waiting.GUEST_ENDED
    assert decided(world).until == until
    world.row = world.row.model_copy(update={"now": until})
    assert decided(world).kind is StepKind.BOOT
    world.row = world.row.model_copy(update={"now": NOW})
    world.see(boot_id="b2")
    assert decided(world).kind is StepKind.BOOT
    world.see(boot_id="b1")
    world.record(stop_intended=True)
    assert decided(world).kind is StepKind.BOOT


def test_after_a_users_start_what_was_before_is_taken_note_of_and_not_counted():
    """L-V4: of a guest that runs, too, so that its next end is the first."""
    for dead in (False, True):
        world = created(setbacks=None)
        if dead:
            world.die()
        assert run_until_rest(world)[0] is StepKind.COUNT_SETBACK
        assert world.row.status.setbacks == 0
        world.die()
        run_until_rest(world)
        assert world.row.status.setbacks == 1


def test_what_ran_for_long_begins_anew_though_its_host_was_rebooted():
    """L-V4: that is no end of its own, so that the next one does not tell of the ten minutes before."""
    for ran, setbacks in ((STEADY, 0), (STEADY / 2, FAILING - 1)):
        world = created()
        world.die()
        run_until_rest(world)
        world.status(setbacks=FAILING - 1)
        world.stop_guest()
        exit_ = LastExit(at=NOW + ran, by="host", reason="its host was rebooted")
        world.see(boot_id="b2", started_at=NOW, last_exit=exit_)
        assert run_until_rest(world)[-2:] == [StepKind.BOOT, StepKind.SETTLED]
        assert world.row.status.setbacks == setbacks


def test_a_guest_that_failed_too_often_is_looked_at_when_it_has_run_for_long():
    """L-V4: it is settled, and due again at the end of its ten minutes, by its host's clock."""
    world = created(setbacks=FAILING)
    world.see(started_at=NOW - timedelta(minutes=3))
    step = decided(world)
    assert (step.kind, step.until) == (StepKind.SETTLED, NOW + STEADY - timedelta(minutes=3))
    world.see(started_at=NOW - STEADY)
    assert decided(world).until is None


@pytest.mark.parametrize("wish", ["start", "stop"])
def test_a_guest_that_turned_itself_off_waits_for_the_report_where_that_stops_the_vm(wish: str):
    """L-V4: a pass that is at work then boots nothing before the API has taken the report, whatever comes of it."""
    world = created(on_guest_poweroff=wish)
    world.die(turned_off=True)
    if wish == "start":
        assert run_until_rest(world)[-2:] == [StepKind.BOOT, StepKind.SETTLED]
        return
    assert run_until_rest(world) == [StepKind.WAIT]
    assert decided(world).waits is Waiting.GUEST_POWEROFF
    assert world.starts == 0
    setback = world.view.observed.setback
    world.status(power_state=PowerState.STOPPED, generation=2, poweroff_taken=setback)
    assert StepKind.BOOT not in run_until_rest(world)
    world.status(power_state=PowerState.RUNNING, generation=3, setbacks=None)
    assert StepKind.BOOT in run_until_rest(world), "its user wants a start"
    world.die(turned_off=True)
    assert decided(world).waits is Waiting.GUEST_POWEROFF, "the next one is another"


def stalled(**changes: object) -> World:
    world = created(**changes)
    world.befall()
    world.see(power_state=PowerState.PAUSED, paused_by_hypervisor="io-error")
    return world


def test_a_guest_that_its_hypervisor_paused_is_counted_and_resumed():
    """L-V11: once; it is neither booted nor ended."""
    world = stalled()
    assert run_until_rest(world) == [StepKind.COUNT_SETBACK, StepKind.RESUME, StepKind.SETTLED]


def test_a_guest_whose_cause_remains_is_not_resumed():
    """L-V11: and at once when it is gone, within the pauses of L-V4."""
    world = stalled()
    world.see(cause_remains=True)
    assert run_until_rest(world) == [StepKind.COUNT_SETBACK, StepKind.WAIT]
    assert decided(world).waits is Waiting.GUEST_STALLED
    world.see(cause_remains=False)
    assert decided(world).kind is StepKind.RESUME
    world.status(up_again_at=NOW + timedelta(seconds=10))
    assert (decided(world).waits, decided(world).until) == (Waiting.GUEST_STALLED, NOW + timedelta(seconds=10))


def test_what_its_user_wants_of_a_guest_that_stands_still_is_done():
    """L-V11, L-V7: a restart replaces it, a stop stops it; a pause that is wanted is there."""
    world = stalled(up_again_at=NOW + timedelta(minutes=5), restart_generation=1)
    assert decided(world).kind is StepKind.NOTE_RESTART
    assert decided(stalled(power_state=PowerState.STOPPED)).kind is StepKind.STOP
    assert run_until_rest(stalled(power_state=PowerState.PAUSED))[-1] is StepKind.SETTLED


@pytest.mark.parametrize("cause", ["io-error", "no-space", "guest-panic", "internal-error", "watchdog"])
@pytest.mark.parametrize("remains", [True, False])
def test_nothing_ends_a_guest_that_stands_still(cause: str, remains: bool):
    """L-V11: never killed for it, however often it happens."""
    world = created()
    for _ in range(20):
        world.befall()
        world.see(power_state=PowerState.PAUSED, paused_by_hypervisor=cause, cause_remains=remains)
        kinds = run_until_rest(world)
        assert set(kinds) <= {StepKind.COUNT_SETBACK, StepKind.RESUME, *NOTHING_TO_DO}
