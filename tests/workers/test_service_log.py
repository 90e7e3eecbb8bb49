"""Logs stay bounded while their writers go on, and what a person is shown of them is harmless."""

import os
from pathlib import Path

from workers.service_log import bound_log, opened_log, read_last_lines


def test_a_log_over_its_limit_is_moved_aside_under_its_writer(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    with opened_log(log) as writer:
        os.write(writer, b"x" * 99 + b"\n")
        assert not bound_log(log, limit_bytes=100)
        os.write(writer, b"more\n")
        assert bound_log(log, limit_bytes=100)
        os.write(writer, b"after\n")
    assert log.read_bytes() == b"after\n"
    assert (tmp_path / "api.log.1").read_bytes().endswith(b"more\n")
    assert log.stat().st_mode & 0o777 == (tmp_path / "api.log.1").stat().st_mode & 0o777 == 0o600
    assert not bound_log(tmp_path / "absent.log")


def test_last_lines_are_escaped_and_cut(tmp_path: Path) -> None:
    """S-17: a log may hold what a guest or user wrote."""
    log = tmp_path / "host.log"
    log.write_bytes(b"first\n" * 5000 + b"\n\x1b[2Jcleared\xff\n" + b"y" * 3000 + b"\n")
    lines = read_last_lines(log, count=2)
    assert lines[0].startswith("\\x1b[2Jcleared")
    assert lines[1] == "y" * 400
    assert read_last_lines(tmp_path / "absent.log") == ()
