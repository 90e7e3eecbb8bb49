"""The order of a VM's life, decided step by step, from every state that a crash can leave behind."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.decide import next_step, pass_type_of, supersedes
from model.process import ProcessRecord
from model.record import CreateProgress, Record, Refusal
from model.step import DESTROY_ORDER, NOTHING_TO_DO, WORDS, Step, StepKind
from model.vm import PowerState
from model.volume import WantedVolume
from tests.model.world import GIB, NOW, World, empty_view, make_row

PROCESS = ProcessRecord(pid=7, start_time=7, boot_id="b1", uid=200001)


def run_until_rest(world: World, limit: int = 40) -> list[StepKind]:
    """Apply steps until nothing can be done now; return the kinds in their order."""
    kinds: list[StepKind] = []
    for _ in range(limit):
        step = next_step(world.row, world.view, world.done)
        if step.kind in NOTHING_TO_DO:
            return [*kinds, step.kind]
        kinds.append(step.kind)
        world.apply(step)
        if world.gone:
            return kinds
        world.tell()
    raise AssertionError(f"did not settle: {kinds}")


def created(**changes: object) -> World:
    world = World(make_row())
    run_until_rest(world)
    world.starts = 0
    world.done = ()
    world.status(**changes)
    return world


CREATE_STORY = [
    StepKind.TAKE_ATTEMPT,
    StepKind.PREPARE,
    StepKind.FETCH_IMAGE,
    StepKind.MAKE_DISK,
    StepKind.WRITE_SEED,
]


def test_a_create_takes_its_steps_in_order():
    """L-C: attempt, preparation, image, disk, seed, boot, completion."""
    world = World(make_row())
    assert run_until_rest(world) == [*CREATE_STORY, StepKind.BOOT, StepKind.COMPLETE, StepKind.SETTLED]
    assert world.starts == 1


def test_a_vm_wanted_stopped_is_made_and_not_booted():
    """L-C12."""
    world = World(make_row(power_state=PowerState.STOPPED))
    assert run_until_rest(world) == [*CREATE_STORY, StepKind.COMPLETE, StepKind.SETTLED]
    assert world.starts == 0


def test_a_vm_wanted_paused_is_booted_then_paused():
    """L-C12."""
    world = World(make_row(power_state=PowerState.PAUSED))
    assert run_until_rest(world) == [
        *CREATE_STORY,
        StepKind.BOOT,
        StepKind.PAUSE,
        StepKind.COMPLETE,
        StepKind.SETTLED,
    ]


@pytest.mark.parametrize("progress", range(5))
def test_another_attempt_starts_at_the_beginning(progress: int):
    """L-C1: a disk on the host proves nothing, nor does a guest that an earlier attempt booted."""
    world = World(make_row(pass_number=2))
    names = ("image", "disk", "seed", "booted")[:progress]
    create = CreateProgress(pass_number=1, **dict.fromkeys(names, True))
    world.record(create=create)
    if progress == 4:
        world.see(process=PROCESS, power_state=PowerState.RUNNING)
    assert run_until_rest(world)[:2] == [StepKind.TAKE_ATTEMPT, StepKind.PREPARE]
    assert world.view.observed.process != PROCESS


def test_a_lost_record_is_never_made_anew():
    """L-V9: a VM that once lived and whose record is gone rests, whatever is wanted."""
    row = make_row(first_ready_at=NOW)
    for power in PowerState:
        step = next_step(
            row.model_copy(update={"desired": row.desired.model_copy(update={"power_state": power})}), empty_view()
        )
        assert step.kind is StepKind.REST


def test_a_reboot_of_the_host_boots_what_is_wanted_up_once():
    """L-V1, L-V2 (case A2)."""
    world = created()
    world.stop_guest()
    world.see(boot_id="b2")
    assert run_until_rest(world) == [StepKind.BOOT, StepKind.SETTLED]
    assert world.starts == 1


def test_a_reboot_of_the_host_leaves_a_stopped_vm_stopped():
    """L-V2: the new boot id and the stop are recorded; nothing boots."""
    world = World(make_row(power_state=PowerState.STOPPED))
    run_until_rest(world)
    world.see(boot_id="b2")
    assert run_until_rest(world) == [StepKind.RECORD_STOP, StepKind.SETTLED]
    assert world.starts == 0


def test_a_guest_whose_stop_was_given_up_is_known_to_run():
    """L-V3, L-R4: its record says so, so that its host looks for no difference for ever; a restart goes on."""
    world = created()
    world.record(stop_intended=True)
    assert next_step(world.row, world.view).kind is StepKind.BOOT
    world.status(restart_generation=1)
    world.record(restart_of=world.view.observed.process, restart_of_generation=1)
    assert next_step(world.row, world.view).kind is StepKind.STOP


def test_a_guest_that_does_not_answer_is_not_dead():
    """Case B2: no restart while nobody can tell."""
    world = created()
    world.see(power_state=None, process=PROCESS)
    step = next_step(world.row, world.view)
    assert step.kind is StepKind.WAIT
    assert step.until is not None


def test_a_guest_that_does_not_answer_is_stopped_when_its_user_wants_that():
    """L-V3: asked, then killed; a process that hangs is no reason to refuse a stop, nor is a disk to grow first."""
    world = created()
    world.see(power_state=None, process=PROCESS)
    world.status(power_state=PowerState.STOPPED, disk_gib=9, generation=2, spec_generation=2)
    assert next_step(world.row, world.view).kind is StepKind.STOP
    assert run_until_rest(world)[-1] is StepKind.SETTLED


def test_a_guest_that_does_not_answer_is_replaced_by_a_restart():
    """L-V7: the user's remedy for a process that hangs."""
    world = created(restart_generation=1, generation=2)
    world.see(power_state=None)
    kinds = run_until_rest(world)
    assert kinds == [StepKind.NOTE_RESTART, StepKind.STOP, StepKind.BOOT, StepKind.APPLY, StepKind.SETTLED]


