"""Why nothing more is done for a VM now: what is waited for, since when, until when, what was tried, what to do.

Everything comes from the row; what its pass says it is doing is `status_detail` (L-G10, H-S10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from model.capacity import without_host
from model.text import clean_text
from model.waiting import Waiting
from store.vm import StoredVm

_OVERLOOKED = timedelta(minutes=1)
CONTROL_PLANE = "control_plane"
WORK = "work"


@dataclass(frozen=True)
class Why:
    """One VM's answer. `waits_for` is a word of `Waiting`, `work` while a pass works, or `control_plane`."""

    waits_for: str
    what: str
    advice: str
    since: datetime | None = None
    until: datetime | None = None
    tried: str | None = None
    overdue_since: datetime | None = None

    @property
    def sentence(self) -> str:
        """Say all of it, as `hostler vm why` prints it."""
        times = "".join(
            f", {word} {at:%Y-%m-%dT%H:%M:%SZ}" for word, at in (("since", self.since), ("until", self.until)) if at
        )
        late = f"It is overdue since {self.overdue_since:%Y-%m-%dT%H:%M:%SZ}." if self.overdue_since else None
        tried = f"Tried: {self.tried}." if self.tried else None
        return " ".join(part for part in (f"It {self.what}{times}.", late, tried, self.advice) if part)


@dataclass(frozen=True)
class _Told:
    """What is said of one waiting state; `{name}` and `{host}` are filled in. `until` names the row's deadline."""

    what: str
    advice: str
    until: Callable[[StoredVm], datetime | None] = lambda _: None


def _retry_at(vm: StoredVm) -> datetime | None:
    return vm.retry_at


def _up_again_at(vm: StoredVm) -> datetime | None:
    return vm.up_again_at


def _due_at(vm: StoredVm) -> datetime | None:
    return vm.due_at


def _destroy_at(vm: StoredVm) -> datetime | None:
    return vm.quarantine.destroy_at if vm.quarantine else None


_AGAIN = "It goes on by itself; `hostler vm retry {name}` tries at once."
_TOLD: dict[Waiting, _Told] = {
    Waiting.HOLD: _Told(
        "waits for the end of what holds it ({held_by})",
        "It goes on by itself then; a delete is accepted now and done afterwards.",
    ),
    Waiting.ATTEMPT_PAUSE: _Told("pauses before the next attempt to create it", _AGAIN, _retry_at),
    Waiting.CREATE_RESTS: _Told(
        "rests, since trying again does not cure the error",
        "Correct what the error names (`hostler vm resize {name}`, its keys, its image), or have it tried again by "
        "`hostler vm retry {name}`; `hostler vm rm {name}` gives it up.",
    ),
    Waiting.REFUSED: _Told(
        "waits for room: {host} has not enough under the limits that its operator set",
        "It is tried again by itself, the oldest first, when the host releases something or its limits rise; "
        "`hostler vm resize {name}` asks for less, `hostler vm rm {name}` gives it up.",
    ),
    Waiting.STEP_PAUSE: _Told("pauses before the next try", _AGAIN, _retry_at),
    Waiting.GUEST_ENDED: _Told(
        "pauses before its guest, which ended by itself, is booted again",
        "`hostler vm console {name}` may tell why; it goes on by itself, `hostler vm retry {name}` boots it at once.",
        _up_again_at,
    ),
    Waiting.GUEST_POWEROFF: _Told(
        "waits for {host} to report that the guest turned itself off, which stops the VM",
        "Nothing is needed; `hostler vm restart {name}` boots it instead.",
    ),
    Waiting.GUEST_STALLED: _Told(
        "waits, since the hypervisor paused its guest",
        "Correct what the error names, as by making room on {host}; then it goes on by itself. "
        "`hostler vm restart {name}` gives up what the guest was doing.",
    ),
    Waiting.GUEST_UNSTEADY: _Told(
        "runs again, and counts as failed until its guest has run for ten minutes",
        "`hostler vm console {name}` may tell why it ended; `hostler vm retry {name}` counts it as well at once.",
        _due_at,
    ),
    Waiting.SILENT_GUEST: _Told(
        "waits for the guest's process, which lives but does not answer",
        "`hostler vm console {name}` may tell more; `hostler vm restart {name}` or `hostler vm stop {name}` ends it.",
    ),
    Waiting.UNREADABLE_RECORD: _Told(
        "waits for its record on {host} to be readable",
        "Restore the file that the error names and start the host's worker again, or give the VM up: "
        "`hostler vm rm {name}` still works.",
    ),
    Waiting.LOST_RECORD: _Told(
        "waits for a decision: {host} has no record of it any more",
        "Bring the host's state directory back, have everything made anew (`hostler vm rebuild {name}`), or give the "
        "VM up with `hostler vm rm {name}`.",
    ),
    Waiting.CORRUPT_COUNTERS: _Told(
        "is refused, since its record on {host} and its row contradict each other",
        "Nothing of it is started or stopped. Have an operator find out which of the two is older, and bring the newer "
        "one of both back; or give the VM up: `hostler vm rm {name}` still works.",
    ),
    Waiting.REFUSED_CHANGE: _Told(
        "does without what {host} cannot give it, and keeps what it has",
        "Ask for what the host has (`hostler vm resize {name}`); after its host's next boot it is tried again.",
    ),
    Waiting.BEHIND: _Told(
        "waits, since the fleet's database may be older than what {host} was ordered last, and nothing is booted, "
        "stopped or destroyed meanwhile",
        "Operators see by `hostler restore` what has to be settled; where that is nothing, it goes on by itself once "
        "{host} has reported.",
    ),
    Waiting.FROZEN: _Told(
        "waits for the fleet to be unfrozen: until then nothing is destroyed",
        "`hostler vm undelete {name}` brings it back meanwhile.",
    ),
    Waiting.GRACE: _Told(
        "is stopped and kept, waiting out its grace",
        "`hostler vm undelete {name}` brings it back until then; `hostler vm rm --now {name}` destroys it at once.",
        _destroy_at,
    ),
    Waiting.REMAINS: _Told(
        "is destroyed, but {host} still finds something of it",
        "It is looked for again every 15 seconds; the log of the host's worker names what is left.",
    ),
    Waiting.HOST_AWAY: _Told(
        "waits for {host} to report and take up work",
        "`hostler host ls` shows the host; once its worker runs and reaches the API it goes on by itself.",
    ),
    Waiting.HOST_OUTDATED: _Told(
        "waits for the worker of {host} to be upgraded: it does not know what is to be done next",
        "Upgrade Hostler there; it goes on by itself then.",
    ),
    Waiting.HOST_BELOW_FLOOR: _Told(
        "waits for the worker of {host} to be upgraded: it is older than the fleet allows",
        "Upgrade Hostler there; it goes on by itself then.",
    ),
    Waiting.HOST_BUSY: _Told("waits for {host}, which could not begin the step", _AGAIN, _retry_at),
    Waiting.HOST_CERTIFICATE: _Told(
        "waits for its host certificate",
        "It goes on once the API has signed it; the log of the API says what keeps it, such as a missing key of the "
        "SSH CA.",
    ),
    Waiting.HOST_DISK: _Told(
        "waits for room on {host}, where no VM is made while the disk is so full",
        "Make room there, or delete VMs; it goes on by itself then.",
    ),
    Waiting.HOST_QUEUE: _Told("keeps its place in a queue of {host}", "Nothing is needed: its turn comes by itself."),
}


