"""The trees of two releases: the first one that was recorded, and this one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FIRST_COMMIT = "b8427ad"


@dataclass(frozen=True)
class Release:
    """A tree of Hostler's code and the version that it calls itself. Both run with this environment's packages."""

    root: Path
    version: str

    def module(self, name: str, *words: str) -> list[str]:
        """Return the command that becomes one of its processes."""
        return [sys.executable, "-P", "-m", name, *words]


def find_first_commit() -> str | None:
    """Return why the first release's tree cannot be had, or None."""
    found = _git("cat-file", "-e", f"{FIRST_COMMIT}^{{commit}}")
    if found.returncode:
        return f"the first release's commit {FIRST_COMMIT} is not in this clone: fetch the whole history"
    wanted = _pins(_git("show", f"{FIRST_COMMIT}:requirements.lock").stdout.decode())
    others = wanted - _pins((PROJECT / "requirements.lock").read_text())
    if others:
        return f"the first release wants other packages than this environment has: {', '.join(sorted(others))}"
    return None


def unpack_first(folder: Path) -> Release:
    """Write the first release's tree, readable to every user that a process of it runs as."""
    archive = subprocess.run(["git", "archive", FIRST_COMMIT], cwd=PROJECT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "--no-same-owner", "-C", folder], input=archive, check=True)
    return Release(folder, read_version(folder))


def this_release() -> Release:
    return Release(PROJECT, read_version(PROJECT))


def read_version(root: Path) -> str:
    """Read what a tree calls itself; its modules are not imported, since ours have their names."""
    text = (root / "model" / "versions.py").read_text()
    return text.partition('VERSION = "')[2].partition('"')[0]


def _pins(lock: str) -> set[str]:
    """Return the packages of a lock file, each with its version."""
    return {line.split()[0] for line in lock.splitlines() if "==" in line and line[0].isalnum()}


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=PROJECT, capture_output=True)
