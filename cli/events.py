"""Run a process that tells its steps as JSON lines, and show them while they come."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from cli.document import Document, things
from cli.failures import Unsuccessful
from cli.output import cell, console, say

if TYPE_CHECKING:
    from rich.table import Table

_SIGNS = {"ready": "✓", "done": "✓", "skipped": "–", "failed": "✗", "stopped": "■"}
_LAST_LINES = 20
_END_SECONDS = 15.0


class StepDisplay(Protocol):
    """What takes the steps of a process."""

    def __enter__(self) -> StepDisplay: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
    def show(self, event: Document) -> None: ...


class StepLines:
    """Say each change of a step in a line."""

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._said: dict[str, tuple[object, object]] = {}

    def __enter__(self) -> StepLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def show(self, event: Document) -> None:
        name, state, detail = str(event.get("name")), event.get("state"), event.get("detail")
        if self._silent or self._said.get(name) == (state, detail):
            return
        self._said[name] = (state, detail)
        say(f"{name}: {state}{f' ({detail})' if detail else ''}")
        for line in things(event, "log"):
            say(f"  | {line}")


class StepTable:
    """Draw the steps as a list that changes in place."""

    def __init__(self) -> None:
        from rich.live import Live

        self._steps: dict[str, Document] = {}
        self._logs: list[str] = []
        self._live = Live(console=console(error=True), get_renderable=self._draw, refresh_per_second=10)

    def __enter__(self) -> StepTable:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._steps = {name: {**event, "ended": True} for name, event in self._steps.items()}
        self._live.stop()
        for line in self._logs:
            say(f"  | {line}")

    def show(self, event: Document) -> None:
        self._steps[str(event.get("name"))] = event
        self._logs += map(str, things(event, "log"))

    def _draw(self) -> Table:
        from rich.spinner import Spinner
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False)
        for name, event in self._steps.items():
            state = str(event.get("state"))
            sign = _SIGNS.get(state) or (" " if event.get("ended") else None)
            mark = cell(sign) if sign is not None else Spinner("dots")
            table.add_row(mark, cell(name), cell(state), cell(event.get("detail") or " "))
        return table


def run_told(
    module: str, words: Sequence[str], *, home: Path, as_json: bool, environment: Mapping[str, str]
) -> Document:
    """Run `python -m module` in the foreground, show its steps, and return its last event.

    Errors: Unsuccessful, with what it said, and what is missing as further lines.
    """
    display = StepTable() if sys.stderr.isatty() and not as_json else StepLines(silent=as_json)
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, "--home", str(home), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=dict(environment),
        )
        try:
            with display:
                last = _read_events(cast("IO[bytes]", process.stdout), display)
            process.wait()
        finally:
            _end(process)
        complaints.seek(0)
        said = complaints.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    return _judge(module, process.returncode, last, said)


def _read_events(lines: IO[bytes], display: StepDisplay) -> Document:
    last: Document = {}
    for line in lines:
        event = _parse(line)
        if event.get("event") == "step":
            display.show(event)
        elif event:
            last = event
    return last


def _parse(line: bytes) -> Document:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return {}
    return cast("Document", found) if isinstance(found, dict) else {}


def _judge(module: str, code: int, last: Document, said: list[str]) -> Document:
    if code == 0 and last.get("event") != "error":
        return last
    if last.get("event") == "error":
        raise Unsuccessful(str(last.get("detail")), hints=tuple(map(str, things(last, "hints"))))
    for line in said:
        say(f"  | {line}")
    raise Unsuccessful(f"{module} ended with {code} and said nothing that can be shown")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a process that got our Ctrl-C end, or make it."""
    try:
        process.wait(_END_SECONDS if process.poll() is None else 0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        cast("IO[bytes]", process.stdout).close()
