"""What keeps a VM as it is wanted (rules L-V)."""

from __future__ import annotations

from datetime import datetime, timedelta

from model.decide.held import is_up
from model.decide.network import next_of_network
from model.decide.pause import next_of_pause
from model.decide.rebuild import kept_until, must_drop, next_of_rebuild
from model.decide.setback import next_of_ended, next_of_stalled, steady_at
from model.decide.volumes import next_of_volumes
from model.record import Observed, Record
from model.row import Row
from model.step import Step, StepKind
from model.vm import PowerState
from model.waiting import Waiting

GIB = 1 << 30
UNREACHABLE_LOOK = timedelta(seconds=15)


def next_of_converge(row: Row, record: Record, seen: Observed) -> Step:
    """L-V: make what runs, and how, equal to what is wanted."""
    desired = row.desired
    pause = next_of_pause(row)
    if pause is not None:
        return pause
    must_stop = desired.power_state is PowerState.STOPPED and is_up(seen)
    network = None if must_stop else next_of_network(row, record)
    if network is not None:
        # Whatever else fails or waits: what may reach the guest is not to wait with it (N-5).
        return network
    rebuild = next_of_rebuild(row, record, seen)
    if rebuild is not None:
        return rebuild
    if must_stop:
        # Before all else, so that nothing that cannot be fetched or grown keeps a guest running.
        return Step(kind=StepKind.STOP, reason="the VM is wanted stopped")
    if seen.power_state is None:
        return _next_of_silent(row, record, seen)
    refused = _is_refused(row, record, seen)
    if _must_grow(desired.disk_gib, record) and not refused:
        return Step(kind=StepKind.GROW_DISK, reason="a larger root disk is wanted")
    if record.seed_digest != desired.input_digest and not refused:
        return Step(kind=StepKind.WRITE_SEED, reason="what the VM is given has changed")
    volume = next_of_volumes(row, record)
    if volume is not None:
        # Before the boot, so that a VM and its volume arriving together boot at the first try (H-V2).
        return _next_before_volume(row, record, seen, volume) or volume
    step = (
        _next_of_stopped(record, seen) if desired.power_state is PowerState.STOPPED else _next_of_up(row, record, seen)
    )
    if step is not None:
        return step
    if row.desired.certificate_serial not in (None, seen.certificate_serial):
        return Step(kind=StepKind.CERTIFY, reason="the VM's host certificate was renewed")
    if must_drop(row, record):
        return Step(kind=StepKind.DROP_KEPT, reason="the old root disk has been kept for its time")
    if refused:
        return Step(
            kind=StepKind.REST,
            reason="its host cannot give it what was asked for",
            until=kept_until(row, record),
            waits=Waiting.REFUSED_CHANGE,
        )
    wanted = (row.epoch, desired.generation, desired.spec_generation, desired.restart_generation)
    if _applied(record) != wanted:
        return Step(kind=StepKind.APPLY, reason="everything that is wanted has been done")
    return Step(
        kind=StepKind.SETTLED, reason="what is wanted is what is there", until=_look_again_at(row, record, seen)
    )


def _next_before_volume(row: Row, record: Record, seen: Observed, volume: Step) -> Step | None:
    """What comes before a volume's step: a restart, since a guest that keeps a volume gives it up so, and a resume,
    since one that is paused lets none go.
    """
    restart = _next_of_restart(row, record, seen)
    is_paused = seen.power_state is PowerState.PAUSED and row.desired.power_state is PowerState.RUNNING
    if restart is None and is_paused and volume.kind is StepKind.DETACH_VOLUME:
        return _next_of_up(row, record, seen)
    return restart


def _look_again_at(row: Row, record: Record, seen: Observed) -> datetime | None:
    return min((at for at in (kept_until(row, record), steady_at(row, seen)) if at is not None), default=None)


def _next_of_silent(row: Row, record: Record, seen: Observed) -> Step:
    """The guest's process does not answer: only its user ends it, who asked for a stop or a restart (L-V3, case B2)."""
    return _next_of_restart(row, record, seen) or Step(
        kind=StepKind.WAIT,
        reason="the guest's process lives but does not answer",
        until=row.now + UNREACHABLE_LOOK,
        waits=Waiting.SILENT_GUEST,
    )


def _next_of_restart(row: Row, record: Record, seen: Observed) -> Step | None:
    """A restart is done when the process that was noted for it is dead and another runs (L-V7)."""
    wanted = row.desired.restart_generation
    if seen.process is None or record.applied_restart_generation >= wanted:
        return None
    noted = wanted if record.restart_of_generation is None else record.restart_of_generation
    if record.restart_of is None or noted < wanted:
        return Step(kind=StepKind.NOTE_RESTART, reason="a restart was asked for")
    if record.restart_of == seen.process:
        return Step(kind=StepKind.STOP, reason="a restart replaces the guest's process")
    return None


def _applied(record: Record) -> tuple[int, int, int, int]:
    applied = (record.applied_generation, record.applied_spec_generation, record.applied_restart_generation)
    return (record.epoch, *applied)


def _is_refused(row: Row, record: Record, seen: Observed) -> bool:
    """What its host refused, the VM does without until something else is wanted, or the host was rebooted (L-V8)."""
    wanted = (row.desired.input_digest, seen.boot_id)
    return record.refused is not None and (record.refused.digest, record.refused.boot_id) == wanted


def _must_grow(disk_gib: int | None, record: Record) -> bool:
    return disk_gib is not None and record.disk_bytes is not None and disk_gib * GIB > record.disk_bytes


def _next_of_stopped(record: Record, seen: Observed) -> Step | None:
    if not record.stop_intended or record.boot_id != seen.boot_id:
        return Step(kind=StepKind.RECORD_STOP, reason="the guest is gone and is wanted stopped")
    return None


def _next_of_up(row: Row, record: Record, seen: Observed) -> Step | None:
    """Running or paused is wanted.

    A guest that lives although the record knows an earlier boot of the host was let go by a worker that died before it
    could say so: its boot is finished (L-G4).
    """
    if seen.power_state is PowerState.STOPPED or record.boot_id != seen.boot_id:
        return next_of_ended(row, record, seen) or Step(kind=StepKind.BOOT, reason=_why_boot(record, seen))
    first = _next_of_restart(row, record, seen) or next_of_stalled(row, seen)
    if first is not None:
        return first
    if record.stop_intended:
        # A stop was given up halfway, as by an undelete: what the guest does from now on is no stop's doing.
        return Step(kind=StepKind.BOOT, reason="the guest was being stopped and is wanted up")
    if row.desired.power_state is PowerState.PAUSED and seen.power_state is PowerState.RUNNING:
        return Step(kind=StepKind.PAUSE, reason="the VM is wanted paused")
    if row.desired.power_state is PowerState.RUNNING and seen.power_state is PowerState.PAUSED:
        return Step(kind=StepKind.RESUME, reason="the VM is wanted running")
    return None


def _why_boot(record: Record, seen: Observed) -> str:
    if record.boot_id != seen.boot_id:
        return "its host was rebooted and the VM is wanted up"
    if record.stop_intended:
        return "the VM is stopped and wanted up"
    return "the guest ended by itself and is wanted up"
