"""What is wrong in a fleet, as the API shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from api.documents.base import Condition

Severity = Literal["critical", "warning", "notice"]


class FleetCondition(Condition):
    """What is wrong, with what: `object` is `fleet`, `host/ID`, `vm/ID` or `token/ID`.

    `meanwhile` says what Hostler does about it, `advice` what a person can do.
    """

    severity: Severity
    object: str
    name: str | None
    since: datetime | None
    meanwhile: str
