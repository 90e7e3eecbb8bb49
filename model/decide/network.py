"""Whether what a VM's network lets through is what is wanted (N-5)."""

from __future__ import annotations

from model.record import Record
from model.row import Row
from model.step import Step, StepKind


def next_of_network(row: Row, record: Record) -> Step | None:
    """Have the host take other rules; None where its record says that it has. A boot comes after them."""
    if record.network_digest == row.desired.network_digest:
        return None
    return Step(kind=StepKind.SET_NETWORK, reason="other rules of the firewall are wanted")
