"""How a step tells what it is doing while it runs, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar


def _nobody_listens(words: str) -> None:
    """Drop the words: outside a worker nothing heartbeats."""


progress: ContextVar[Callable[[str], None]] = ContextVar("progress", default=_nobody_listens)
"""What takes the words. The worker sets it around a step; it may be called from any thread of the step."""


def report_progress(words: str) -> None:
    """Say in a few words what the step is doing now; the newest words go out with the next heartbeat."""
    progress.get()(words)
