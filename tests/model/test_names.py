"""Ids, names, fences, versions and credentials: one spelling, one order, no way around."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.credential import new_credential, parse_credential
from model.fence import Fence
from model.ids import check_digest, check_label, is_uuid, mac_address, new_id, tap_name
from model.temporal import bulk_queue, host_of_queue, host_queue, is_host_queue, vm_workflow_id
from model.versions import floor_for, is_below, is_newer, parse_version

ALPHABET = string.ascii_lowercase + string.digits + "-"


@pytest.mark.parametrize(
    "bad",
    ["", "-a", "a-", "A", "a_b", "a.b", "../x", "a\n", "\na", "a b", "é", "٣", "x" * 64, "a\0", "‮a"],
)
def test_hostile_labels_are_refused(bad: str):
    """S-20 (case N4): whole matches only, ASCII, one spelling."""
    with pytest.raises(ValueError, match="must be"):
        check_label(bad)


@given(st.text(ALPHABET, min_size=1, max_size=63))
def test_a_label_is_what_the_pattern_says(text: str):
    good = not text.startswith("-") and not text.endswith("-")
    if good:
        assert check_label(text) == text
    else:
        with pytest.raises(ValueError, match="must be"):
            check_label(text)


def test_ids_sort_by_the_time_of_their_making():
    ids = [new_id() for _ in range(200)]
    assert len(set(ids)) == 200
    assert all(is_uuid(each) for each in ids)
    assert [each[:13] for each in ids] == sorted(each[:13] for each in ids)


@pytest.mark.parametrize("spelling", ["{%s}", "urn:uuid:%s", "%s\n", " %s"], ids=["braces", "urn", "newline", "space"])
def test_a_uuid_has_one_spelling(spelling: str):
    """Experiment E24."""
    assert not is_uuid(spelling % new_id())
    assert not is_uuid(new_id().upper())


@given(st.text(ALPHABET, min_size=1, max_size=63), st.integers(0, 7), st.integers(0, 3))
def test_macs_are_locally_administered_and_pure(vm_id: str, interface: int, draw: int):
    """L-C13."""
    mac = mac_address(vm_id, interface=interface, draw=draw)
    first = int(mac[:2], 16)
    assert first & 0b10, "locally administered"
    assert not first & 0b1, "unicast"
    assert mac == mac_address(vm_id, interface=interface, draw=draw)
    assert mac != mac_address(vm_id, interface=interface, draw=draw + 1)


@given(st.text(ALPHABET, min_size=1, max_size=63))
def test_tap_names_fit_the_kernel_and_cut_no_id(vm_id: str):
    """L-C13: within 15 bytes, and another id that begins alike has another name."""
    name = tap_name("hst", vm_id)
    assert len(name) == 15
    assert name.isascii()
    assert name != tap_name("hst", vm_id + "0")


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=2, max_size=2))
def test_fences_are_ordered_by_epoch_pass_step_attempt(orders: list[tuple[int, int, int, int]]):
    """L-G5."""
    fences = [
        Fence(fleet_id="f", host_id="h", instance_id="i", epoch=e, pass_number=p, step=s, attempt=a)
        for e, p, s, a in orders
    ]
    assert (fences[0].order < fences[1].order) == (orders[0] < orders[1])


def test_queues_are_named_by_host_and_instance():
    """H-E4: another instance's work is on another queue, and heavy work on its own."""
    assert host_queue("h", "i") != host_queue("h", "j")
    assert bulk_queue("h", "i") != host_queue("h", "i")
    assert host_of_queue(bulk_queue("h", "i")) == host_of_queue(host_queue("h", "i")) == ("h", "i")
    assert is_host_queue(host_queue("h", "i"))
    assert not is_host_queue("control")
    assert vm_workflow_id("x") == "vm/x"


@pytest.mark.parametrize(
    ("worker", "floor", "below"),
    [
        ("1.9.0", "1.10.0", True),
        ("1.10.0", "1.9.0", False),
        ("1.4.0", "1.4.0", False),
        (None, "1.0.0", True),
        ("dev", "1.0.0", True),
        ("1.2.0.dev0", "1.0.0", True),
        ("0.1.0", None, False),
    ],
)
def test_versions_compare_as_versions(worker: str | None, floor: str | None, below: bool):
    """H-S5."""
    assert is_below(worker, floor) is below
    assert parse_version("dev") is None


@pytest.mark.parametrize(
    ("worker", "control", "newer"),
    [
        ("0.2.0", "0.1.9", True),
        ("0.2.1", "0.2.0", True),
        ("1.10.0", "1.9.0", True),
        ("0.2.0", "0.2.0", False),
        ("0.2.0.dev0", "0.2.0.dev3+abc", False),
        ("0.2.0", "0.2.0.dev0", False),
        ("0.1.0", "0.2.0", False),
        ("0.2.0.dev0", None, True),
        ("0.1.0.dev0", None, False),
        ("dev", "0.1.0", False),
        ("0.2.0", "dev", False),
    ],
)
def test_a_host_worker_is_newer_by_its_release_alone(worker: str, control: str | None, newer: bool):
    """H-D4: builds of one release are alike; the first release's control plane cannot tell what it is."""
    assert is_newer(worker, control) is newer


@pytest.mark.parametrize(
    ("worker", "control_plane", "held"),
    [("dev", "1.4.0", "1.3.0"), ("dev", "dev", None), (None, "0.2.0.dev0", None), ("1.2.0", "dev", "1.3.0")],
)
def test_what_is_no_release_is_below_every_floor_but_under_a_control_plane_in_development(
    worker: str | None, control_plane: str, held: str | None
):
    """H-S5."""
    assert floor_for(worker, "1.3.0", control_plane) == held


def test_a_credential_is_found_by_its_id_and_only_its_digest_is_kept():
    """S-30."""
    text, made = new_credential("hst")
    assert text.startswith("hst_")
    assert parse_credential(text) == made
    assert made.digest.hex() not in text
    assert new_credential("hst")[1].digest != made.digest


@given(st.integers(0, 92), st.sampled_from("0123456789abcdefghst_ \n"))
def test_a_mistyped_credential_is_none(place: int, character: str):
    text, _ = new_credential("hst")
    place = place % len(text)
    changed = text[:place] + character + text[place + 1 :]
    assert changed == text or parse_credential(changed) is None


@given(st.text(max_size=70))
def test_a_digest_is_64_lower_case_hexadecimal_digits(text: str):
    good = len(text) == 64 and all(c in "0123456789abcdef" for c in text)
    if not good:
        with pytest.raises(ValueError, match="SHA-256"):
            check_digest(text)
    assert check_digest("ab" * 32) == "ab" * 32
