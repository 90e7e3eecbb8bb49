"""What a series of measurements says: its middle, its range, and how two of them compare."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

AIM, LIMIT = 1.15, 1.5
"""A create should cost at most AIM times a bare start; above LIMIT the benchmark fails."""

Verdict = Literal["met", "missed", "failed"]


@dataclass(frozen=True)
class Summary:
    """The middle and the range of a series, in the unit of its values."""

    median: float
    lowest: float
    highest: float
    count: int


def summarise(values: Sequence[float]) -> Summary:
    """Summarise a series; ValueError for an empty one."""
    if not values:
        raise ValueError("there is nothing to summarise")
    return Summary(statistics.median(values), min(values), max(values), len(values))


def find_ratio(bare: Sequence[float], hostler: Sequence[float]) -> float:
    """Divide the medians: one disturbed round then moves neither."""
    return statistics.median(hostler) / statistics.median(bare)


def find_paired_ratios(bare: Sequence[float], hostler: Sequence[float]) -> Summary:
    """Summarise the ratios within each round, whose two boots shared whatever else the machine did just then."""
    return summarise([there / here for here, there in zip(bare, hostler, strict=True)])


def judge(ratio: float) -> Verdict:
    """Compare a ratio with the aim and the limit."""
    if ratio > LIMIT:
        return "failed"
    return "met" if ratio <= AIM else "missed"


def summarise_by_name(rounds: Sequence[Mapping[str, float]]) -> dict[str, Summary]:
    """Summarise each name's values over the rounds that have it, in the order in which the names first come."""
    names = dict.fromkeys(name for each in rounds for name in each)
    return {name: summarise([each[name] for each in rounds if name in each]) for name in names}
