"""Drains and rolling restarts as the API shows them."""

from __future__ import annotations

from datetime import datetime

from api.documents.base import Shown


class FailedVm(Shown):
    """A VM of a campaign for which it could not be done, and why."""

    vm_id: str
    name: str
    why: str


class CampaignDocument(Shown):
    """An operation over many VMs, and how far it is: `done` of `total`.

    `creating`: their create is in flight and finishes first. `todo`: not begun. `working`: begun. `left`: nothing is to
    be done for them. `failed` is their number, `failures` the first of them. A drain whose state is `done` is in force
    until it is undone. `link` shows its runs in the Temporal UI.
    """

    id: str
    kind: str
    state: str
    policy: str | None
    host_id: str | None
    selector: dict[str, str] | None
    batch_size: int
    most_failures: int | None
    total: int
    creating: int
    todo: int
    working: int
    done: int
    left: int
    failed: int
    failures: list[FailedVm]
    made_by: str
    paused_by: str | None
    created_at: datetime
    ended_at: datetime | None
    workflow_id: str
    link: str | None