def test_a_restart_asked_for_after_the_boot_of_another_is_not_lost():
    """L-V7: once per restart generation, also when the second comes before the first is recorded as applied."""
    world = created(restart_generation=1, generation=2)
    while world.done[-1:] != (StepKind.BOOT,):
        world.apply(next_step(world.row, world.view))
    world.status(restart_generation=2, generation=3)
    run_until_rest(world)
    assert world.starts == 2


def test_a_guest_that_ended_itself_boots_again():
    """L-V4: its process is still readable, but the guest is over."""
    world = created()
    world.see(power_state=PowerState.STOPPED, guest_ended="guest-shutdown")
    assert next_step(world.row, world.view).kind is StepKind.BOOT


def test_a_restart_replaces_one_process_once():
    """L-V7: noted, stopped, booted, applied; the repeated pass does nothing."""
    world = created(restart_generation=1, generation=2)
    before = world.view.observed.process
    kinds = run_until_rest(world)
    assert kinds == [StepKind.NOTE_RESTART, StepKind.STOP, StepKind.BOOT, StepKind.APPLY, StepKind.SETTLED]
    assert world.view.observed.process != before
    assert world.starts == 1
    assert run_until_rest(world) == [StepKind.SETTLED]


@pytest.mark.parametrize("crashed_after", [StepKind.NOTE_RESTART, StepKind.STOP, StepKind.BOOT])
def test_a_restart_interrupted_anywhere_boots_once(crashed_after: StepKind):
    """L-V7: the record names the replaced process, so that a repeated pass knows how far it came."""
    world = created(restart_generation=1, generation=2)
    while world.done[-1:] != (crashed_after,):
        world.apply(next_step(world.row, world.view))
    world.done = ()
    world.status(pass_number=9)
    run_until_rest(world)
    assert world.starts == 1
    assert world.view.record is not None
    assert world.view.record.applied_restart_generation == 1


def test_a_larger_disk_and_changed_keys_are_applied_before_the_boot():
    """L-V8."""
    world = created(power_state=PowerState.STOPPED)
    run_until_rest(world)
    world.status(power_state=PowerState.RUNNING, disk_gib=5, input_digest="d2", generation=3, spec_generation=2)
    assert run_until_rest(world) == [
        StepKind.GROW_DISK,
        StepKind.WRITE_SEED,
        StepKind.BOOT,
        StepKind.APPLY,
        StepKind.SETTLED,
    ]
    assert world.view.record is not None
    assert world.view.record.disk_bytes == 5 * GIB


def test_what_a_host_refused_is_done_without():
    """L-V8: the guest keeps what it has and boots with it; nothing is told as applied. Another boot is asked anew."""
    world = created(power_state=PowerState.STOPPED)
    run_until_rest(world)
    refused = Refusal(digest="d2", boot_id=world.view.observed.boot_id, reason="too much")
    world.record(refused=refused)
    world.status(power_state=PowerState.RUNNING, input_digest="d2", generation=3, spec_generation=2)
    assert run_until_rest(world) == [StepKind.BOOT, StepKind.REST]
    assert world.view.record is not None
    assert world.view.record.applied_generation < 3
    world.see(boot_id="b2")
    world.stop_guest()
    assert run_until_rest(world)[0] is StepKind.WRITE_SEED


