"""Recorded histories of each type of pass in each ending, replayed against this code.

A released history is never recorded anew to make a test pass: a change that breaks one needs `workflow.patched`. To
record the histories of a new release: `RECORD_HISTORIES=1 pytest tests/histories` writes those that are missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.histories.scenarios import SCENARIOS
from tests.workflows.conftest import Fleet, fleet

__all__ = ["fleet"]

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
RECORDED = sorted(HERE.glob("*/*.json"))


def replay(project: Path, files: list[Path], seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Replay in a process of its own, with the workflows of `project`."""
    environment = {**os.environ, "PYTHONPATH": str(project), "PYTHONHASHSEED": seed}
    return subprocess.run(
        [sys.executable, "-m", "tests.histories.replay", *map(str, files)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )


SEEDS = ["0", "1", "31337", *(pytest.param(str(seed), marks=pytest.mark.slow) for seed in range(2, 19))]


@pytest.mark.parametrize("seed", SEEDS)
def test_case_o3_recorded_histories_replay(seed: str):
    """Case O3: whatever the hash seed."""
    assert RECORDED
    result = replay(PROJECT, RECORDED, seed)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(RECORDED)} replayed" in result.stdout


def test_every_ending_is_recorded():
    """Each type of pass in each ending that the scenarios know has a history of some release."""
    names = {path.stem.rsplit(".", 1)[0] for path in RECORDED}
    assert names == set(SCENARIOS)


def test_two_swapped_steps_fail_the_replay(tmp_path: Path):
    """A replay that cannot fail proves nothing."""
    for package in ("model", "activities", "workflows", "runtime", "drivers", "store", "workers", "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "*.json")
        shutil.copytree(PROJECT / package, tmp_path / package, ignore=ignore)
    create = tmp_path / "workflows" / "making.py"
    text = create.read_text()
    swapped = text.replace("StepKind.MAKE_DISK: make_disk", "StepKind.MAKE_DISK: write_seed").replace(
        "StepKind.WRITE_SEED: write_seed", "StepKind.WRITE_SEED: make_disk"
    )
    assert swapped != text
    create.write_text(swapped)
    result = replay(tmp_path, [path for path in RECORDED if path.stem.startswith("create-ready")])
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Nondeterminism" in result.stdout


@pytest.mark.parametrize("name", SCENARIOS)
async def test_scenarios_end_as_they_say(name: str, fleet: Fleet):
    """Each recorded ending still comes about with this code; missing histories are recorded when asked for."""
    runs = await SCENARIOS[name](fleet)
    if not os.environ.get("RECORD_HISTORIES"):
        return
    from model.versions import VERSION

    folder = HERE / VERSION
    folder.mkdir(exist_ok=True)
    for number, (workflow_id, run_id) in enumerate(runs):
        path = folder / f"{name}.{number}.json"
        if not path.exists():
            history = await fleet.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
            path.write_text(history.to_json() + "\n")
