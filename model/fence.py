"""The fence: which order is the newest, whoever sends it and however late it arrives (L-G5)."""

from __future__ import annotations

from model.base import Frozen, Lenient


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


class Order(Lenient):
    """What every order to a host holds; sealed on its way (S-3). `min_worker_version`: the floor, where it applies."""

    fence: Fence
    min_worker_version: str | None


class Answer(Lenient):
    """What every answer of a host holds: the order's fence, set around the step.

    An answer to an earlier order proves nothing.
    """

    answers: Fence | None = None
