"""Faults planted into a copy of the product: the run must find each, or it finds nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "planted"
_HEAD = re.compile(r"(Plants|Found): (\S.*)")
_NOT_CODE = (".*", "__pycache__", "evidence", "histories", "*.png")


@dataclass(frozen=True)
class Planted:
    """One patch. plants: what is broken with it. found: a part of the violation that tells it."""

    path: Path
    plants: str
    found: str

    @property
    def name(self) -> str:
        return self.path.stem

    def copy_code(self, folder: Path) -> Path:
        """Make a copy of the product and its tests with the fault in it."""
        copy = folder / "code"
        shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns(*_NOT_CODE))
        subprocess.run(["git", "apply", str(self.path)], cwd=copy, check=True, capture_output=True)
        return copy


def all_planted() -> tuple[Planted, ...]:
    """Read every patch."""
    return tuple(_read(path) for path in sorted(FOLDER.glob("*.patch")))


def _read(path: Path) -> Planted:
    head = dict(match.groups() for line in path.read_text().splitlines() if (match := _HEAD.fullmatch(line)))
    return Planted(path, head["Plants"], head["Found"])
