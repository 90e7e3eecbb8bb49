"""A VM, its row and its host in memory: each step does what the real one promises. For tests of pure decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from model.passes import PassStart  # noqa: F401  (the models must import without Temporal)
from model.process import ProcessRecord
from model.record import CreateProgress, Observed, Record, View
from model.row import Desired, HostState, Row, Status
from model.step import Step, StepKind
from model.vm import Phase, PowerState, Quarantine

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


class World:
    """One row and one host. `apply` does a step; `starts` counts the boots."""

    def __init__(self, row: Row, view: View | None = None) -> None:
        self.row = row
        self.view = view or empty_view()
        self.pid = 100
        self.starts = 0
        self.gone = False
        self.done: tuple[StepKind, ...] = ()

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

    def start_guest(self) -> None:
        self.starts += 1
        self.pid += 1
        process = ProcessRecord(pid=self.pid, start_time=self.pid, boot_id=self.view.observed.boot_id, uid=200001)
        self.see(process=process, power_state=PowerState.RUNNING, guest_ended=None)

    def apply(self, step: Step) -> None:
        """Do what the host or the store does for `step`."""
        self.done = (*self.done, step.kind)
        getattr(self, f"do_{step.kind.value}")()

    def status(self, **changes: object) -> None:
        self.row = change(self.row, **changes)

    def do_take_attempt(self) -> None:
        status = self.row.status
        self.status(attempt_pass=status.pass_number, create_attempts=status.create_attempts + 1)

    def do_certify(self) -> None:
        self.see(certificate_serial=self.row.desired.certificate_serial or 1)
        if self.view.record is not None:
            self.record(seed_digest=None)

    def do_prepare(self) -> None:
        self.stop_guest()
        number = self.row.status.pass_number
        self.record(create=CreateProgress(pass_number=number), input_digest=self.row.desired.input_digest)

    def do_fetch_image(self) -> None:
        self.create(image=True)

    def do_make_disk(self) -> None:
        self.create(disk=True)
        self.record(disk_bytes=(self.row.desired.disk_gib or 1) * GIB)

    def do_write_seed(self) -> None:
        if self.view.record and self.view.record.create:
            self.create(seed=True)
        self.record(seed_digest=self.row.desired.input_digest)

    def do_boot(self) -> None:
        assert self.view.observed.process is None or self.view.observed.guest_ended, "never a second process"
        self.start_guest()
        if self.view.record and self.view.record.create:
            self.create(booted=True)
        else:
            self.record(boot_id=self.view.observed.boot_id)
        self.record(stop_intended=False)

    def do_complete(self) -> None:
        self.record(
            boot_id=self.view.observed.boot_id,
            create=None,
            stop_intended=self.row.desired.power_state is PowerState.STOPPED,
        )
        self.do_apply()

    def do_apply(self) -> None:
        desired = self.row.desired
        self.record(
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
