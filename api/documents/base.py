"""What every answer of the API is made of: problems, pages, operations, the names of things."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from store.operation import OperationKind, OperationResult

Item = TypeVar("Item")


class Shown(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True)


class FieldProblem(Shown):
    """One bad field: of the body by its JSON pointer, or a parameter by its place and name."""

    pointer: str | None = None
    parameter: str | None = None
    detail: str


class Problem(Shown):
    """An error (RFC 9457). `detail` is the sentence that a person acts on."""

    type: str
    title: str
    status: int
    detail: str
    retryable: bool
    errors: list[FieldProblem] | None = None


class Page(Shown, Generic[Item]):
    """A page of a list; `next_cursor` is null on the last one."""

    items: list[Item]
    next_cursor: str | None


class Health(Shown):
    """How the API is."""

    status: str


class OperationDocument(Shown):
    """What was asked of a VM. `attempts` counts the passes that worked on it; `result` is null while it is open."""

    id: str
    vm_id: str
    project: str
    kind: OperationKind
    generation: int
    workflow_id: str
    run_id: str | None
    attempts: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    result: OperationResult | None
    error: str | None
    link: str | None


class HostName(Shown):
    """Where a VM lives."""

    id: str
    name: str


class VmName(Shown):
    """Which VM has a volume."""

    id: str
    name: str


ConditionName = Literal[
    "behind",
    "temporal_away",
    "work_late",
    "host_silent",
    "vm_failed",
    "vm_unreadable",
    "state_lost",
    "rolled_back",
    "rows_missing",
    "sync_fenced",
    "misplaced",
    "sync_failed",
    "host_floored",
    "clock_off",
    "memory_short",
    "disk_short",
    "revoked",
    "unmanaged",
    "credential_ends",
    "token_ends",
    "vm_ends_again",
    "vm_overdue",
    "vm_soon_destroyed",
    "frozen",
]
"""Every condition there is: each has its severity, its metric and its alert."""


class Condition(Shown):
    """What is wrong with an object, and what a person can do. `condition` is one of the fixed words."""

    condition: ConditionName
    what: str
    advice: str


class Taken(Shown):
    """Whether anybody still waited for an answer."""

    taken: bool