def test_a_stop_waits_for_nothing_else():
    """L-V3: a seed whose input cannot be fetched, or a disk that cannot grow, keeps no guest running."""
    world = created(power_state=PowerState.STOPPED, disk_gib=5, input_digest="d2", generation=2, spec_generation=2)
    assert run_until_rest(world) == [
        StepKind.STOP,
        StepKind.GROW_DISK,
        StepKind.WRITE_SEED,
        StepKind.APPLY,
        StepKind.SETTLED,
    ]


DATA, LOGS = (WantedVolume(volume_id=name, size_gib=1) for name in ("data", "logs"))


def test_each_volume_is_made_sure_of_before_the_boot():
    """H-V2, L-C11: by a step of its own, in the order asked for; also before a boot after the host's reboot."""
    world = World(make_row(volumes=(DATA, LOGS)))
    ensured = [StepKind.ENSURE_VOLUME, StepKind.ENSURE_VOLUME]
    assert run_until_rest(world) == [*CREATE_STORY, *ensured, StepKind.BOOT, StepKind.COMPLETE, StepKind.SETTLED]
    world = created(power_state=PowerState.STOPPED, volumes=(DATA, LOGS))
    assert next_step(world.row, world.view).kind is StepKind.STOP
    run_until_rest(world)
    world.status(power_state=PowerState.RUNNING, volumes=(LOGS,), generation=2)
    assert run_until_rest(world) == [StepKind.DETACH_VOLUME, StepKind.BOOT, StepKind.APPLY, StepKind.SETTLED]


def test_volumes_come_and_go_while_the_guest_runs():
    """H-V1, H-V4: what is not wanted any more goes first; nothing is started anew."""
    world = created(volumes=(DATA,))
    assert run_until_rest(world) == [StepKind.ENSURE_VOLUME, StepKind.SETTLED]
    larger = LOGS.model_copy(update={"size_gib": 2})
    world.status(volumes=(LOGS,))
    assert run_until_rest(world) == [StepKind.DETACH_VOLUME, StepKind.ENSURE_VOLUME, StepKind.SETTLED]
    world.status(volumes=(larger,))
    assert run_until_rest(world) == [StepKind.ENSURE_VOLUME, StepKind.SETTLED]
    assert world.starts == 0


def test_a_firewall_is_set_before_the_boot_and_before_all_that_may_fail():
    """N-5: only a stop comes before it; nothing of the guest is started anew."""
    world = World(make_row(network_digest="n1"))
    story = run_until_rest(world)
    assert story == [*CREATE_STORY, StepKind.SET_NETWORK, StepKind.BOOT, StepKind.COMPLETE, StepKind.SETTLED]
    world.status(network_digest="n2", generation=2, disk_gib=9, input_digest="d2")
    others = [StepKind.GROW_DISK, StepKind.WRITE_SEED, StepKind.APPLY, StepKind.SETTLED]
    assert run_until_rest(world) == [StepKind.SET_NETWORK, *others]
    assert world.starts == 1
    world.see(power_state=None)
    world.status(network_digest=None, generation=3)
    assert next_step(world.row, world.view).kind is StepKind.SET_NETWORK, "also of a guest that does not answer"
    world.see(power_state=PowerState.RUNNING)
    world.status(network_digest="n4", generation=4, power_state=PowerState.STOPPED)
    assert run_until_rest(world)[:2] == [StepKind.STOP, StepKind.SET_NETWORK]
    world.status(network_digest="n5", generation=5, power_state=PowerState.RUNNING)
    assert run_until_rest(world)[:2] == [StepKind.SET_NETWORK, StepKind.BOOT]


