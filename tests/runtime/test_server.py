"""Which server is started, and how."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model.errors import Permanent
from runtime.temporal_server import (
    SERVER_PACKAGE,
    ServerPorts,
    check_packaged_binary,
    dev_server_arguments,
    find_temporal_binary,
    packaged_binary,
)

PORTS = ServerPorts(grpc=1, http=2, metrics=3)


def test_an_official_program_on_the_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official = tmp_path / "temporal"
    official.write_text("#!/bin/sh\n")
    official.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_temporal_binary() == official
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_temporal_binary() == packaged_binary("temporal")


def test_a_changed_repackaged_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-43."""
    check_packaged_binary(packaged_binary("temporal"), SERVER_PACKAGE)
    other = tmp_path / "temporal"
    shutil.copy("/bin/true", other)
    with pytest.raises(Permanent):
        check_packaged_binary(other, SERVER_PACKAGE)


def test_everything_listens_on_loopback_and_a_file_gets_a_write_ahead_log(tmp_path: Path) -> None:
    """S-8: no port of the server is anybody's but this machine's."""
    binary = Path("/x/temporal")
    kept = dev_server_arguments(binary, ports=ServerPorts(1, 2, 3, ui=4), data_file=tmp_path / "t.db")
    assert kept[kept.index("--ip") + 1] == "127.0.0.1"
    assert kept[kept.index("--ui-ip") + 1] == "127.0.0.1"
    assert "journal_mode=WAL" in kept
    assert "--headless" not in kept
    in_memory = dev_server_arguments(binary, ports=PORTS, data_file=None)
    assert "--headless" in in_memory
    assert "--db-filename" not in in_memory
