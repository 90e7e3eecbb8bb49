"""A host's report at the border: texts and numbers within bounds, before any is stored (S-1, S-17)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from model.errors import FieldError, Invalid
from model.report import HostReport
from model.text import clean_text

_LARGEST = (1 << 63) - 1
_LARGEST_COUNT = (1 << 31) - 1
_LIFTED = ("/epoch", "/pass_number", "_generation", "/generation")
_FIRST, _LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def cleaned(report: HostReport) -> HostReport:
    """Return the report with its texts escaped and cut; raise Invalid for numbers and times that no host can mean."""
    return HostReport.model_validate(_clean(report.model_dump(), ""))


def _clean(value: Any, pointer: str) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        return {name: _clean(each, f"{pointer}/{name}") for name, each in given.items()}
    if isinstance(value, list | tuple):
        several: list[Any] = list(cast("Any", value))
        return [_clean(each, f"{pointer}/{number}") for number, each in enumerate(several)]
    if isinstance(value, int) and not -_LARGEST <= value <= _largest(pointer):
        raise _refused(pointer, "the number is out of range")
    if isinstance(value, datetime):
        return _time(value, pointer)
    return value


def _largest(pointer: str) -> int:
    if pointer.endswith("/restart_count"):
        return _LARGEST_COUNT
    # The fleet's own go on above them after a restore.
    return _LARGEST >> 1 if pointer.endswith(_LIFTED) else _LARGEST


def _time(value: datetime, pointer: str) -> datetime:
    known = value if value.tzinfo else value.replace(tzinfo=UTC)
    if not _FIRST <= known <= _LAST:
        raise _refused(pointer, "no clock shows this time")
    return known


def _refused(pointer: str, text: str) -> Invalid:
    return Invalid(f"{pointer}: {text}", errors=(FieldError(pointer, text),))
