"""Logs: one line an event, foreign text escaped and cut (S-17), to standard error."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, cast

import structlog

from model.text import clean_text

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FRAMES_SHOWN = 12
_DEPTH_SHOWN = 4


def configure_logging(
    format: Literal["json", "console"] = "json", level: str = "info", stream: TextIO | None = None
) -> None:
    """Send everything that is logged in this process to `stream` (standard error), replacing what was set before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(EventFormatter(format))
    root = logging.getLogger()
    for each in list(root.handlers):
        root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # The SDK logs every failed try with its traceback; the step interceptor says the same in one line.
    logging.getLogger("temporalio.activity").setLevel(logging.ERROR)
    # A line for each of our own requests, every ten seconds for ever, tells nobody anything.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.captureWarnings(True)


class EventFormatter(logging.Formatter):
    """Render a record and its `extra` fields; tracebacks show frames and classes, no texts of foreign exceptions."""

    def __init__(self, format: Literal["json", "console"]) -> None:
        super().__init__()
        self._render: Any = (
            structlog.processors.JSONRenderer(sort_keys=False, default=repr)
            if format == "json"
            else structlog.dev.ConsoleRenderer(colors=False)
        )

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        event: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": clean_text(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _OWN_FIELDS and not name.startswith("_"):
                event[clean_text(name, 64)] = clean_value(value)
        if record.exc_info and record.exc_info[1] is not None:
            event["exception"] = describe_exception(record.exc_info[1])
        return str(self._render(None, record.levelname.lower(), event))


def clean_value(value: object, depth: int = 0) -> Any:
    """Return a value whose texts are escaped and cut, however deep they lie."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | bytes):
        return clean_text(value)
    if depth >= _DEPTH_SHOWN:
        return "…"
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return {clean_text(str(key), 128): clean_value(item, depth + 1) for key, item in mapping.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean_value(item, depth + 1) for item in cast("list[object]", list(cast("Any", value)))]
    return clean_text(str(value))


def describe_exception(error: BaseException) -> str:
    """Name an exception, its causes and where it came from; foreign texts may hold inputs, so only ours are shown."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < _DEPTH_SHOWN:
        frames = traceback.extract_tb(seen.__traceback__)[-_FRAMES_SHOWN:]
        where = " > ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames)
        detail = getattr(seen, "detail", None)
        named = f"{type(seen).__name__}: {detail}" if isinstance(detail, str) else type(seen).__name__
        parts.append(f"{named} [{where}]" if where else named)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return clean_text(" <- ".join(parts))
