"""What `hostler up` and `hostler down` say while they work: one JSON object per line on standard output."""

from __future__ import annotations

import json
from typing import Literal

StepState = Literal["starting", "waiting", "restarting", "ready", "done", "skipped", "failed", "stopped"]


def say_step(name: str, state: StepState, detail: str | None = None, log: tuple[str, ...] = ()) -> None:
    """Tell where one step stands; the last word on a name counts. `log` is the end of its log, when it failed."""
    words = {"event": "step", "name": name, "state": state, "detail": detail}
    print(json.dumps(words | ({"log": list(log)} if log else {})), flush=True)


def say_error(detail: str, hints: tuple[str, ...] = ()) -> None:
    """Tell why the work ended; `hints` say what is missing."""
    print(json.dumps({"event": "error", "detail": detail, "hints": list(hints)}), flush=True)


def say_result(event: Literal["up", "down"], **words: object) -> None:
    """Tell the end of the work: the last line."""
    print(json.dumps({"event": event, **words}), flush=True)
