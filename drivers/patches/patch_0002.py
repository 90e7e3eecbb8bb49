"""To format 2: a VM's record may hold fields that release 0.1 does not know, and DHCP's process file has a number.

The new fields have defaults, so a file of format 1 only takes the number: what it lacks is what it always meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _keep(document: dict[str, Any]) -> dict[str, Any]:
    return document


PATCHES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"config": _keep, "status": _keep, "dhcp": _keep}
