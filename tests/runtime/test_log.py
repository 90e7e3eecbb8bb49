"""Logs are one line an event, and foreign text in them is data (S-17)."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest

from model.errors import StepFailed
from runtime.log import EventFormatter


def logged(format: str, *args: object, error: BaseException | None = None, **extra: object) -> str:
    stream = io.StringIO()
    logger = logging.Logger("hostler.test")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(EventFormatter("json" if format == "json" else "console"))
    logger.addHandler(handler)
    logger.error(*args, exc_info=error, extra=extra)
    return stream.getvalue()


@pytest.mark.parametrize("format", ["json", "console"])
def test_hostile_text_stays_on_its_line(format: str) -> None:
    """S-17: in the message, in a field, in a nested one."""
    line = logged(format, "guest said %s", "x\n\x1b[2Jroot", vm="a\nb", more={"k\n": ["\x07"]})
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert "\x07" not in line


def test_an_event_is_json_with_its_fields() -> None:
    event = json.loads(logged("json", "a step ended", vm="v1", seconds=1.5))
    assert (event["event"], event["level"], event["vm"], event["seconds"]) == ("a step ended", "error", "v1", 1.5)


def test_an_exception_shows_our_text_and_no_foreign_one() -> None:
    """S-33: a foreign exception's text may hold an input."""
    try:
        try:
            raise ValueError("canary")
        except ValueError as cause:
            raise StepFailed("the disk was not made") from cause
    except StepFailed as error:
        event = json.loads(logged("json", "failed", error=error))
    assert "StepFailed: the disk was not made" in event["exception"]
    assert "ValueError" in event["exception"]
    assert "canary" not in event["exception"]


def test_finish_ends_with_the_intended_code() -> None:
    """A process ends with its code and its last words, whatever the interpreter would do at its exit."""
    code = (
        "import atexit, os; from runtime.finish import finish;"
        "atexit.register(lambda: os._exit(99)); print('last words'); finish(7)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "last words\n")
