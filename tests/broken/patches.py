"""The patches of this folder: each breaks one rule in a line or two, and names the tests that must notice.

A patch is a unified diff after a head of lines `Key: value`:

    Guarantee: what holds, as a user would say it
    Survives: the failures under which it holds
    Breaks: what is lost with the patch
    Test: a node id of pytest; a line for each
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
KEYS = ("Guarantee", "Survives", "Breaks")
_HEAD = re.compile(r"(Guarantee|Survives|Breaks|Test): (\S.*)")


@dataclass(frozen=True)
class Breakage:
    """One patch. `rule` is its file's name, `L-G3`; of two patches for one rule the second is `L-G3.2`."""

    name: str
    guarantee: str
    survives: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def rule(self) -> str:
        return self.name.partition(".")[0]

    @property
    def path(self) -> Path:
        return HERE / f"{self.name}.patch"


def read_breakage(path: Path) -> Breakage:
    """Read a patch's head. Raises ValueError that says which line is missing."""
    head = path.read_text().partition("\n--- ")[0]
    found: dict[str, list[str]] = {}
    for line in head.splitlines():
        match = _HEAD.fullmatch(line)
        if match:
            found.setdefault(match[1], []).append(match[2])
    for key in (*KEYS, "Test"):
        if key not in found:
            raise ValueError(f"{path.name} has no line '{key}: …' above its diff")
    return Breakage(
        name=path.stem,
        guarantee=" ".join(found["Guarantee"]),
        survives=" ".join(found["Survives"]),
        breaks=" ".join(found["Breaks"]),
        tests=tuple(found["Test"]),
    )


def all_breakages() -> tuple[Breakage, ...]:
    """Read every patch, in the order of the rules."""
    return tuple(read_breakage(path) for path in sorted(HERE.glob("*.patch"), key=_order))


def _order(path: Path) -> list[tuple[str, int]]:
    return [(letters, int(digits or 0)) for letters, digits in re.findall(r"([A-Za-z-]+)(\d*)", path.stem)]
