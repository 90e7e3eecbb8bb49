"""The fence: which order is the newest, whoever sends it and however late it arrives (L-G5)."""

from __future__ import annotations

from model.base import Frozen


class Fence(Frozen):
    """Place an order among all orders for one VM.

    Pass numbers come from one sequence for the whole fleet; `step` counts within the pass, `attempt` is Temporal's
    try of that step. Only (epoch, pass_number, step, attempt) is ordered; fleet and instance must be equal.
    """

    fleet_id: str
    host_id: str
    instance_id: str
    epoch: int
    pass_number: int
    step: int
    attempt: int = 1

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The part that is compared, most significant first."""
        return (self.epoch, self.pass_number, self.step, self.attempt)
