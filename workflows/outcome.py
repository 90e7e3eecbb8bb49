"""What the end of a step means for the row: phase, error, pause, and when to look next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from model.decide import pass_type_of
from model.decide.refund import count_refund, why_no_more
from model.passes import Outcome, PassRef
from model.record import View
from model.row import Row
from model.step import Step, StepKind
from model.vm import Phase
from model.waiting import Waiting
from workflows import policies
from workflows.failures import Failure, FailureKind
from workflows.setbacks import after_setbacks

IMAGE_PATIENCE = timedelta(minutes=15)
LOOK_ANYWAY = timedelta(seconds=60)

_RESTING = {"phase": Phase.FAILED, "resting": True, "waits": Waiting.CREATE_RESTS}
_USED = {"attempt_used": True}
_MAKING = frozenset({StepKind.PREPARE, StepKind.SET_ASIDE, StepKind.FETCH_IMAGE, StepKind.MAKE_DISK})
_DESTROYING = frozenset(
    {
        StepKind.MARK_DESTROYING,
        StepKind.DESTROY_PROCESS,
        StepKind.DESTROY_NETWORK,
        StepKind.DESTROY_STORAGE,
        StepKind.DESTROY_RECORDS,
        StepKind.RECORD_GONE,
    }
)


def phase_during(row: Row, kind: StepKind) -> Phase:
    """Return the phase that a user sees while a step runs."""
    if row.desired.deleted:
        return Phase.DESTROYING if kind in _DESTROYING and row.status.destroying else Phase.QUARANTINED
    if row.status.first_ready_at is None or (row.rebuilding and kind in _MAKING):
        return Phase.CREATING
    return Phase.READY if kind is StepKind.RELEASE else row.status.phase


def ending(row: Row, step: Step, view: View, ref: PassRef, step_number: int, *, booted: bool) -> Outcome | None:
    """State what a pass found that can do nothing more now."""
    outcome = Outcome(**ref.model_dump(), step=step_number, phase=row.status.phase, waits=step.waits, view=view)
    if step.kind is StepKind.SETTLED:
        first = row.status.first_ready_at is None
        return outcome.model_copy(
            update={
                "phase": Phase.READY,
                "failures": 0,
                "observed_generation": row.desired.generation,
                "completed": True,
                "write_error": booted or first,
                **after_setbacks(row, view.observed),
            }
        )
    if step.kind is StepKind.REST:
        told = None if row.status.resting else view.unreadable or _refusal(view) or step.reason
        if step.waits is Waiting.CORRUPT_COUNTERS:
            told = step.reason
        rest: dict[str, object] = {"phase": Phase.FAILED, "write_error": told is not None, "error": told}
        if step.waits is Waiting.CREATE_RESTS:
            rest["resting"] = True
        if view.record is None:
            # Without a record nobody can tell whose process or disk a host holds (L-V9).
            unknown = view.observed.model_copy(update={"power_state": None})
            rest["view"] = view.model_copy(update={"observed": unknown})
        return outcome.model_copy(update=rest)
    if step.kind is StepKind.GRACE:
        return outcome.model_copy(update={"phase": Phase.QUARANTINED, "failures": 0})
    if step.waits is Waiting.HOST_DISK:
        return outcome.model_copy(update={"phase": Phase.FAILED, "write_error": True, "error": step.reason})
    return outcome.model_copy(update={"words": f"waiting: {step.reason}"})


def _refusal(view: View) -> str | None:
    """The host's own words for why a VM that it keeps cannot have what was asked for (L-V8)."""
    return view.record.refused.reason if view.record is not None and view.record.refused is not None else None


@dataclass(frozen=True)
class Verdict:
    """How a pass goes on after a failed step. `fields` are those of the Outcome to write."""

    fields: dict[str, Any]
    give_back: bool = False
    counted: bool = False
    host_died: bool = False
    ends: bool = True
    rests: bool = False
    due_at: datetime | None = field(default=None)


def after_failure(row: Row, kind: StepKind, failure: Failure, *, now: datetime, jitter: float) -> Verdict:
    """Decide what a failed step means: for the VM's error and attempts, and for when to try again."""
    verdict = _after_failure(row, kind, failure, now=now, jitter=jitter)
    if not (verdict.give_back and verdict.counted):
        return verdict
    died = failure.kind in (FailureKind.NOT_PICKED_UP, FailureKind.SILENT)
    status = row.status
    why = why_no_more(*count_refund(status.refunds, status.step_refunds, kind, host_died=died))
    if why is None:
        return replace(verdict, host_died=died)
    error = f"{why}; the last time: {failure.text}"
    fields = {**verdict.fields, **_RESTING, "write_error": True, "error": error}
    return replace(verdict, host_died=died, fields=fields, rests=True, due_at=None)


