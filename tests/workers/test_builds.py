"""Which build `hostler up` leaves as it is; what it does with real ones is in tests/upgrades."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from model.errors import Conflict
from model.versions import VERSION
from workers.builds import check_not_newer, find_own_build
from workers.installation import Installation, derive_settings
from workers.service import ServiceRecord, ServiceRecords


@pytest.mark.parametrize("build", [None, "0.1.0.dev0+aaaaaaaaaaaa", find_own_build(), f"{VERSION}+bbbbbbbbbbbb"])
def test_what_is_not_newer_gives_way(tmp_path: Path, build: str | None) -> None:
    """H-D4: an older release, which may say nothing of its build, and another build of this one."""
    check_not_newer(kept_by(tmp_path, build))


@pytest.mark.parametrize("build", ["999.0.0+aaaaaaaaaaaa", "999.0.0rc1"])
def test_a_newer_release_is_not_taken_over(tmp_path: Path, build: str) -> None:
    """H-D4: before anything is touched, with what to do."""
    with pytest.raises(Conflict, match=f"{build[:5]}.*this is {VERSION}: run `hostler up` of that one"):
        check_not_newer(kept_by(tmp_path, build))


def kept_by(home: Path, build: str | None) -> Installation:
    installation = Installation(home, derive_settings("kept"))
    installation.run.mkdir()
    record = ServiceRecord(name="supervisor", state="stopped", since=datetime.now(UTC), fingerprint=build)
    ServiceRecords(installation.run).write(record)
    return installation