def test_a_guest_that_keeps_its_volume_is_restarted_and_a_paused_one_resumed_first():
    """H-V1, L-V7: what would never let go is not asked for ever; the volume goes while nothing runs."""
    world = created(volumes=(DATA,))
    run_until_rest(world)
    world.status(volumes=(), restart_generation=1, generation=2)
    kinds = [StepKind.NOTE_RESTART, StepKind.STOP, StepKind.DETACH_VOLUME, StepKind.BOOT, StepKind.APPLY]
    assert run_until_rest(world) == [*kinds, StepKind.SETTLED]
    world.status(volumes=(DATA,), power_state=PowerState.PAUSED, generation=3)
    assert run_until_rest(world)[:2] == [StepKind.ENSURE_VOLUME, StepKind.PAUSE]
    world.status(volumes=(), power_state=PowerState.RUNNING, generation=4)
    assert run_until_rest(world)[:2] == [StepKind.RESUME, StepKind.DETACH_VOLUME]


REBUILD_STORY = [
    StepKind.STOP,
    StepKind.SET_ASIDE,
    StepKind.FETCH_IMAGE,
    StepKind.MAKE_DISK,
    StepKind.WRITE_SEED,
    StepKind.COMPLETE,
    StepKind.BOOT,
    StepKind.APPLY,
]


def test_a_rebuild_keeps_the_old_disk_and_an_undo_brings_it_back():
    """L-V10, L-N3: each once, however often its pass is repeated; an undo can itself be undone."""
    world = created()
    old = world.disk
    world.rebuild()
    assert run_until_rest(world) == [*REBUILD_STORY, StepKind.SETTLED]
    new = world.disk
    assert run_until_rest(world) == [StepKind.SETTLED]
    world.undo()
    undone = [kind for kind in REBUILD_STORY if kind is not StepKind.MAKE_DISK]
    assert run_until_rest(world) == [*undone, StepKind.SETTLED]
    assert world.disk == old != new
    world.undo()
    run_until_rest(world)
    assert world.disk == new
    assert world.starts == 3


@pytest.mark.parametrize("crashed_after", REBUILD_STORY)
def test_a_rebuild_interrupted_anywhere_replaces_the_disk_once(crashed_after: StepKind):
    """L-V10, L-N3: only the applied generation proves it; the old disk is kept, whatever was half made."""
    world = created()
    old = world.disk
    world.rebuild()
    while world.done[-1:] != (crashed_after,):
        world.apply(next_step(world.row, world.view, world.done))
    world.done = ()
    world.status(pass_number=9)
    run_until_rest(world)
    assert world.starts == 1
    assert world.disk != old
    assert old in world.disks.values()


def test_a_rebuild_is_the_restart_that_was_asked_for_before():
    """L-V7, L-V10: one boot for both."""
    world = created(restart_generation=1, generation=2)
    world.rebuild()
    assert run_until_rest(world) == [*REBUILD_STORY, StepKind.SETTLED]
    assert world.starts == 1


def test_a_kept_disk_goes_when_its_time_is_over():
    """L-V10, L-R3, H-R3: by Postgres' clock; never before, and never while the fleet is frozen."""
    world = created()
    world.rebuild()
    run_until_rest(world)
    until = world.row.desired.old_disk_until
    assert next_step(world.row, world.view) == Step(
        kind=StepKind.SETTLED, reason="what is wanted is what is there", until=until
    )
    world.row = world.row.model_copy(update={"now": until, "frozen": True})
    step = next_step(world.row, world.view)
    assert (step.kind, step.until) == (StepKind.SETTLED, None)
    world.row = world.row.model_copy(update={"frozen": False})
    assert run_until_rest(world) == [StepKind.DROP_KEPT, StepKind.SETTLED]
    assert len(world.disks) == 1


def test_a_rebuild_makes_a_lost_vm_anew():
    """L-V9, L-V10: asked for, it is made from the start, and no attempts are counted for it."""
    world = created()
    world.view = empty_view()
    assert run_until_rest(world) == [StepKind.REST]
    world.rebuild()
    assert run_until_rest(world) == [*CREATE_STORY[1:], StepKind.BOOT, StepKind.COMPLETE, StepKind.SETTLED]
    assert run_until_rest(world) == [StepKind.SETTLED]
    world.view = empty_view()
    assert run_until_rest(world) == [StepKind.REST]


def test_a_lost_vm_that_cannot_be_made_anew_pauses_between_its_tries():
    """L-V5, L-V9."""
    world = created()
    world.view = empty_view()
    world.rebuild()
    world.status(failures=1, retry_at=NOW + timedelta(seconds=5))
    step = next_step(world.row, world.view)
    assert (step.kind, step.until) == (StepKind.WAIT, NOW + timedelta(seconds=5))


