"""What every VM must be, from the API's accepted answers alone. Nothing of the product is used to know it.

What was asked and refused did not happen. What was accepted did. Of what got no answer nobody knows: it may have
happened, or may yet, until so long after that it cannot any more. What two users asked at once may have come to pass
in either order. So the model knows of each property a set of values, and most of the time that set has one member.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["open", "accepted", "refused", "lost"]
LATE_SECONDS = 45.0
"""After so long an unanswered request that reached the API has happened, or never will."""

FAILING_SETBACKS = 5

LIFE = ("create", "delete", "undelete")
REMAKING = ("rebuild", "undo")
PROPERTIES = ("power_state", "cpu_millicores", "memory_mib", "disk_gib", "metadata", "termination_protection")


@dataclass
class Ask:
    """One request. sets: the properties that it makes wanted. grace: of a delete, in seconds.

    destroy_at: the earliest destruction that the answer named, in seconds since 1970.
    """

    vm_id: str
    verb: str
    sets: dict[str, Any] = field(default_factory=dict)
    grace: float = 0.0
    sent: float = field(default_factory=time.monotonic)
    sent_at: float = field(default_factory=time.time)
    over: float = math.inf
    outcome: Outcome = "open"
    destroy_at: float | None = None
    hypervisor: str = ""
    generation: int | None = None
    """That of the change's own operation, None where nothing had to change."""

    def end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.over = time.monotonic() + (LATE_SECONDS if outcome == "lost" else 0)

    @property
    def may_have_happened(self) -> bool:
        return self.outcome != "refused"

    @property
    def earliest_end(self) -> float:
        """When a delete may destroy, in seconds since 1970."""
        return self.destroy_at if self.destroy_at is not None else self.sent_at + self.grace

    @property
    def may_start(self) -> bool:
        """Whether a guest may run because of it."""
        wanted = self.sets.get("power_state")
        return self.may_have_happened and (wanted in ("running", "paused") or self.verb == "undelete")


@dataclass
class ModelVm:
    """What is known of one VM."""

    vm_id: str
    hypervisor: str = ""
    asks: list[Ask] = field(default_factory=list)
    was_ready: bool = False
    rests_since: float | None = None
    """It was seen stopped, as wanted, and nothing was asked since that could start it."""
    told_gone: bool = False
    """The API has said that it is gone: users leave it alone. Whether it may be is judged by the list."""
    may_be_remade: bool = False
    """A rebuild was asked for, and it was not seen since that nothing is left to do."""
    setbacks: int | None = 0
    """How often a fault has ended or paused its guest; None where other things may, too."""
    generation_seen: int = 0
    disk_seen: int = 0

    def candidates(self, verb_or_property: str) -> list[Ask]:
        """Return the asks of which one is the last that counted, for a property or for `life`."""
        touching = [ask for ask in self.asks if ask.may_have_happened and _touches(ask, verb_or_property)]
        sure = max((ask.sent for ask in touching if ask.outcome == "accepted"), default=-math.inf)
        return [ask for ask in touching if ask.over >= sure]

    def possible(self, name: str) -> list[Any]:
        """Return the values that a property may be wanted to have."""
        found: list[Any] = []
        for ask in self.candidates(name):
            if ask.sets[name] not in found:
                found.append(ask.sets[name])
        return found

    @property
    def exists_surely(self) -> bool:
        """Whether its create was accepted."""
        return any(ask.verb == "create" and ask.outcome == "accepted" for ask in self.asks)

    def may_be_deleted(self) -> bool:
        return any(ask.verb == "delete" for ask in self.candidates("life"))

    def may_be_kept(self) -> bool:
        return any(ask.verb != "delete" for ask in self.candidates("life"))

    def may_be_destroyed(self, now: float) -> bool:
        """Whether some delete that may count has reached the end of its grace, `now` in seconds since 1970.

        A later delete may have shortened the grace of an earlier one, or prolonged it: any that may count will do.
        """
        return any(ask.verb == "delete" and ask.earliest_end <= now for ask in self.candidates("life"))

    def must_be_gone(self, now: float) -> bool:
        """Whether every possible story has it destroyed by now."""
        asks = self.candidates("life")
        return bool(asks) and all(ask.verb == "delete" and ask.earliest_end <= now for ask in asks)

    def may_run(self) -> bool:
        """Whether running or paused may be wanted of it."""
        return self.may_be_kept() and any(value != "stopped" for value in self.possible("power_state"))

    def counts(self, *verbs: str) -> tuple[int, int]:
        """Return how many requests of these kinds were accepted, at least and at most."""
        asks = [ask for ask in self.asks if ask.verb in verbs and ask.may_have_happened]
        return sum(ask.outcome == "accepted" for ask in asks), len(asks)

    def generations(self) -> tuple[int, int]:
        """Return the lowest and the highest generation that it may have."""
        lowest = max((ask.generation for ask in self.asks if ask.generation is not None), default=1)
        highest = 1 + sum(ask.may_have_happened and ask.verb not in ("create", "restart", "retry") for ask in self.asks)
        return lowest, max(lowest, highest)


