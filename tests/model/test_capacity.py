"""What goes over a cap, and in which words (H-A2, H-S8, S-32)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.capacity import (
    DIMENSIONS,
    Caps,
    Entitlement,
    describe_caps,
    find_shortages,
    propose_caps,
    refuse,
    without_host,
)

CAPS = Caps(max_vcpus=4, max_memory_mib=4096, max_disk_gib=10)
amounts = st.integers(0, 6)
entitlements = st.builds(Entitlement, cpu_millicores=amounts, memory_mib=amounts, disk_gib=amounts)
caps = st.builds(Caps, max_vcpus=st.none(), max_memory_mib=st.none() | amounts, max_disk_gib=st.none() | amounts)


def test_a_refusal_names_every_binding_dimension() -> None:
    """H-A2: word for word."""
    held, wish = Entitlement(memory_mib=2048, disk_gib=5), Entitlement(memory_mib=8192, disk_gib=20)
    told = refuse("h1", find_shortages(CAPS, held, wish)).detail
    assert told == (
        "host h1 refuses: memory: needs 8192 MiB, holds 2048 of 4096 MiB; disk: needs 20 GiB, holds 5 of 10 GiB"
    )
    assert without_host(told) == "its host refuses: memory: needs 8192 MiB; disk: needs 20 GiB"


def test_vcpus_cap_the_sum_of_millicores() -> None:
    """H-S8: N vCPUs are N × 1000 millicores; exactly full fits (H-A2)."""
    held = Entitlement(cpu_millicores=2750)
    assert not find_shortages(CAPS, held, Entitlement(cpu_millicores=1250))
    over = find_shortages(CAPS, held, Entitlement(cpu_millicores=1251))
    assert [each.words for each in over] == ["cpu: needs 1.251 vCPUs, holds 2.75 of 4 vCPUs"]


@given(caps, entitlements, entitlements)
def test_it_binds_exactly_where_the_sum_goes_over(limits: Caps, held: Entitlement, wish: Entitlement) -> None:
    """H-A2, H-A3: no cap binds nothing, nor does a dimension that was not asked for (case G9)."""
    found = {each.dimension for each in find_shortages(limits, held, wish)}
    for name in DIMENSIONS:
        limit, needs = limits.limit(name), getattr(wish, name)
        assert (name in found) == (limit is not None and needs > 0 and getattr(held, name) + needs > limit)


@given(caps, entitlements, entitlements)
def test_what_a_vm_holds_already_is_not_judged(limits: Caps, held: Entitlement, own: Entitlement) -> None:
    """H-A2: a cap that was lowered touches no VM (H-P7); only what rises is judged."""
    assert not find_shortages(limits, held, own, own)
    more = own + Entitlement(memory_mib=1)
    assert {each.dimension for each in find_shortages(limits, held, more, own)} <= {"memory_mib"}


@given(
    caps,
    entitlements,
    entitlements,
    st.from_regex(re.compile(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", re.ASCII), fullmatch=True),
)
def test_a_project_reads_dimension_and_wish_alone(
    limits: Caps, held: Entitlement, wish: Entitlement, host: str
) -> None:
    """S-32: neither the host nor what it holds or has."""
    shortages = find_shortages(limits, held, wish)
    if shortages:
        wishes = "; ".join(each.wish for each in shortages)
        assert without_host(refuse(host, shortages).detail) == f"its host refuses: {wishes}"


@pytest.mark.parametrize(
    ("memory_mib", "disk_bytes", "caps"),
    [
        (4096, 100 << 30, Caps(max_memory_mib=3072, max_disk_gib=90)),
        (20480, (100 << 30) + 1, Caps(max_memory_mib=19456, max_disk_gib=90)),
        (40960, 15 << 30, Caps(max_memory_mib=38912, max_disk_gib=13)),
        (512, 1 << 20, Caps(max_memory_mib=1, max_disk_gib=1)),
        (None, None, Caps()),
    ],
)
def test_caps_that_a_machines_size_proposes(memory_mib: int | None, disk_bytes: int | None, caps: Caps) -> None:
    """H-A5: memory - max(1 GiB, 5 %), disk - 10 %; what could not be measured has none, processors never (H-S7)."""
    assert propose_caps(memory_mib, disk_bytes) == caps


def test_caps_in_words() -> None:
    """H-A5, H-A3."""
    assert describe_caps(Caps(max_vcpus=4, max_disk_gib=90)) == "4 vCPUs of cpu, 90 GiB of disk"
    assert describe_caps(Caps()) == "as much as is asked for"