def _after_failure(row: Row, kind: StepKind, failure: Failure, *, now: datetime, jitter: float) -> Verdict:
    attempted = row.status.attempt_pass == row.status.pass_number
    phase = row.status.phase
    told = {"phase": phase, "write_error": True, "error": failure.text}
    if failure.kind is FailureKind.BEHIND:
        # No time to look again: the host's report, or the restore's end, wakes the row.
        fields = {"phase": phase, "words": f"waiting: {failure.text}", "waits": Waiting.BEHIND}
        return Verdict(fields, give_back=attempted)
    if failure.kind is FailureKind.NOT_PICKED_UP:
        fields = {
            "phase": phase,
            "words": "waiting for the host to report and take up work",
            "waits": Waiting.HOST_AWAY,
        }
        return Verdict(fields, give_back=attempted, counted=attempted, due_at=now + LOOK_ANYWAY)
    if failure.kind is FailureKind.BELOW_FLOOR:
        fields = {**told, "phase": Phase.FAILED, "waits": Waiting.HOST_BELOW_FLOOR}
        return Verdict(fields, give_back=attempted, counted=attempted, due_at=now + LOOK_ANYWAY)
    if failure.kind is FailureKind.UNKNOWN_THERE:
        words = "waiting for the host's worker to be upgraded"
        fields = {"phase": phase, "words": words, "waits": Waiting.HOST_OUTDATED}
        return Verdict(fields, give_back=attempted, due_at=now + LOOK_ANYWAY)
    if failure.kind is FailureKind.REFUSED:
        # No time to look again: whoever hears that the host has room wakes the row.
        fields = {**told, "phase": Phase.FAILED, "words": "waiting for room on the host", "waits": Waiting.REFUSED}
        return Verdict(fields, give_back=attempted)
    away = failure.kind in (FailureKind.AWAY, FailureKind.SILENT)
    if away and kind is StepKind.WAIT:
        # A look that did not come about, as on a host that is busy, says nothing of the VM: no error, no longer pause.
        pause = policies.pause_after_failure(row.status.failures + 1) * jitter
        fields = {"phase": phase, "words": "waiting for the host to answer", "waits": Waiting.HOST_BUSY}
        return Verdict(fields, due_at=now + pause)
    if away:
        pause = policies.pause_after_failure(row.status.failures + 1) * jitter
        fields = {**told, "failures": row.status.failures + 1, "waits": Waiting.HOST_BUSY}
        # What was not even begun, or tells nothing, never ends the retries (L-C6).
        counted = attempted and failure.kind is FailureKind.SILENT
        return Verdict(fields, give_back=attempted, counted=counted, due_at=now + pause)
    if pass_type_of(row) != "CreateVm":
        return _after_failed_step(row, told, now=now, jitter=jitter)
    if failure.kind is FailureKind.PERMANENT:
        return Verdict({**told, **_RESTING, **_USED}, rests=True)
    if failure.kind is FailureKind.IMAGE_UNREACHABLE:
        since = row.status.unreachable_since or now
        if now - since < IMAGE_PATIENCE:
            retry_at = now + policies.ATTEMPT_PAUSES[1] * jitter
            fields = {**told, "unreachable_since": since, "retry_at": retry_at, "waits": Waiting.ATTEMPT_PAUSE}
            return Verdict(fields, give_back=attempted, due_at=retry_at)
    return _after_failed_attempt(row, told, now=now, jitter=jitter)


def _after_failed_attempt(row: Row, told: dict[str, Any], *, now: datetime, jitter: float) -> Verdict:
    """L-C4: the attempt is used up; the last one leaves the VM failed and resting."""
    if row.status.create_attempts >= row.max_create_attempts:
        return Verdict({**told, **_RESTING, **_USED}, rests=True)
    retry_at = now + policies.pause_after_attempt(row.status.create_attempts) * jitter
    fields = {**told, **_USED, "phase": Phase.CREATING, "retry_at": retry_at, "waits": Waiting.ATTEMPT_PAUSE}
    return Verdict(fields, due_at=retry_at)


def _after_failed_step(row: Row, told: dict[str, Any], *, now: datetime, jitter: float) -> Verdict:
    """L-V5: shown, and tried again with growing pauses, for ever."""
    failures = row.status.failures + 1
    retry_at = now + policies.pause_after_failure(failures) * jitter
    phase = row.status.phase if row.desired.deleted else Phase.FAILED
    fields = {**told, "phase": phase, "failures": failures, "retry_at": retry_at, "waits": Waiting.STEP_PAUSE}
    return Verdict(fields, ends=False, due_at=retry_at)
