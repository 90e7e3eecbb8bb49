"""What a pass asks of the store. Each request states whole new values under (pass, step), so that it may run twice."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from model.base import Lenient
from model.record import Setback, View
from model.row import Row
from model.vm import Phase
from model.waiting import Waiting

PassType = Literal["CreateVm", "ConvergeVm", "ReapVm"]
PassResult = Literal["settled", "waiting", "failed", "superseded", "gone"]


class PassStart(Lenient):
    """The argument of a pass: it carries nothing but the id, since a pass reads everything itself."""

    vm_id: str


class ClaimRequest(Lenient):
    """Take ownership of a row. The same run id gets the pass that it drew before."""

    vm_id: str
    run_id: str


class PassRef(Lenient):
    """Name the row and the pass that writes."""

    vm_id: str
    pass_number: int


class GiveBack(PassRef):
    """Return the attempt that this pass took; `counted` when it is one of the bounded refunds of L-C5.

    `step`: the one that it ended in; `host_died`: since its host went silent, or its worker died.
    """

    counted: bool = False
    step: str | None = None
    host_died: bool = False


class TakeOver(PassRef):
    """Raise the row's counters to those of a record that was written under an earlier epoch, `epoch` (L-N5)."""

    epoch: int
    generation: int
    spec_generation: int
    restart_generation: int
    rebuild_generation: int


class StepNote(PassRef):
    """Narrate the step that begins, in fixed words (L-G10), and read the row again."""

    step: int
    phase: Phase
    words: str | None


class Count(Lenient):
    """The guest's setbacks as they are from now on; written only where there still are `before` (None: unknown)."""

    before: int | None
    setbacks: int
    setback: Setback | None
    up_again_at: datetime | None = None


class Outcome(PassRef):
    """State what a pass found. None leaves a field as it is, but for `error`, which is written when `write_error`,
    and `waits`, which says what the VM waits for until the next step begins.

    `view` is the host's own answer; its observed part is stored under the guard of host instance and revision.
    `attempt_used`: the attempt has come to its own end, and is not given back any more (L-C4).
    """

    step: int
    phase: Phase
    words: str | None = None
    waits: Waiting | None = None
    write_error: bool = False
    error: str | None = None
    failures: int | None = None
    retry_at: datetime | None = None
    resting: bool | None = None
    unreachable_since: datetime | None = None
    observed_generation: int | None = None
    completed: bool = False
    attempt_used: bool = False
    count: Count | None = None
    view: View | None = None


class Finish(PassRef):
    """End a pass: write the next `due_at` only if nobody woke the row since `wake` was read."""

    wake: int
    due_at: datetime | None
    result: PassResult


class Finished(Lenient):
    """`ended` is false when the row was woken meanwhile, or when the pass is not its owner any more."""

    ended: bool
    row: Row | None = None
