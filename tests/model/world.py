"""A VM, its row and its host in memory: each step does what the real one promises. For tests of pure decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from model.decide.setback import count_setbacks
from model.passes import PassStart  # noqa: F401  (the models must import without Temporal)
from model.process import ProcessRecord
from model.record import CreateProgress, HostOrder, KeptDisk, Observed, Record, Setback, View
from model.row import Desired, HostState, Row, Status
from model.step import Step, StepKind
from model.vm import Phase, PowerState, Quarantine
from model.volume import AttachedVolume, in_order

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 1 << 30


def make_row(**changes: object) -> Row:
    """Return a row just created; `changes` name fields of desired or status."""
    desired = Desired(
        power_state=PowerState.RUNNING,
        deleted=False,
        generation=1,
        spec_generation=1,
        restart_generation=0,
        rebuild_generation=0,
        input_digest="d1",
        disk_gib=None,
        stop_timeout_seconds=90,
    )
    status = Status(phase=Phase.CREATING, pass_number=1)
    row = Row(
        vm_id="vm-1",
        project="default",
        fleet_id="fleet",
        epoch=1,
        host=HostState(host_id="h1", instance_id="i1", status="ready", silent=False),
        desired=desired,
        status=status,
        wake=1,
        now=NOW,
    )
    return change(row, **changes)


def change(row: Row, **changes: object) -> Row:
    """Return `row` with fields of desired, status or the row itself changed."""
    desired = {k: v for k, v in changes.items() if k in Desired.model_fields}
    status = {k: v for k, v in changes.items() if k in Status.model_fields}
    rest = {k: v for k, v in changes.items() if k not in desired and k not in status}
    return row.model_copy(
        update={
            "desired": row.desired.model_copy(update=desired),
            "status": row.status.model_copy(update=status),
            **rest,
        }
    )


def empty_view(boot_id: str = "b1") -> View:
    observed = Observed(boot_id=boot_id, power_state=PowerState.STOPPED, nothing=True, seen_at=NOW)
    return View(record=None, observed=observed)


def begin_rebuild(record: Record, pass_number: int, desired: Desired | HostOrder) -> Record:
    """Return the record of a host once a rebuild, or an undo, has begun."""
    kept, undo_of = record.kept, desired.undo_of
    is_whole = record.create is None or record.create.undo
    aside = KeptDisk(name=record.disk, by=desired.kept_by, disk_bytes=record.disk_bytes) if is_whole else None
    turn: dict[str, object] = {}
    if undo_of is not None and kept is not None and kept.by == undo_of:
        turn = {"disk": kept.name, "kept": aside, "disk_bytes": kept.disk_bytes}
    elif undo_of is None and is_whole and (kept is None or kept.by != desired.kept_by):
        turn = {"disk": "disk-2" if record.disk == "disk" else "disk", "kept": aside, "disk_bytes": None}
    else:
        assert undo_of is None or is_whole, "nothing is brought back but what was put aside"
    progress = CreateProgress(
        pass_number=pass_number,
        rebuild_generation=desired.rebuild_generation,
        undo=undo_of is not None,
        disk=undo_of is not None,
    )
    digest = desired.input_digest
    return record.model_copy(update={**turn, "create": progress, "input_digest": digest, "seed_digest": None})


class World:
    """One row and one host. `apply` does a step; `starts` counts the boots.

    `disks` numbers what lies in the places of the root disk; `used` are those that a guest has written to and that
    nobody has given up.
    """

    def __init__(self, row: Row, view: View | None = None) -> None:
        self.row = row
        self.view = view or empty_view()
        self.pid = 100
        self.starts = 0
        self.gone = False
        self.done: tuple[StepKind, ...] = ()
        self.disks: dict[str, int] = {}
        self.used: set[int] = set()
        self.made = 0
        self.keeps = False
        self.volume_id: str | None = None

    def record(self, **changes: object) -> None:
        old = self.view.record or Record(input_digest=self.row.desired.input_digest)
        self.view = self.view.model_copy(update={"record": old.model_copy(update=changes)})
        self.see(nothing=False)

    def see(self, **changes: object) -> None:
        self.view = self.view.model_copy(update={"observed": self.view.observed.model_copy(update=changes)})

    def create(self, **changes: object) -> None:
        old = self.view.record.create if self.view.record else None
        assert old is not None
        self.record(create=old.model_copy(update=changes))

    def stop_guest(self) -> None:
        self.see(process=None, power_state=PowerState.STOPPED, guest_ended=None)

    def die(self, **seen: object) -> None:
        """End the guest by itself, as its host notes it."""
        self.befall()
        self.stop_guest()
        self.see(**seen)

    def befall(self) -> None:
        """Note a setback of the guest that there is."""
        seen, record = self.view.observed, self.view.record
        if seen.process is not None and record is not None and not record.stop_intended:
            number = seen.setback.number + 1 if seen.setback else 1
            self.see(setback=Setback(number=number, process=seen.process))

    def start_guest(self) -> None:
        self.starts += 1
        self.pid += 1
        process = ProcessRecord(pid=self.pid, start_time=self.pid, boot_id=self.view.observed.boot_id, uid=200001)
        self.see(process=process, power_state=PowerState.RUNNING, guest_ended=None, started_at=NOW, turned_off=False)

    def apply(self, step: Step) -> None:
        """Do what the host or the store does for `step`."""
        self.done = (*self.done, step.kind)
        self.volume_id = step.volume_id
        getattr(self, f"do_{step.kind.value}")()

    def tell(self) -> None:
        """Write to the row what a pass tells it of a VM that is made."""
        record, desired = self.view.record, self.row.desired
        if record is None or record.boot_id is None:
            return
        self.status(
            first_ready_at=self.row.status.first_ready_at or NOW,
            applied_rebuild_generation=record.applied_rebuild_generation,
        )
        if record.applied_rebuild_generation == desired.rebuild_generation:
            self.keeps = self.keeps and record.kept is not None and record.kept.by == desired.kept_by

    def rebuild(self, keep: timedelta = timedelta(minutes=30)) -> None:
        """Ask for a rebuild as the store accepts one: not while a disk is kept, or one is being brought back."""
        desired, unfinished = self.row.desired, self.row.rebuilding
        if unfinished and desired.undo_of is not None:
            return
        if not unfinished:
            until = desired.old_disk_until
            if self.keeps and until is not None and until > self.row.now:
                return
            self._give_kept_up()
            self.keeps = self.row.status.first_ready_at is not None
        self._ask_for_rebuild(keep, kept_by=desired.kept_by if unfinished else desired.rebuild_generation + 1)

    def undo(self, keep: timedelta = timedelta(minutes=30)) -> None:
        desired = self.row.desired
        is_kept = self.keeps and desired.old_disk_until is not None and desired.old_disk_until > self.row.now
        if is_kept and not (self.row.rebuilding and desired.undo_of is not None):
            self._ask_for_rebuild(keep, kept_by=desired.rebuild_generation + 1, undo_of=desired.kept_by)

    def _ask_for_rebuild(self, keep: timedelta, *, kept_by: int, undo_of: int | None = None) -> None:
        desired = self.row.desired
        self.status(
            generation=desired.generation + 1,
            spec_generation=desired.spec_generation + 1,
            rebuild_generation=desired.rebuild_generation + 1,
            kept_by=kept_by,
            undo_of=undo_of,
            old_disk_until=self.row.now + keep,
            pass_number=self.row.status.pass_number + 1,
        )
        self.done = ()

    def _give_kept_up(self) -> None:
        kept = self.view.record.kept if self.view.record else None
        if kept is not None:
            self.used.discard(self.disks[kept.name])

    @property
    def disk(self) -> int | None:
        """The number of the disk in use."""
        return self.disks.get(self.view.record.disk) if self.view.record else None

    def status(self, **changes: object) -> None:
        self.row = change(self.row, **changes)

    def do_take_attempt(self) -> None:
        status = self.row.status
        self.status(attempt_pass=status.pass_number, create_attempts=status.create_attempts + 1)

    def do_count_setback(self) -> None:
        seen = self.view.observed
        self.status(setbacks=count_setbacks(self.row, seen), setback=seen.setback, up_again_at=None)

    def do_certify(self) -> None:
        self.see(certificate_serial=self.row.desired.certificate_serial or 1)
        if self.view.record is not None:
            self.record(seed_digest=None)

    def do_prepare(self) -> None:
        self.stop_guest()
        number = self.row.status.pass_number
        self.record(create=CreateProgress(pass_number=number), input_digest=self.row.desired.input_digest)
        self.disks.clear()
        self.used.clear()

    def do_fetch_image(self) -> None:
        self.create(image=True)

    def do_make_disk(self) -> None:
        self.create(disk=True)
        assert self.view.record is not None
        self.made += 1
        self.disks.setdefault(self.view.record.disk, self.made)
        self.record(disk_bytes=(self.row.desired.disk_gib or 1) * GIB)

    def do_write_seed(self) -> None:
        if self.view.record and self.view.record.create:
            self.create(seed=True)
        self.record(seed_digest=self.row.desired.input_digest)

    def do_ensure_volume(self) -> None:
        record = self.view.record
        assert record is not None
        (wanted,) = [each for each in self.row.desired.volumes if each.volume_id == self.volume_id]
        there = {each.volume_id: each for each in record.volumes}
        there[wanted.volume_id] = AttachedVolume(volume_id=wanted.volume_id, size_bytes=wanted.size_gib * GIB)
        self.record(volumes=in_order(there.values(), self.row.desired.volumes))

    def do_detach_volume(self) -> None:
        record = self.view.record
        assert record is not None
        self.record(volumes=tuple(each for each in record.volumes if each.volume_id != self.volume_id))

    def do_set_network(self) -> None:
        self.record(network_digest=self.row.desired.network_digest)

    def do_boot(self) -> None:
        told = self.view.record.network_digest if self.view.record else None
        assert told == self.row.desired.network_digest, "N-5"
        there = self.view.record.volumes if self.view.record else ()
        assert [each.volume_id for each in there] == [each.volume_id for each in self.row.desired.volumes], "L-C11"
        if self.view.record is not None and self.view.record.boot_id is not None:
            assert self.view.observed.setback in (None, self.row.status.setback), "a setback is counted first"
        if self.view.observed.process is None or self.view.observed.guest_ended:
            self.start_guest()
        else:
            # The host boots no second one: it takes the guest, whose stop was given up halfway, for one that runs.
            assert self.view.record is not None
            assert self.view.record.stop_intended, "never a second process"
        assert self.disk is not None
        self.used.add(self.disk)
        if self.view.record and self.view.record.create:
            self.create(booted=True)
        else:
            self.record(boot_id=self.view.observed.boot_id)
        self.record(stop_intended=False)

    def do_set_aside(self) -> None:
        assert self.view.record is not None
        assert self.view.observed.process is None, "a disk is put aside while nothing uses it"
        begun = begin_rebuild(self.view.record, self.row.status.pass_number, self.row.desired)
        in_use, kept = begun.disk, begun.kept
        undo = self.row.desired.undo_of is not None
        names = {in_use} if undo else set[str]()
        self.disks = {name: disk for name, disk in self.disks.items() if name in names or (kept and name == kept.name)}
        self.view = self.view.model_copy(update={"record": begun})

    def do_drop_kept(self) -> None:
        until = self.row.desired.old_disk_until
        assert until is not None
        assert until <= self.row.now, "never before its time"
        assert self.view.record is not None
        assert self.view.record.kept is not None
        self.used.discard(self.disks.pop(self.view.record.kept.name))
        self.record(kept=None)

    def do_complete(self) -> None:
        desired = self.row.desired
        self.record(
            applied_rebuild_generation=desired.rebuild_generation,
            applied_restart_generation=desired.restart_generation,
        )
        if self.view.record and self.view.record.boot_id is not None:
            self.record(create=None)
            return
        self.record(
            boot_id=self.view.observed.boot_id,
            create=None,
            stop_intended=self.row.desired.power_state is PowerState.STOPPED,
        )
        self.do_apply()

    def do_take_over(self) -> None:
        record, desired = self.view.record, self.row.desired
        assert record is not None
        assert record.epoch < self.row.epoch, "never within an epoch"
        self.status(
            generation=max(desired.generation, record.applied_generation),
            spec_generation=max(desired.spec_generation, record.applied_spec_generation),
            restart_generation=max(desired.restart_generation, record.applied_restart_generation),
            rebuild_generation=max(desired.rebuild_generation, record.applied_rebuild_generation),
        )

    def do_apply(self) -> None:
        desired = self.row.desired
        self.record(
            epoch=self.row.epoch,
            applied_generation=desired.generation,
            applied_spec_generation=desired.spec_generation,
            applied_restart_generation=desired.restart_generation,
            restart_of=None,
        )

    def do_pause(self) -> None:
        self.see(power_state=PowerState.PAUSED)

    def do_resume(self) -> None:
        self.see(power_state=PowerState.RUNNING)

    def do_stop(self) -> None:
        self.record(stop_intended=True)
        self.stop_guest()

    def do_record_stop(self) -> None:
        self.record(stop_intended=True, boot_id=self.view.observed.boot_id)

    def do_note_restart(self) -> None:
        wanted = self.row.desired.restart_generation
        self.record(restart_of=self.view.observed.process, restart_of_generation=wanted)

    def do_grow_disk(self) -> None:
        self.record(disk_bytes=(self.row.desired.disk_gib or 1) * GIB)

    def do_quarantine(self) -> None:
        self.record(quarantined_at=NOW, stop_intended=True)
        self.stop_guest()

    def do_release(self) -> None:
        self.record(quarantined_at=None)

    def do_note_stopped(self) -> None:
        quarantine = self.row.status.quarantine
        assert quarantine is not None
        self.status(quarantine=quarantine.model_copy(update={"stopped_at": self.row.now}))

    def do_mark_destroying(self) -> None:
        quarantine = self.row.status.quarantine
        assert self.row.desired.deleted
        assert quarantine is not None
        assert quarantine.destroy_at <= self.row.now, "never before the grace is over"
        self.status(destroying=True)

    def do_destroy_process(self) -> None:
        assert self.row.status.destroying
        self.stop_guest()
        self.note_destroyed("destroy_process")

    def do_destroy_network(self) -> None:
        self.note_destroyed("destroy_network")

    def do_destroy_storage(self) -> None:
        self.disks.clear()
        self.used.clear()
        self.note_destroyed("destroy_storage")

    def do_destroy_records(self) -> None:
        assert self.row.status.destroying
        self.view = empty_view(self.view.observed.boot_id)

    def do_record_gone(self) -> None:
        assert self.view.observed.nothing
        self.gone = True

    def note_destroyed(self, name: str) -> None:
        if self.view.record is not None:
            self.record(destroyed=(*self.view.record.destroyed, name))

    def delete(self, grace: timedelta) -> None:
        quarantine = Quarantine(kind="tombstone", since=self.row.now, destroy_at=self.row.now + grace)
        self.status(deleted=True, quarantine=quarantine)

    def undelete(self) -> bool:
        if self.row.status.destroying:
            return False
        self.status(deleted=False, quarantine=None)
        return True