# A VM that lost its row waits as one that was deleted does, but nobody asked for its end (L-R1).
_VANISHED = _Told(
    "had lost its row, so it is stopped and kept, by a row that was made from the record of {host}",
    "{back} brings it back until then; `hostler vm rm {name}` has it end as a deleted one does.",
    _destroy_at,
)


def why(vm: StoredVm, *, project: str | None) -> Why | None:
    """Say why nothing more is done for a VM; None when everything wanted is there."""
    told = _find(vm)
    if told is None:
        return None
    host = "its host" if project is not None else f"its host {vm.host_name}"
    names = {"name": vm.name, "host": host, "held_by": vm.held_by or "another operation", "back": _bring_back(vm)}
    word, said, since = told
    return Why(
        waits_for=word,
        what=said.what.format(**names),
        advice=said.advice.format(**names),
        since=since,
        until=said.until(vm),
        tried=_tried(vm, project=project),
        overdue_since=vm.expected_by if vm.overdue else None,
    )


def _bring_back(vm: StoredVm) -> str:
    """Say what brings a VM back that vanished: an operator who confirms whose it is, or anybody who may undelete it."""
    if vm.told_project is None:
        return f"`hostler vm undelete {vm.name}`"
    return f"`hostler host adopt {vm.host_name} {vm.id} --project {vm.told_project}`"


def _find(vm: StoredVm) -> tuple[str, _Told, datetime | None] | None:
    """Find the state: what only the API can see comes before what the last pass has said."""
    if vm.below_floor is not None:
        return Waiting.HOST_BELOW_FLOOR, _TOLD[Waiting.HOST_BELOW_FLOOR], vm.waiting_since
    if vm.settled and vm.waiting_for is None:
        return None
    if vm.host_silent and not (vm.settled and vm.quarantine is None):
        return Waiting.HOST_AWAY, _TOLD[Waiting.HOST_AWAY], vm.host_last_report_at
    if vm.held:
        return Waiting.HOLD, _TOLD[Waiting.HOLD], vm.waiting_since
    if vm.due_at is not None and vm.due_at < vm.now - _OVERLOOKED:
        return CONTROL_PLANE, _NOT_TAKEN_UP, vm.due_at
    if vm.waiting_for in _TOLD and (vm.due_at is None or vm.due_at > vm.now):
        word = Waiting(vm.waiting_for)
        vanished = word is Waiting.GRACE and vm.quarantine is not None and vm.quarantine.kind == "vanished"
        return word, _VANISHED if vanished else _TOLD[word], vm.waiting_since
    doing = clean_text(vm.status_detail) if vm.status_detail else "its pass begins"
    return WORK, _Told(f"is being worked on: {_literally(doing)}", "Nothing is needed."), None


_NOT_TAKEN_UP = _Told(
    "is due and nobody took it up",
    "`hostler status` shows whether control worker and Temporal run; with both it goes on by itself.",
)


def _tried(vm: StoredVm, *, project: str | None) -> str | None:
    """Say how often it was tried, and how that ended."""
    error = vm.below_floor or error_for(vm.last_error or vm.unreadable, project)
    told: list[str] = []
    if vm.first_ready_at is None and vm.create_attempts:
        told.append(f"{vm.create_attempts} of its attempts are used")
    elif vm.failures:
        told.append(f"{vm.failures} {'try' if vm.failures == 1 else 'tries'} in a row failed")
    if vm.setbacks:
        times = "once" if vm.setbacks == 1 else f"{vm.setbacks} times in a row"
        told.append(f"its guest ended or stood still by itself {times}")
    if error:
        told.append(f"the last error is: {clean_text(error)}")
    return "; ".join(told) or None


def error_for(error: str | None, project: str | None) -> str | None:
    """Return an error as its reader may see it: a project reads nothing of the host's own (S-32)."""
    return without_host(error) if error is not None and project is not None else error


def _literally(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
