"""The arithmetic of the benchmark."""

import pytest

from tests.bench.statistics import (
    AIM,
    LIMIT,
    Summary,
    find_paired_ratios,
    find_ratio,
    judge,
    summarise,
    summarise_by_name,
)


def test_a_series_is_summarised_whatever_its_order():
    assert summarise([3.0, 1.0, 2.0]) == Summary(median=2.0, lowest=1.0, highest=3.0, count=3)
    assert summarise([4.0, 1.0]).median == 2.5


def test_nothing_has_no_middle():
    with pytest.raises(ValueError, match="nothing"):
        summarise([])


def test_one_disturbed_round_does_not_move_the_ratio():
    assert find_ratio([2.0, 2.0, 90.0], [2.2, 60.0, 2.2]) == pytest.approx(1.1)


def test_a_round_is_compared_with_itself():
    found = find_paired_ratios([1.0, 2.0, 4.0], [1.5, 2.0, 5.0])
    assert (found.lowest, found.median, found.highest) == (1.0, 1.25, 1.5)
    with pytest.raises(ValueError, match="zip"):
        find_paired_ratios([1.0], [])


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(0.9, "met"), (AIM, "met"), (AIM + 0.001, "missed"), (LIMIT, "missed"), (LIMIT + 0.001, "failed")],
)
def test_the_aim_and_the_limit_themselves_are_still_kept(ratio: float, verdict: str):
    assert judge(ratio) == verdict


def test_names_keep_their_order_and_may_be_missing_from_a_round():
    found = summarise_by_name([{"b": 1.0}, {"b": 3.0, "a": 5.0}])
    assert list(found) == ["b", "a"]
    assert (found["b"].median, found["b"].count) == (2.0, 2)
    assert found["a"].count == 1
