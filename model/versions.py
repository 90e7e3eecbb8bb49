"""Compare releases of Hostler as versions: 1.10 is after 1.9 (H-S5)."""

from __future__ import annotations

import re

VERSION = "0.2.0.dev0"
_FIRST = "0.1.0"
_NUMBERS = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)


def parse_version(text: str | None) -> tuple[int, int, int] | None:
    """Return (major, minor, patch), or None for what is unset, `dev` or no release."""
    return None if "dev" in (text or "") else numbers_of(text)


def release_order(text: str) -> tuple[tuple[int, int | str], ...]:
    """Order releases: numbers by value, and what a release is still becoming (`.dev0`, `rc1`) before it.

    What follows a `+` names a build of the release (PEP 440) and is no part of the order.
    """
    parts: list[tuple[int, int | str]] = []
    for number, word in re.findall(r"([0-9]+)|([a-z]+)", text.partition("+")[0].lower()):
        parts.append((2, int(number)) if number else (0, word))
    return (*parts, (1, 0))


def numbers_of(text: str | None) -> tuple[int, int, int] | None:
    """Return (major, minor, patch), also of what a release is still becoming; None for what is no release."""
    match = _NUMBERS.match(text or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def is_newer(worker: str, control: str | None) -> bool:
    """Say whether a host worker is of a newer release than its control plane, builds of one release being alike (H-D4).

    None: a control plane that cannot tell its release, which is the first one's. What is no release is never newer.
    """
    ours, theirs = numbers_of(worker), numbers_of(control or _FIRST)
    return ours is not None and theirs is not None and ours > theirs


def is_below(worker: str | None, floor: str | None) -> bool:
    """Say whether a worker's version lies below the fleet's floor. Unset and dev are below every floor."""
    wanted = parse_version(floor)
    if wanted is None:
        return False
    found = parse_version(worker)
    return found is None or found < wanted


def floor_for(worker: str | None, floor: str | None, control_plane: str = VERSION) -> str | None:
    """Return the floor that holds for a worker; a control plane in development has none for what is no release."""
    return None if parse_version(worker) is None and parse_version(control_plane) is None else floor


def describe_floor(worker: str | None, floor: str | None) -> str:
    """Say why a host worker below the floor does nothing for a VM, and what to do (H-S5)."""
    return f"needs worker {floor} or newer, this host runs {worker or 'an unknown one'}: upgrade it"
