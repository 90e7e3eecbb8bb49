"""The command line, run in this process or as one of its own, against a server of the test's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.main import run
from tests.cli.fleet import Fleet, serve

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hst_test_token"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class Runner:
    """Run `hostler` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Result:
        self._capsys.readouterr()
        code = run(words)
        found = self._capsys.readouterr()
        return Result(code, found.out, found.err)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state directory; nothing of the user's own settings is seen."""
    for name in [*os.environ]:
        if name.startswith("HOSTLER_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HOSTLER_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A server that the command line is pointed at."""
    found = Fleet()
    server = serve(found)
    monkeypatch.setenv("HOSTLER_URL", found.url)
    monkeypatch.setenv("HOSTLER_TOKEN", TOKEN)
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture
def hostler(capsys: pytest.CaptureFixture[str]) -> Runner:
    """The command, in this process."""
    return Runner(capsys)


@pytest.fixture
def command() -> list[str]:
    """The command, as a process of its own."""
    return [
        sys.executable,
        "-P",
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from cli.main import main; main()",
    ]
