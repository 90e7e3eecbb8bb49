"""Durations as people write them: `30s`, `5m`, `24h`, `7d`, and compounds such as `1h30m`."""

from __future__ import annotations

import re
from datetime import timedelta

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}){unit})?" for unit in _SECONDS), re.ASCII)
_LONGEST = timedelta(days=36_500)


def parse_duration(text: str) -> timedelta:
    """Read a duration of whole days, hours, minutes and seconds, in this order, each once.

    Errors: ValueError, when `text` is none, has no unit, or is longer than 36500 days.
    """
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        raise ValueError("must be a duration such as 30s, 5m, 24h, 7d or 1h30m")
    duration = timedelta(seconds=sum(int(found[unit] or 0) * seconds for unit, seconds in _SECONDS.items()))
    if duration > _LONGEST:
        raise ValueError("must be at most 36500d")
    return duration


def format_duration(duration: timedelta) -> str:
    """Write a duration in whole seconds as `parse_duration` reads it; parts of a second are cut off."""
    left = max(0, int(duration.total_seconds()))
    if left == 0:
        return "0s"
    parts: list[str] = []
    for unit, seconds in _SECONDS.items():
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
