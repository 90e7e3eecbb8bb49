"""A short chaos run, and the same with faults planted into the product, each of which it must find."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.planted import PROJECT, Planted, all_planted
from tests.fixtures.guest import guest_cache

MINUTES = 2.0
LEAST_FAULTS = 200
SEED = "1848"
LIMIT_SECONDS = 900
IDS = {"argvalues": all_planted(), "ids": lambda planted: planted.name}

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="it kills, mounts and starts servers as other users, as root"),
    pytest.mark.timeout(LIMIT_SECONDS),
]


def run_chaos(code: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with some copy of the code."""
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seed", SEED, "--minutes", str(MINUTES), *arguments],
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(code), "HOSTLER_CACHE": str(guest_cache())},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.slow
def test_nothing_is_violated_by_two_hundred_faults() -> None:
    """Every VM is what its users asked for, after kills, stops, reboots, shifted clocks, full disks, lost answers."""
    done = run_chaos(PROJECT, "--faults", str(LEAST_FAULTS))
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-20_000:]
    found = re.search(r"(\d+) VMs \((\d+) of them real\), .* (\d+) faults, (\d+) passes, 0 violations", said)
    assert found is not None, said
    vms, real, faults, passes = map(int, found.groups())
    assert faults >= LEAST_FAULTS
    assert real > 0
    assert passes > vms > 0


@pytest.mark.slow
@pytest.mark.parametrize("planted", **IDS)
def test_a_planted_fault_is_found(planted: Planted, tmp_path: Path) -> None:
    """A product that is broken on purpose does not pass, within the minutes in which a good one does."""
    code = planted.copy_code(tmp_path)
    done = run_chaos(code)
    shutil.rmtree(code)
    assert done.returncode == 1, done.stderr[-5000:]
    violations = [line for line in done.stdout.splitlines() if line.startswith("VIOLATION")]
    assert any(planted.found in line for line in violations), violations


@pytest.mark.parametrize("planted", **IDS)
def test_a_planted_fault_fits_the_code(planted: Planted) -> None:
    """A patch that does not apply any more would be found too late, by the slow tests only."""
    done = subprocess.run(["git", "apply", "--check", str(planted.path)], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
