"""Time limits nest, and pauses grow to their bound (L-G6, L-C4, L-V5)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.workflow import ActivityConfig

from drivers import cgroups, disks, jobs, launching, slots
from drivers.host import ending, storage
from drivers.hypervisor import monitor, qemu
from drivers.network import dhcp, nft
from model.decide.setback import pause_after_setback
from model.vm import LONGEST_STOP_SECONDS
from runtime.interceptors import HEARTBEAT_SECONDS
from tests.fixtures.host import IMAGE_METHODS, METHODS
from workers import host_api
from workflows import policies

STEPS = {
    "look": policies.LOOK,
    "prompt": policies.PROMPT,
    "network": policies.NETWORK,
    "boot": policies.BOOT,
    "image": policies.IMAGE,
    "disk": policies.DISK,
}

# What each step waits for on its host at the very worst, in seconds, one wait after the other.
NFT = nft.NFT_SECONDS
LOCK, FIND = jobs.BUSY_SECONDS, monitor.ANSWER_SECONDS
VIEW = FIND + NFT
KILL = FIND + ending.KILL_SECONDS + FIND
INPUT = 2 * host_api.TIMEOUT_SECONDS
SHARED_NETWORK = 3 * NFT + dhcp.BEGIN_SECONDS + 2 * dhcp.END_SECONDS
NETWORK = NFT + SHARED_NETWORK + 2 * NFT
UNDO_NETWORK = 2 * NFT
START = launching.LAUNCH_SECONDS + qemu.BOOT_SECONDS + qemu.QUIT_SECONDS + 5
ASKED_TOO_LONG = 2 * monitor.ANSWER_SECONDS
LONGEST_WAITS = {
    "find_vm": VIEW,
    "ensure_certificate": 2 * INPUT + 2 * LOCK + NFT + VIEW,
    "ensure_prepared": INPUT + LOCK + NFT + KILL + VIEW,
    "ensure_image": slots.WAIT_SECONDS + storage.IMAGE_SECONDS + LOCK + VIEW,
    "ensure_root_disk": slots.WAIT_SECONDS + LOCK + disks.QEMU_IMG_SECONDS + VIEW,
    "ensure_seed": INPUT + LOCK + VIEW,
    "ensure_volume": LOCK + FIND + qemu.PLUG_SECONDS + VIEW,
    "ensure_volume_detached": LOCK + FIND + max(qemu.PLUG_SECONDS, KILL) + VIEW,
    "ensure_network": INPUT + LOCK + NETWORK + UNDO_NETWORK + VIEW,
    "ensure_booted": FIND + slots.WAIT_SECONDS + LOCK + FIND + KILL + NETWORK + max(UNDO_NETWORK, START) + VIEW,
    "ensure_completed": LOCK + VIEW,
    "ensure_paused": LOCK + 2 * FIND + VIEW,
    "ensure_resumed": LOCK + 2 * FIND + VIEW,
    "ensure_stopped": LOCK + FIND + LONGEST_STOP_SECONDS + ASKED_TOO_LONG + KILL + VIEW,
    "ensure_stop_recorded": LOCK + FIND + VIEW,
    "ensure_restart_noted": LOCK + FIND + VIEW,
    "ensure_applied": LOCK + VIEW,
    "ensure_disk_size": LOCK + FIND + max(disks.QEMU_IMG_SECONDS, 2 * FIND) + VIEW,
    "ensure_disk_set_aside": INPUT + LOCK + FIND + VIEW,
    "ensure_kept_disk_removed": LOCK + VIEW,
    "ensure_quarantined": LOCK + FIND + LONGEST_STOP_SECONDS + ASKED_TOO_LONG + KILL + VIEW,
    "ensure_released": LOCK + VIEW,
    "ensure_process_destroyed": LOCK + KILL + VIEW,
    "ensure_network_destroyed": LOCK + FIND + NFT + 2 * NFT + VIEW,
    "ensure_storage_destroyed": LOCK + FIND + NFT + cgroups.REMOVE_SECONDS + VIEW,
    "ensure_records_destroyed": LOCK + FIND + NFT + VIEW,
}
WORKFLOWS = sorted(Path(policies.__file__).parent.glob("*.py"))


def limit_of(policy: ActivityConfig) -> timedelta:
    limit = policy.get("start_to_close_timeout")
    assert limit is not None
    return limit


@pytest.mark.parametrize("name", STEPS)
def test_a_step_ends_within_its_pass_and_beats_within_its_limit(name: str):
    """L-G6: heartbeat < step < pass; a step that nobody picks up ends as well."""
    policy = STEPS[name]
    heartbeat, pickup = policy.get("heartbeat_timeout"), policy.get("schedule_to_start_timeout")
    assert heartbeat is not None
    assert pickup is not None
    assert timedelta(seconds=3 * HEARTBEAT_SECONDS) <= heartbeat < limit_of(policy) < policies.PASS_TIMEOUT
    assert pickup < policies.PASS_TIMEOUT


@given(st.integers(1, LONGEST_STOP_SECONDS))
def test_case_i3_a_stop_outlasts_the_guests_own_patience(stop_timeout_seconds: int):
    """L-G6, case I3: ask, wait, kill, prove."""
    patience = timedelta(seconds=stop_timeout_seconds)
    assert limit_of(policies.stop_step(stop_timeout_seconds)) >= patience + timedelta(seconds=30)


def host_calls() -> Iterator[tuple[str, ActivityConfig]]:
    """Read every order that the workflows send, with its policy, out of their sources."""
    for file in WORKFLOWS:
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "host"):
                continue
            method, policy = node.args[:2]
            assert isinstance(method, ast.Attribute), f"{file.name}: an order is named where it is sent"
            given = policy.func if isinstance(policy, ast.Call) else policy
            assert isinstance(given, ast.Attribute), f"{file.name}: a policy is named where it is used"
            found = getattr(policies, given.attr)
            yield method.attr, found(LONGEST_STOP_SECONDS) if isinstance(policy, ast.Call) else found


def test_case_i3_every_step_outlasts_the_sum_of_its_own_waits():
    """L-G6, case I3: no limit ends a step that is still within its host's own patience; each step is listed here."""
    calls = list(host_calls())
    assert {name for name, _ in calls} == {"find_vm", *METHODS.values(), *IMAGE_METHODS.values()} == {*LONGEST_WAITS}
    short = [name for name, policy in calls if limit_of(policy) <= timedelta(seconds=LONGEST_WAITS[name])]
    assert short == []


