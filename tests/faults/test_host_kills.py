"""A host worker killed at any record write or side effect leaves what the next one finishes (L-G3, L-G4, case E5)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

FLOOR = 450
"""Fewer kills than this mean that points are not found any more."""
PROJECT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be had: thousands of files are flushed. A killed process loses nothing there either."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hostler-kills-") as made:
        yield Path(made)


@pytest.mark.timeout(420)
async def test_case_e5_a_host_worker_killed_at_every_write_and_effect(folder: Path) -> None:
    """L-C1, L-G3, L-G4, L-R5, cases C2, E5: one process, one tap, one disk, the same record; or nothing at all."""
    command = [sys.executable, "-m", "tests.faults.host_kills", str(folder)]
    sweep = await asyncio.create_subprocess_exec(
        *command, cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT)}, stdout=-1, stderr=-1
    )
    said, errors = await sweep.communicate()
    assert sweep.returncode == 0, errors.decode()[-4000:]
    found = json.loads(said)
    assert found["wrong"] == []
    assert found["kills"] >= FLOOR
