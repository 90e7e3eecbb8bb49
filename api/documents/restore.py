"""What a restore has to settle, as the API shows it."""

from __future__ import annotations

from datetime import datetime

from api.documents.base import Shown
from model.restore import Choice, Kind
from model.vm import PowerState


class UnheardHost(Shown):
    """A host that has not told all that it holds since the database was found to be older."""

    name: str
    last_report_at: datetime | None


class RestoreItem(Shown):
    """A VM that a person settles. `kind`: `unknown` to every row, `missing` on its host, or `changed` since.

    `choices` are those that it has, `choice` the one that was made. `power_state` is what its host sees.
    """

    vm_id: str
    host_id: str
    host_name: str
    project: str | None
    name: str | None
    kind: Kind
    differs: list[str]
    power_state: PowerState | None
    placed_on: str | None
    choices: list[Choice]
    choice: Choice | None


class RestoreDocument(Shown):
    """How far the restore of the fleet's database is. `behind`: it stands still until everything is settled."""

    behind: bool
    since: datetime | None
    why: str | None
    epoch: int
    unheard: list[UnheardHost]
    items: list[RestoreItem]