def test_case_o1_a_pass_outlasts_its_longest_step_and_has_time_to_tell():
    """L-G6, case O1: the pass writes what a step that ran into its limit means; nothing above the pass ends it."""
    longest = max(limit_of(policy) for _, policy in host_calls())
    pickup = policies.PICKUP_TIMEOUT
    writes = 3 * policies.CLAIM_LASTS
    assert longest + pickup + writes < policies.PASS_TIMEOUT
    for file in WORKFLOWS:
        for word in ("execution_timeout", "run_timeout", "execute_child_workflow", "start_child_workflow"):
            assert word not in file.read_text(), f"{file.name}: {word} ends a pass without a word"


def test_a_programs_patience_is_below_its_steps():
    """L-G6: what the host waits for inside a step ends before the step does."""
    assert timedelta(seconds=monitor.ANSWER_SECONDS) < limit_of(policies.LOOK)
    assert policies.CLAIM_LASTS >= 2 * policies.RENEW_CLAIM_EVERY


@given(st.integers(-3, 10_000))
def test_pauses_grow_and_are_bounded(count: int):
    """L-C4: 5 s, 30 s, 2 min, 10 min. L-V5: from 2 s to 5 min. L-V4: at once, then 10 s, 20 s, 40 s … 5 min."""
    assert timedelta(0) <= pause_after_setback(count) <= timedelta(minutes=5)
    assert pause_after_setback(count) <= pause_after_setback(count + 1)
    assert [pause_after_setback(n).total_seconds() for n in range(1, 9)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert timedelta(seconds=5) <= policies.pause_after_attempt(count) <= timedelta(minutes=10)
    assert timedelta(seconds=2) <= policies.pause_after_failure(count) <= timedelta(minutes=5)
    assert policies.pause_after_attempt(count) <= policies.pause_after_attempt(count + 1)
    assert policies.pause_after_failure(count) <= policies.pause_after_failure(count + 1)
