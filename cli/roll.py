"""Restart VMs one batch after the other."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from cyclopts import Parameter

from cli.campaign import check_campaign, describe, describe_failures, follow_campaign
from cli.client import Api
from cli.document import Document
from cli.options import Json, NoWait, Timeout, read_duration, read_pairs
from cli.output import moment, print_facts, print_json, print_table, say
from cli.vm_create import segment

RollId = Annotated[str, Parameter(help="The rolling restart's id.")]


def start(
    *,
    selector: Annotated[list[str] | None, Parameter(name="--selector")] = None,
    host: str | None = None,
    batch: int = 1,
    max_failures: int = 0,
    no_wait: NoWait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Restart the VMs that are wanted running, some at a time.

    :param selector: Only VMs with this label, as key=value; may be given several times.
    :param host: Only VMs on this host.
    :param batch: How many at a time.
    :param max_failures: It pauses when more than so many have failed.
    """
    limit = read_duration(timeout, "--timeout")
    body: Document = {"batch_size": batch, "most_failures": max_failures}
    body["labels"] = read_pairs(selector or [], "--selector")
    if host is not None:
        body["host"] = host
    with Api() as api:
        roll = api.call("POST", "/v1/rolls", body=body)
        if not no_wait:
            roll = _follow(api, roll, timeout=limit, silent=as_json)
    _tell(roll, as_json=as_json)


def wait(roll: RollId, /, *, timeout: Timeout = None, as_json: Json = False) -> None:
    """Follow a rolling restart until it is done, paused or cancelled."""
    limit = read_duration(timeout, "--timeout")
    with Api() as api:
        found = _follow(api, api.get(f"/v1/rolls/{segment(roll)}"), timeout=limit, silent=as_json)
    _tell(found, as_json=as_json)


def ls(*, as_json: Json = False) -> None:
    """List the newest rolling restarts."""
    with Api() as api:
        found = api.get("/v1/rolls")
    if as_json:
        print_json(found)
        return
    rows = ((each["id"], each["state"], describe(each), moment(each["created_at"])) for each in found["items"])
    print_table(("ID", "STATE", "DONE", "SINCE"), rows, empty="there was no rolling restart yet")


def show(roll: RollId, /, *, as_json: Json = False) -> None:
    """Show a rolling restart, and why VMs failed."""
    with Api() as api:
        found = api.get(f"/v1/rolls/{segment(roll)}")
    if as_json:
        print_json(found)
        return
    facts: list[tuple[str, object]] = [(key, found.get(key)) for key in ("id", "state", "batch_size", "made_by")]
    print_facts([*facts, ("done", describe(found)), *(("failed", each) for each in describe_failures(found))])


def pause(roll: RollId, /, *, as_json: Json = False) -> None:
    """Begin no more restarts for now."""
    _change(roll, "pause", as_json=as_json)


def resume(roll: RollId, /, *, as_json: Json = False) -> None:
    """Go on; what has failed by now is put up with."""
    _change(roll, "resume", as_json=as_json)


def cancel(roll: RollId, /, *, as_json: Json = False) -> None:
    """Begin no more restarts at all."""
    _change(roll, "cancel", as_json=as_json)


def _change(roll: str, verb: str, *, as_json: bool) -> None:
    with Api() as api:
        found = api.call("POST", f"/v1/rolls/{segment(roll)}/{verb}")
    if as_json:
        print_json(found)
    else:
        say(f"rolling restart {found['id']} is {found['state']}: {describe(found)}")


def _follow(api: Api, roll: Document, *, timeout: timedelta | None, silent: bool) -> Document:
    path = f"/v1/rolls/{roll['id']}"
    again = f"hostler roll show {roll['id']}"
    return follow_campaign(lambda: api.get(path), roll, "rolling restart", again, timeout=timeout, silent=silent)


def _tell(roll: Document, *, as_json: bool) -> None:
    if as_json:
        print_json(roll)
    else:
        say(f"rolling restart {roll['id']} is {roll['state']}: {describe(roll)}")
    check_campaign(roll, f"rolling restart {roll['id']} is {roll['state']}")