def _touches(ask: Ask, what: str) -> bool:
    return ask.verb in LIFE if what == "life" else what in ask.sets


class Model:
    """All VMs of a run, and what reads of them prove wrong."""

    def __init__(self) -> None:
        self.vms: dict[str, ModelVm] = {}
        self.answers: Counter[str] = Counter()
        """By their status, and by what there was instead of an answer."""

    def ask(self, ask: Ask) -> Ask:
        """Note a request before it is sent."""
        # What else may befall a real guest, no fault knows.
        setbacks = None if ask.hypervisor == "qemu" else 0
        vm = self.vms.setdefault(ask.vm_id, ModelVm(ask.vm_id, ask.hypervisor, setbacks=setbacks))
        vm.asks.append(ask)
        if ask.may_start:
            vm.rests_since = None
        if ask.verb in REMAKING:
            vm.may_be_remade = True
        return ask

    def answer(self, ask: Ask, document: dict[str, Any]) -> None:
        """Note an accepted answer."""
        operation = document.get("operation")
        if operation is not None:
            ask.generation = operation["generation"]
        ask.end("accepted")

    def read(self, document: dict[str, Any], sent: float) -> list[str]:
        """Take over a VM's document that was asked for at `sent`; return what must not be."""
        vm = self.vms.get(document["id"])
        if vm is None:
            return ["a VM that nobody made is in the list"]
        wrong: list[str] = []
        before = [ask for ask in vm.asks if ask.outcome == "accepted" and ask.over < sent]
        lowest = max((ask.generation for ask in before if ask.generation is not None), default=0)
        if document["generation"] < lowest:
            wrong.append(f"its generation is {document['generation']}, and change {lowest} was accepted before")
        if document["observed_generation"] > document["generation"]:
            wrong.append("it has applied a generation that nobody asked for")
        wrong += _misjudged_guest(vm, document)
        if (document["disk_gib"] or 0) < vm.disk_seen:
            wrong.append(f"its disk shrank from {vm.disk_seen} to {document['disk_gib']} GiB")
        vm.disk_seen = max(vm.disk_seen, document["disk_gib"] or 0)
        vm.was_ready = vm.was_ready or document["first_ready_at"] is not None
        if _rests(document) and not any(ask.may_start and ask.over > sent for ask in vm.asks):
            vm.rests_since = time.monotonic()
        if _is_done(document) and not any(ask.verb in REMAKING and ask.over > sent for ask in vm.asks):
            vm.may_be_remade = False
        return wrong


def _is_done(document: dict[str, Any]) -> bool:
    """Tell whether the answer says that everything that was asked for has been applied."""
    applied = document["observed_generation"] == document["generation"]
    return document["settled"] and document["quarantine"] is None and applied


def _misjudged_guest(vm: ModelVm, document: dict[str, Any]) -> list[str]:
    """Say where more is counted than befell the guest, or where it failed so often and that is not shown (L-V4)."""
    counted = document["setbacks"]
    if vm.setbacks is not None and counted > vm.setbacks:
        return [f"{counted} setbacks of its guest are counted, and {vm.setbacks} were caused"]
    is_shown_well = document["phase"] == "ready" and document["settled"] and document["power_state"] == "running"
    if counted >= FAILING_SETBACKS and is_shown_well:
        return [f"its guest has failed {counted} times in a row, and it is shown as ready"]
    return []


def _rests(document: dict[str, Any]) -> bool:
    """Tell whether the answer says that its guest is stopped, as it should be, and nothing is left to do."""
    if not document["settled"] or document["power_state"] != "stopped":
        return False
    if document["quarantine"] is not None:
        return True
    applied = document["observed_generation"] == document["generation"]
    return applied and document["desired_power_state"] == "stopped"
