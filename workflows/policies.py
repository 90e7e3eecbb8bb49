"""Time limits and retries of every kind of step, nested: a program's patience < its step < its pass (L-G6).

A host step is repeated by Temporal only for what says nothing about the VM: its worker died, an earlier step of the
same VM still ends, the API did not answer. What failed on the host is counted and paced by the pass instead.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityConfig, LocalActivityConfig

from model.errors import ImageUnreachable, OutOfAddresses, OutOfSpace, StepFailed
from model.step import WORDS, StepKind

PASS_TIMEOUT = timedelta(minutes=30)
RENEW_CLAIM_EVERY = timedelta(seconds=15)
"""Half of the time after which the sweep takes a run that says nothing for one that was terminated."""
INSIDE_WAIT_LIMIT = timedelta(seconds=60)
PICKUP_TIMEOUT = timedelta(seconds=60)
HEARTBEAT_TIMEOUT = timedelta(seconds=12)
STOP_MARGIN = timedelta(seconds=90)
CLAIM_LASTS = timedelta(minutes=2)

_COUNTED_BY_THE_PASS = [error.__name__ for error in (StepFailed, OutOfSpace, OutOfAddresses, ImageUnreachable)]

STORE = LocalActivityConfig(
    start_to_close_timeout=timedelta(seconds=2),
    schedule_to_close_timeout=timedelta(seconds=6),
    retry_policy=RetryPolicy(maximum_attempts=2, initial_interval=timedelta(milliseconds=100)),
)

_STORE_WORDS = {
    "claim_vm": "taking the row",
    "read_vm": "reading the row again",
    "renew_claim": "renewing the claim",
    "begin_step": "noting the next step",
    "take_attempt": WORDS[StepKind.TAKE_ATTEMPT],
    "give_back_attempt": "giving the attempt back",
    "write_outcome": "writing what was found",
    "finish_pass": "ending the pass",
    "take_over": WORDS[StepKind.TAKE_OVER],
    "note_stopped": WORDS[StepKind.NOTE_STOPPED],
    "mark_destroying": WORDS[StepKind.MARK_DESTROYING],
    "record_gone": WORDS[StepKind.RECORD_GONE],
    "find_campaign": "looking at the VMs' rows",
    "ensure_vms_held": "holding the next VMs",
    "ensure_vms_let_go": "letting deleted VMs go",
    "ensure_vms_restarted": "asking for the next restarts",
    "ensure_campaign_paused": "pausing: too many VMs failed",
    "ensure_campaign_done": "noting that all is done",
    "finish_campaign": "ending the run",
    "begin_sync": "drawing the sync's number",
    "finish_sync": "writing what the host acknowledged",
}


def store_call(name: str) -> LocalActivityConfig:
    """Limit one use of the store, and say in fixed words what it is for (S-8)."""
    return {**STORE, "summary": _STORE_WORDS[name]}


def _host_step(start_to_close: timedelta) -> ActivityConfig:
    return ActivityConfig(
        schedule_to_start_timeout=PICKUP_TIMEOUT,
        start_to_close_timeout=start_to_close,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=1),
            maximum_interval=timedelta(seconds=10),
            maximum_attempts=6,
            non_retryable_error_types=_COUNTED_BY_THE_PASS,
        ),
    )


LOOK = _host_step(timedelta(seconds=45))
PROMPT = _host_step(timedelta(minutes=2))
NETWORK = _host_step(timedelta(minutes=6))
BOOT = _host_step(timedelta(minutes=7))
IMAGE = _host_step(timedelta(minutes=12))
DISK = _host_step(timedelta(minutes=10))


def stop_step(stop_timeout_seconds: int) -> ActivityConfig:
    """Limit a stop: the guest's own patience, then the kill and its proof."""
    return _host_step(timedelta(seconds=stop_timeout_seconds) + STOP_MARGIN)


SYNC: ActivityConfig = {**_host_step(timedelta(seconds=45)), "schedule_to_close_timeout": timedelta(seconds=100)}
"""Shorter than the two minutes after which the sweep looks after its run."""

ATTEMPT_PAUSES = tuple(timedelta(seconds=s) for s in (5, 30, 120, 600))
FIRST_PAUSE = timedelta(seconds=2)
LONGEST_PAUSE = timedelta(minutes=5)
CAMPAIGN_LOOK_FIRST = timedelta(seconds=1)
CAMPAIGN_LOOK_LONGEST = timedelta(seconds=10)


def pause_after_attempt(attempts: int) -> timedelta:
    """Return the pause after the given number of create attempts, before jitter (L-C4)."""
    return ATTEMPT_PAUSES[min(max(attempts, 1), len(ATTEMPT_PAUSES)) - 1]


def pause_after_failure(failures: int) -> timedelta:
    """Return the pause after the given number of failures in a row, before jitter (L-V5)."""
    return min(FIRST_PAUSE * 2 ** min(max(failures, 1) - 1, 10), LONGEST_PAUSE)
