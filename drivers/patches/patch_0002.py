"""To format 2: a VM's record may hold fields that release 0.1 does not know, and DHCP's process file has a number.

The new fields have defaults, so a file of format 1 only takes the number: what it lacks is what it always meant. But a
process without a moment from which on it ran is that of a boot that failed, whose end is nobody's: one that was let go
before that moment was kept has run for long, as far as anybody can tell (L-V4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LONG_AGO = "2000-01-01T00:00:00Z"


def _keep(document: dict[str, Any]) -> dict[str, Any]:
    return document


def _date_process(document: dict[str, Any]) -> dict[str, Any]:
    if document.get("process") is None:
        return document
    return {**document, "started_at": _LONG_AGO}


PATCHES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "config": _keep,
    "status": _date_process,
    "dhcp": _keep,
    "volume": _keep,
    "sets": _keep,
}
