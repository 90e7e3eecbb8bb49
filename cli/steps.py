"""How far a VM's work is, read from the row and its narration."""

from __future__ import annotations

from dataclasses import dataclass

from cli.document import Document
from cli.output import clock
from model.step import WORDS, StepKind

CREATE = (
    StepKind.PREPARE,
    StepKind.FETCH_IMAGE,
    StepKind.MAKE_DISK,
    StepKind.WRITE_SEED,
    StepKind.BOOT,
    StepKind.COMPLETE,
)
CREATE_WITH_VOLUMES = (*CREATE[:4], StepKind.ENSURE_VOLUME, *CREATE[4:])
REBUILD = (
    StepKind.STOP,
    StepKind.SET_ASIDE,
    StepKind.FETCH_IMAGE,
    StepKind.MAKE_DISK,
    StepKind.WRITE_SEED,
    StepKind.COMPLETE,
    StepKind.BOOT,
)
DESTROY = (
    StepKind.QUARANTINE,
    StepKind.DESTROY_PROCESS,
    StepKind.DESTROY_NETWORK,
    StepKind.DESTROY_STORAGE,
    StepKind.DESTROY_RECORDS,
    StepKind.RECORD_GONE,
)


@dataclass(frozen=True)
class Stand:
    """Where the work stands: steps done of all, the fixed words of the present step, and what it says itself."""

    done: int
    words: str
    detail: str

    @property
    def text(self) -> str:
        return f"{self.words}: {self.detail}" if self.words and self.detail else self.words or self.detail


class Steps:
    """Follow one way through known steps.

    While a host works, the narration is its own ("120 of 300 MiB"), so the step is the last one that was named.
    """

    def __init__(self, steps: tuple[StepKind, ...]) -> None:
        self.steps = steps
        self._at = 0
        self._words = ""

    def see(self, vm: Document) -> Stand:
        """Take a row and return where the work stands."""
        if vm.get("settled"):
            return Stand(len(self.steps), "", str(vm.get("phase") or ""))
        narration = str(vm.get("status_detail") or "")
        named = next((kind for kind, words in WORDS.items() if _names(narration, words)), None)
        if named is not None:
            self._at = self.steps.index(named) if named in self.steps else self._at
            self._words = WORDS[named]
            narration = narration.removeprefix(self._words).removeprefix(":").strip()
        elif not narration and vm.get("last_error") and vm.get("due_at") and self.steps != DESTROY:
            # Nothing goes on until the next attempt: whoever waits must see why.
            self._words = ""
            return Stand(self._at, "", f"{vm['last_error']}; tried again {clock(vm['due_at'])}")
        return Stand(self._at, self._words, narration)


def _names(narration: str, words: str) -> bool:
    return narration == words or narration.startswith(f"{words}:")
