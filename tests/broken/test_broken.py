"""Every rule broken in turn: a patch is applied to a copy of the code, and the test that it names must fail there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.broken.patches import PROJECT, Breakage, all_breakages

AT_ONCE = 2
LIMIT_SECONDS = 300
_NOT_CODE = (".*", "__pycache__", "evidence", "*.patch", "*.png")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, str]]]]:
    """Run the patches that were chosen, a few at once: most of the time goes to starts."""
    chosen = [item.callspec.params["breakage"] for item in request.session.items if _is_breakage(item)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {one.name: pool.submit(run_broken, one, tmp_path_factory.mktemp(one.name)) for one in chosen}


@pytest.mark.parametrize("breakage", all_breakages(), ids=lambda one: one.name)
def test_a_broken_rule_is_noticed(runs: dict[str, Future[dict[str, str]]], breakage: Breakage) -> None:
    """Each named test fails by its own assertion, not because nothing can be imported any more."""
    outcomes = runs[breakage.name].result()
    for test in breakage.tests:
        found = [outcome for name, outcome in outcomes.items() if name == test or name.startswith(f"{test}[")]
        assert "failed" in found, f"{test} did not notice that {breakage.breaks}: {outcomes}"


def run_broken(breakage: Breakage, folder: Path) -> dict[str, str]:
    """Run a patch's tests on a copy of the code with the patch; return the outcome of each by its node id."""
    copy, report = folder / "code", folder / "report.xml"
    shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns(*_NOT_CODE))
    subprocess.run(["git", "apply", str(breakage.path)], cwd=copy, check=True, capture_output=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "slow or not slow",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "HOSTLER_CACHE": str(Path(os.environ.get("HOSTLER_CACHE", PROJECT / ".cache" / "guest")).absolute()),
    }
    ran = subprocess.run(
        [*command, f"--junitxml={report}", *breakage.tests],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert report.exists(), ran.stdout[-2000:] + ran.stderr[-2000:]
    shutil.rmtree(copy)
    return dict(_outcomes(report))


def _outcomes(report: Path) -> Iterator[tuple[str, str]]:
    """Read node id and outcome of each test; an error in a fixture or an import is no failure."""
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - pytest's own file
        path = case.attrib["classname"].replace(".", "/") + ".py"
        outcome = "failed" if case.find("failure") is not None else "passed"
        if case.find("error") is not None or case.find("skipped") is not None:
            outcome = "not run"
        yield f"{path}::{case.attrib['name']}", outcome


def _is_breakage(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and "breakage" in getattr(item, "fixturenames", ())
        and "runs" in item.fixturenames
    )
