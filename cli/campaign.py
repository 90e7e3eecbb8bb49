"""Follow an operation over many VMs. It goes on whether or not anybody watches (H-D1, H-D3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from cli.document import Document, documents
from cli.failures import Left, TimedOut, Unsuccessful
from cli.follow import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from cli.progress import make_display
from cli.steps import Stand

Look = Callable[[], Document]
"""Reads the campaign anew."""


def describe(campaign: Document) -> str:
    """Say in a few words how far a campaign is: `stopped 7 of 9, 1 failed`."""
    verb = "stopped" if campaign.get("kind") == "drain" else "restarted"
    told = [f"{verb} {campaign.get('done')} of {campaign.get('total')}"]
    left = "left running" if campaign.get("kind") == "drain" else "passed over"
    for key, words in (("left", left), ("creating", "being created"), ("failed", "failed")):
        if campaign.get(key):
            told.append(f"{campaign[key]} {words}")
    if campaign.get("state") == "paused":
        told.append(f"paused by {campaign.get('paused_by')}")
    return ", ".join(told)


def describe_failures(campaign: Document) -> tuple[str, ...]:
    """Say of each VM for which it could not be done why not; of many, of the first."""
    told = [f"{each.get('name')} ({each.get('vm_id')}): {each.get('why')}" for each in documents(campaign, "failures")]
    more = int(campaign.get("failed") or 0) - len(told)
    return (*told, f"and {more} more") if more > 0 else tuple(told)


def follow_campaign(
    look: Look, campaign: Document, title: str, again: str, *, timeout: timedelta | None, silent: bool
) -> Document:
    """Return the campaign once it is done, paused or cancelled, or nothing is left of it but what failed.

    `again`: the command that shows it. Errors: TimedOut, Left (Ctrl-C).
    """
    give_up = None if timeout is None else time.monotonic() + timeout.total_seconds()
    pause = FIRST_PAUSE_SECONDS
    try:
        with make_display(title, int(campaign.get("total") or 0), silent=silent) as display:
            while True:
                display.show(Stand(int(campaign.get("done") or 0), describe(campaign), ""))
                if _is_over(campaign):
                    return campaign
                if give_up is not None and time.monotonic() + pause > give_up:
                    raise TimedOut(
                        f"{title} did not end in time ({describe(campaign)}); it goes on, `{again}` shows it"
                    )
                time.sleep(pause)
                pause = min(pause * 1.25, LONGEST_PAUSE_SECONDS)
                campaign = look()
    except KeyboardInterrupt:
        raise Left(f"left; {title} goes on. `{again}` shows it") from None


def check_campaign(campaign: Document, title: str) -> None:
    """Raise Unsuccessful where some VM failed, with each of them."""
    if campaign.get("failed"):
        raise Unsuccessful(f"{title}: {describe(campaign)}", hints=describe_failures(campaign))


def _is_over(campaign: Document) -> bool:
    open_ones = ("creating", "todo", "working")
    return campaign.get("state") in ("done", "paused", "cancelled") or bool(
        campaign.get("failed") and not any(campaign.get(key) for key in open_ones)
    )
