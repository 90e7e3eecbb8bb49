"""An operation over many VMs that can be paused, resumed and cancelled: a drain, a rolling restart (H-D1, H-D3).

What is wanted of it and how far it is stands in the store; its workflow only moves it. What to do next is a pure
function of one look.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from model.base import Frozen, Lenient

CampaignType = Literal["DrainHost", "RollFleet"]
CampaignKind = Literal["drain", "roll"]
CampaignState = Literal["running", "paused", "done", "cancelled"]
DrainPolicy = Literal["stop", "leave"]
CampaignResult = Literal["done", "paused", "cancelled", "failing", "waiting", "gone"]
TYPES: dict[CampaignKind, CampaignType] = {"drain": "DrainHost", "roll": "RollFleet"}


def campaign_workflow_id(kind: CampaignKind, campaign_id: str, host_id: str | None) -> str:
    """Name the one workflow id under which every run of a campaign runs.

    A host's next drain has another one: the last run of the one before may not have ended yet.
    """
    return f"host/{host_id}/drain/{campaign_id}" if kind == "drain" else f"roll/{campaign_id}"


class CampaignStart(Lenient):
    """The argument of a campaign's run, and of each look: it reads everything itself."""

    campaign_id: str


class CampaignVms(CampaignStart):
    """Act on these VMs, each as far as its row still calls for it."""

    vm_ids: tuple[str, ...]


class CampaignFinish(CampaignStart):
    """End a run: write when to look again only if nobody woke the campaign since `wake` was read."""

    wake: int
    due_seconds: float | None = None


class CampaignLook(Lenient):
    """How a campaign stands: its VMs by what is done for them, with the ids of the first of those to act on.

    creating: their create is in flight. todo: nothing was begun. working: it was. left: nothing is to be done.
    deleted: held, and deleted since. `most_failures`: more than so many pause it; None: it goes on whatever fails.
    """

    state: CampaignState
    batch_size: int
    most_failures: int | None = None
    total: int = 0
    creating: int = 0
    todo: int = 0
    working: int = 0
    done: int = 0
    left: int = 0
    failed: int = 0
    next_ids: tuple[str, ...] = ()
    deleted_ids: tuple[str, ...] = ()
    wake: int


class CampaignStepKind(StrEnum):
    """What a campaign may do next."""

    YIELD = "yield"
    AWAIT_CREATES = "await_creates"
    PAUSE = "pause"
    TAKE = "take"
    WATCH = "watch"
    NOTE_DONE = "note_done"
    END = "end"


class CampaignStep(Frozen):
    """What to do next, and in fixed words why. `result`: how the run ends."""

    kind: CampaignStepKind
    words: str
    vm_ids: tuple[str, ...] = ()
    result: CampaignResult | None = None


def next_of_campaign(look: CampaignLook) -> CampaignStep:
    """Decide the next step. A drain that is done is looked at as any other: a VM may have come back to its host."""
    if look.state == "cancelled":
        return CampaignStep(kind=CampaignStepKind.END, words="cancelled", result="cancelled")
    if look.deleted_ids:
        words = "letting VMs go that were deleted"
        return CampaignStep(kind=CampaignStepKind.YIELD, words=words, vm_ids=look.deleted_ids)
    if look.state == "paused":
        return CampaignStep(kind=CampaignStepKind.END, words="paused", result="paused")
    if look.creating:
        return CampaignStep(kind=CampaignStepKind.AWAIT_CREATES, words="waiting for creates in flight")
    if look.todo and look.most_failures is not None and look.failed > look.most_failures:
        return CampaignStep(kind=CampaignStepKind.PAUSE, words="pausing: too many VMs failed")
    room = look.batch_size - look.working
    if look.todo and room > 0:
        return CampaignStep(
            kind=CampaignStepKind.TAKE, words="beginning with the next VMs", vm_ids=look.next_ids[:room]
        )
    if look.working:
        return CampaignStep(kind=CampaignStepKind.WATCH, words="waiting for the VMs in hand")
    if look.failed and look.most_failures is None:
        return CampaignStep(kind=CampaignStepKind.END, words="some VMs failed: looked at again", result="failing")
    if look.state != "done":
        return CampaignStep(kind=CampaignStepKind.NOTE_DONE, words="every VM has had its turn")
    return CampaignStep(kind=CampaignStepKind.END, words="done", result="done")
