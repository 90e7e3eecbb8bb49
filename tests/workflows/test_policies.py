"""Time limits nest, and pauses grow to their bound (L-G6, L-C4, L-V5)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.workflow import ActivityConfig

from drivers.hypervisor import monitor
from runtime.interceptors import HEARTBEAT_SECONDS
from workflows import policies

STEPS = {"look": policies.LOOK, "prompt": policies.PROMPT, "image": policies.IMAGE, "disk": policies.DISK}


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


@given(st.integers(1, 3600))
def test_a_stop_outlasts_the_guests_own_patience(stop_timeout_seconds: int):
    """L-G6 (case I3): ask, wait, kill, prove."""
    patience = timedelta(seconds=stop_timeout_seconds)
    assert limit_of(policies.stop_step(stop_timeout_seconds)) >= patience + timedelta(seconds=30)


def test_a_programs_patience_is_below_its_steps():
    """L-G6: what the host waits for inside a step ends before the step does."""
    assert timedelta(seconds=monitor.ANSWER_SECONDS) < limit_of(policies.LOOK)
    assert policies.CLAIM_LASTS >= 2 * policies.RENEW_CLAIM_EVERY


@given(st.integers(-3, 10_000))
def test_pauses_grow_and_are_bounded(count: int):
    """L-C4: 5 s, 30 s, 2 min, 10 min. L-V5: from 2 s to 5 min."""
    assert timedelta(seconds=5) <= policies.pause_after_attempt(count) <= timedelta(minutes=10)
    assert timedelta(seconds=2) <= policies.pause_after_failure(count) <= timedelta(minutes=5)
    assert policies.pause_after_attempt(count) <= policies.pause_after_attempt(count + 1)
    assert policies.pause_after_failure(count) <= policies.pause_after_failure(count + 1)
