"""Which address of a subnet a VM gets."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.names import HostNames
from drivers.network import draw_address
from model.errors import Invalid, OutOfAddresses


def test_case_d3_a_small_subnet_is_given_out_to_the_last() -> None:
    """case D3."""
    subnet = IPv4Network("10.84.0.0/29")
    taken: list[IPv4Address] = []
    for _ in range(5):
        taken.append(draw_address(subnet, taken))
    assert taken == [IPv4Address(f"10.84.0.{n}") for n in range(2, 7)]
    with pytest.raises(OutOfAddresses, match=r"^no free address in 10\.84\.0\.0/29$"):
        draw_address(subnet, taken)


def test_case_d2_sixty_draws_are_distinct() -> None:
    """case D2."""
    taken: set[IPv4Address] = set()
    for _ in range(60):
        address = draw_address(IPv4Network("10.84.0.0/26"), taken)
        assert address not in taken
        taken.add(address)


@given(st.sets(st.integers(0, 63)))
def test_the_lowest_free_address_is_drawn(taken: set[int]) -> None:
    subnet = IPv4Network("10.84.0.0/26")
    free = sorted(set(range(2, 63)) - taken)
    held = [subnet[n] for n in taken]
    if not free:
        with pytest.raises(OutOfAddresses):
            draw_address(subnet, held)
    else:
        assert draw_address(subnet, held) == subnet[free[0]]


@pytest.mark.parametrize(
    "change",
    [
        {"bridge": "br0\n"},
        {"bridge": "b" * 16},
        {"bridge": "hst0"},
        {"table": "a b"},
        {"table": "t-1"},
        {"tap_prefix": "hsts"},
        {"tap_prefix": ""},
        {"netns": "../host"},
        {"netns": "a/b"},
        {"cgroup": "../a"},
        {"uid_base": 1000},
        {"uid_count": 2**31},
        {"subnet": IPv4Network("169.254.0.0/24")},
        {"subnet": IPv4Network("10.0.0.0/8")},
        {"subnet": IPv4Network("10.0.0.0/30")},
        {"bridge": "br٣"},
    ],
)
def test_a_name_outside_its_pattern_is_refused(change: dict[str, object]) -> None:
    """S-20."""
    with pytest.raises(Invalid):
        HostNames(**change)  # type: ignore[arg-type]


def test_derived_names_fit_and_are_told_apart() -> None:
    names = HostNames()
    ids = [f"00000000-0000-4000-8000-{n:012d}" for n in range(500)]
    assert len({names.tap(i) for i in ids}) == len({names.mac(i) for i in ids}) == 500
    assert all(len(names.tap(i)) == 15 and names.owns_tap(names.tap(i)) for i in ids)
    assert str(names.gateway) == "10.84.0.1"
    assert not names.owns_tap("hostler0")
    assert not names.owns_tap("hst0\n")


def test_case_d4_an_address_that_was_given_back_rests() -> None:
    """Case D4: the next one is drawn above the last, and the range is used whole before any is used again."""
    subnet = IPv4Network("10.0.0.0/29")
    last, seen = None, []
    for _ in range(7):
        last = draw_address(subnet, (), last)
        seen.append(last)
    assert len(set(seen[:5])) == 5
    assert seen[5:] == seen[:2]