def test_a_deleted_vm_is_quarantined_then_destroyed_in_order():
    """L-R2, L-R3, L-R5, L-R6."""
    world = created()
    world.delete(timedelta(hours=1))
    assert run_until_rest(world) == [StepKind.QUARANTINE, StepKind.NOTE_STOPPED, StepKind.GRACE]
    world.row = world.row.model_copy(update={"now": NOW + timedelta(hours=2)})
    assert run_until_rest(world) == [StepKind.MARK_DESTROYING, *DESTROY_ORDER, StepKind.RECORD_GONE]


def test_leftovers_without_a_record_are_destroyed_too():
    """L-G8, L-R6: a delete works without a readable record, and only a search that finds nothing ends it."""
    world = World(make_row())
    world.delete(timedelta(0))
    world.see(nothing=False)
    kinds = run_until_rest(world)
    assert kinds == [StepKind.NOTE_STOPPED, StepKind.MARK_DESTROYING, *DESTROY_ORDER, StepKind.RECORD_GONE]


def test_an_undeleted_vm_leaves_its_quarantine_and_is_as_it_was():
    """L-R4: same disk, back to its desired power state."""
    world = created()
    world.delete(timedelta(hours=1))
    run_until_rest(world)
    assert world.undelete()
    assert run_until_rest(world) == [StepKind.RELEASE, StepKind.BOOT, StepKind.SETTLED]


def test_a_frozen_fleet_destroys_nothing():
    """H-R3."""
    world = created()
    world.delete(timedelta(0))
    row = world.row.model_copy(update={"frozen": True})
    assert next_step(row, world.view).kind is StepKind.WAIT


@given(
    kind=st.sampled_from(StepKind),
    deleted=st.booleans(),
    digest=st.sampled_from(["d1", "d2"]),
    power=st.sampled_from(PowerState),
)
def test_only_what_builds_up_is_cancelled(kind: StepKind, deleted: bool, digest: str, power: PowerState):
    """A stop, a quarantine or a destroying step is never cut short by a newer wish."""
    row = make_row(deleted=deleted, input_digest=digest, power_state=power)
    if supersedes(row, kind, "d1"):
        assert kind in CREATE_STORY or kind is StepKind.BOOT
        assert deleted or digest != "d1" or power is PowerState.STOPPED


wishes = st.lists(
    st.sampled_from(
        [
            *(
                "run",
                "stop",
                "pause",
                "restart",
                "grow",
                "grow volume",
                "attach",
                "detach",
                "keys",
                "firewall",
                "delete",
                "undelete",
                "reboot",
                "kill",
                "crash",
            ),
            *("late", "rebuild", "undo"),
        ]
    ),
    max_size=12,
)


@settings(max_examples=400)
@given(wishes=wishes, steps=st.lists(st.integers(0, 6), min_size=12, max_size=12))
@example(wishes=["stop", "pause"], steps=[6, 1, *(0,) * 10])
def test_any_history_settles_where_the_last_wish_says(wishes: list[str], steps: list[int]):
    """L-G1: level-triggered. Whatever is wished, killed or rebooted between steps, the end is the last wish's.

    L-V10: and no disk that a guest has used is lost, but one whose time was over.
    """
    world = World(make_row())
    for wish, count in zip(wishes, steps, strict=False):
        for _ in range(count):
            step = next_step(world.row, world.view, world.done)
            if step.kind not in NOTHING_TO_DO and not world.gone:
                world.apply(step)
                world.tell()
        if world.gone:
            return
        wish_for(world, wish)
    world.status(pass_number=world.row.status.pass_number + 1)
    world.done = ()
    last = run_until_rest(world)
    if world.gone:
        assert world.row.desired.deleted
        return
    assert_as_wished(world, last)


