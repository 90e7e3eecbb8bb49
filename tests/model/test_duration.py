"""Durations are read in one spelling and refused otherwise."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("30s", 30), ("5m", 300), ("24h", 86_400), ("7d", 604_800), ("1h30m", 5_400), ("90s", 90)],
)
def test_reads_what_people_write(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-5s", "1.5h", " 5s", "5s\n", "5 s", "5S", "5s5m", "5s5s", "٣s", "1e3s", "99999999d"]
)
def test_refuses_everything_else(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=36_500 * 86_400))
def test_what_is_written_reads_back(seconds: int) -> None:
    duration = timedelta(seconds=seconds)
    assert parse_duration(format_duration(duration)) == duration
