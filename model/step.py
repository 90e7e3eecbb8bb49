"""The steps that a VM's life is made of, and the fixed words that narrate them (L-G10, S-8)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import model_validator

from model.base import Frozen
from model.waiting import Waiting


class StepKind(StrEnum):
    """What a pass may do next, in three groups: nothing, a write to the row, work on the host."""

    SETTLED = "settled"
    REST = "rest"
    WAIT = "wait"
    GRACE = "grace"

    TAKE_ATTEMPT = "take_attempt"
    COUNT_SETBACK = "count_setback"
    NOTE_STOPPED = "note_stopped"
    MARK_DESTROYING = "mark_destroying"
    RECORD_GONE = "record_gone"
    TAKE_OVER = "take_over"

    CERTIFY = "certify"
    PREPARE = "prepare"
    FETCH_IMAGE = "fetch_image"
    MAKE_DISK = "make_disk"
    WRITE_SEED = "write_seed"
    ENSURE_VOLUME = "ensure_volume"
    DETACH_VOLUME = "detach_volume"
    SET_NETWORK = "set_network"
    BOOT = "boot"
    COMPLETE = "complete"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    RECORD_STOP = "record_stop"
    NOTE_RESTART = "note_restart"
    GROW_DISK = "grow_disk"
    SET_ASIDE = "set_aside"
    DROP_KEPT = "drop_kept"
    APPLY = "apply"
    QUARANTINE = "quarantine"
    RELEASE = "release"
    DESTROY_PROCESS = "destroy_process"
    DESTROY_NETWORK = "destroy_network"
    DESTROY_STORAGE = "destroy_storage"
    DESTROY_RECORDS = "destroy_records"


NOTHING_TO_DO = frozenset({StepKind.SETTLED, StepKind.REST, StepKind.WAIT, StepKind.GRACE})
DESTROY_ORDER = (
    StepKind.DESTROY_PROCESS,
    StepKind.DESTROY_NETWORK,
    StepKind.DESTROY_STORAGE,
    StepKind.DESTROY_RECORDS,
)

WORDS: dict[StepKind, str] = {
    StepKind.SETTLED: "nothing left to do",
    StepKind.REST: "resting until something changes or a retry is asked for",
    StepKind.WAIT: "waiting",
    StepKind.GRACE: "waiting out the quarantine",
    StepKind.TAKE_ATTEMPT: "counting the attempt",
    StepKind.COUNT_SETBACK: "counting what befell the guest",
    StepKind.NOTE_STOPPED: "noting that the guest is stopped",
    StepKind.MARK_DESTROYING: "passing the point of no return",
    StepKind.RECORD_GONE: "releasing the row, the name and the address",
    StepKind.TAKE_OVER: "taking over the counters of its host's record",
    StepKind.CERTIFY: "asking for the host certificate",
    StepKind.PREPARE: "preparing the host",
    StepKind.FETCH_IMAGE: "fetching the image",
    StepKind.MAKE_DISK: "making the root disk",
    StepKind.WRITE_SEED: "writing the seed",
    StepKind.ENSURE_VOLUME: "making sure of a volume",
    StepKind.DETACH_VOLUME: "detaching a volume",
    StepKind.SET_NETWORK: "setting the firewall",
    StepKind.BOOT: "starting the guest",
    StepKind.COMPLETE: "recording that every part is made",
    StepKind.PAUSE: "pausing the guest",
    StepKind.RESUME: "resuming the guest",
    StepKind.STOP: "stopping the guest",
    StepKind.RECORD_STOP: "recording that the guest is stopped",
    StepKind.NOTE_RESTART: "noting which process the restart replaces",
    StepKind.GROW_DISK: "growing the root disk",
    StepKind.SET_ASIDE: "putting the root disk aside",
    StepKind.DROP_KEPT: "removing the root disk that was put aside",
    StepKind.APPLY: "recording what was applied",
    StepKind.QUARANTINE: "stopping the guest for its quarantine",
    StepKind.RELEASE: "taking the VM out of quarantine",
    StepKind.DESTROY_PROCESS: "destroying the process",
    StepKind.DESTROY_NETWORK: "destroying the network",
    StepKind.DESTROY_STORAGE: "destroying the storage",
    StepKind.DESTROY_RECORDS: "destroying the records",
}


class Step(Frozen):
    """What to do next and why. `until` is when a wait is over; None waits for something to change.

    A step that does nothing says in `waits` what is waited for. `volume_id`: the one that the step is about.
    """

    kind: StepKind
    reason: str
    until: datetime | None = None
    waits: Waiting | None = None
    volume_id: str | None = None

    @model_validator(mode="after")
    def _waits_for_something(self) -> Self:
        waits = self.kind in NOTHING_TO_DO and self.kind is not StepKind.SETTLED
        if waits is (self.waits is None):
            raise ValueError(f"a step of kind {self.kind} {'needs' if waits else 'has no'} `waits`")
        return self

    @property
    def words(self) -> str:
        """The fixed words shown while the step runs."""
        return WORDS[self.kind]