def wish_for(world: World, wish: str) -> None:
    desired = world.row.desired
    bump = {"generation": desired.generation + 1}
    powers = {"run": PowerState.RUNNING, "stop": PowerState.STOPPED, "pause": PowerState.PAUSED}
    if wish in powers:
        anew = {} if wish == "stop" else {"setbacks": None, "up_again_at": None}
        world.status(power_state=powers[wish], **anew, **bump)
    elif wish == "restart" and desired.power_state is PowerState.RUNNING:
        world.status(restart_generation=desired.restart_generation + 1, **bump)
    elif wish == "grow":
        world.status(disk_gib=(desired.disk_gib or 1) + 1, spec_generation=desired.spec_generation + 1, **bump)
    elif wish in ("attach", "detach", "grow volume"):
        volumes = list(desired.volumes)
        if wish == "attach":
            volumes.append(WantedVolume(volume_id=f"v{desired.generation}", size_gib=1))
        elif volumes and wish == "detach":
            volumes.pop(0)
        elif volumes:
            volumes[0] = volumes[0].model_copy(update={"size_gib": volumes[0].size_gib + 1})
        world.status(volumes=tuple(volumes), spec_generation=desired.spec_generation + 1, **bump)
    elif wish == "firewall":
        world.status(network_digest=f"n{desired.generation}" if desired.generation % 3 else None, **bump)
    elif wish == "keys":
        world.status(input_digest=desired.input_digest + "x", **bump)
    elif wish == "delete" and not desired.deleted:
        world.delete(timedelta(hours=1))
    elif wish == "undelete" and desired.deleted:
        world.undelete()
    elif wish in ("rebuild", "undo") and not desired.deleted:
        getattr(world, wish)()
    elif wish == "reboot":
        world.stop_guest()
        world.see(boot_id=world.view.observed.boot_id + "x")
    elif wish == "kill":
        world.die()
    elif wish == "crash":
        world.status(pass_number=world.row.status.pass_number + 1)
        world.done = ()
    elif wish == "late":
        world.row = world.row.model_copy(update={"now": world.row.now + timedelta(minutes=40)})


def assert_as_wished(world: World, last: list[StepKind]) -> None:
    seen, desired, record = world.view.observed, world.row.desired, world.view.record
    if desired.deleted:
        assert seen.process is None
        return
    assert last[-1] is StepKind.SETTLED
    assert isinstance(record, Record)
    assert seen.power_state is desired.power_state
    if desired.power_state is not PowerState.STOPPED:
        assert world.row.status.setbacks is not None
        assert seen.setback in (None, world.row.status.setback)
    assert record.applied_generation == desired.generation
    assert record.seed_digest == desired.input_digest
    wanted = [(each.volume_id, each.size_gib * GIB) for each in desired.volumes]
    assert [(each.volume_id, each.size_bytes) for each in record.volumes] == wanted
    assert (record.applied_rebuild_generation, record.create) == (desired.rebuild_generation, None)
    assert world.disk is not None
    assert world.used <= set(world.disks.values())
    assert record.quarantined_at is None


def test_every_kind_has_its_words():
    """L-G10: whatever step runs, the user sees what it does."""
    assert set(WORDS) == set(StepKind)
    assert Step(kind=StepKind.BOOT, reason="x").words == "starting the guest"


@pytest.mark.parametrize(
    ("deleted", "ready", "expected"),
    [(False, None, "CreateVm"), (False, NOW, "ConvergeVm"), (True, None, "ReapVm"), (True, NOW, "ReapVm")],
)
def test_the_row_names_its_type_of_pass(deleted: bool, ready: object, expected: str):
    assert pass_type_of(make_row(deleted=deleted, first_ready_at=ready)) == expected


def test_the_certificate_comes_before_the_attempt():
    """L-C2: key and certificate first, then the attempt; without one nothing else is done, and nothing counted."""
    world = World(make_row(host_certificate=True))
    step = next_step(world.row, world.view)
    assert step.kind is StepKind.CERTIFY
    assert world.row.status.create_attempts == 0
    assert run_until_rest(world) == [
        StepKind.CERTIFY,
        *CREATE_STORY,
        StepKind.BOOT,
        StepKind.COMPLETE,
        StepKind.SETTLED,
    ]


def test_no_certificate_is_asked_for_unasked_or_in_a_pause():
    """L-C2, L-C4: only where one is required, and not while the VM pauses or rests."""
    plain, pausing = World(make_row()), World(make_row(host_certificate=True, retry_at=NOW + timedelta(seconds=9)))
    assert next_step(plain.row, plain.view).kind is StepKind.TAKE_ATTEMPT
    assert next_step(pausing.row, pausing.view).kind is StepKind.WAIT


def test_a_renewed_certificate_goes_into_the_seed_of_a_vm_that_runs_on():
    """L-C2: fetched last of all, then the seed is written anew; the guest is not touched."""
    world = created(host_certificate=True, certificate_serial=1)
    world.see(certificate_serial=1)
    assert run_until_rest(world) == [StepKind.SETTLED]
    world.done = ()
    world.status(certificate_serial=2, power_state=PowerState.STOPPED)
    assert run_until_rest(world) == [StepKind.STOP, StepKind.CERTIFY, StepKind.WRITE_SEED, StepKind.SETTLED]
    assert world.starts == 0
