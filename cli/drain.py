"""Empty a host of running guests, and let them come back."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from cyclopts import Parameter

from cli.campaign import check_campaign, describe, follow_campaign
from cli.client import Api
from cli.document import Document, inner
from cli.failures import Usage
from cli.options import Json, NoWait, Timeout, read_duration
from cli.output import print_json, say
from cli.vm_create import segment

Name = Annotated[str, Parameter(help="Name or id.")]


def drain(
    name: Name,
    /,
    *,
    policy: Literal["stop", "leave", "move"] = "stop",
    pause: bool = False,
    resume: bool = False,
    cancel: bool = False,
    no_wait: NoWait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Let no new VM come to a host, let creates in flight finish, then stop its VMs and hold them so.

    What is wanted of each VM is not touched: `hostler host undrain` brings all of them back.

    :param policy: stop, or leave: its VMs run on.
    :param pause: Stop no more VMs for now.
    :param resume: Go on with a drain that was paused.
    :param cancel: End the drain; the same as undrain.
    """
    if pause + resume + cancel > 1:
        raise Usage("give one of --pause, --resume and --cancel")
    if cancel:
        undrain(name, as_json=as_json)
        return
    limit = read_duration(timeout, "--timeout")
    verb = "/pause" if pause else "/resume" if resume else ""
    with Api() as api:
        body = None if verb else {"policy": policy}
        host = api.call("POST", f"/v1/hosts/{segment(name)}/drain{verb}", body=body)
        if not no_wait and not pause:
            host = _follow(api, host, timeout=limit, silent=as_json)
    if as_json:
        print_json(host)
    else:
        say(describe_host(host))
    if not no_wait and not pause:
        check_campaign(inner(host, "drain"), f"{host.get('name')} is {host.get('status')}")


def undrain(name: Name, /, *, as_json: Json = False) -> None:
    """End a drain, done or not: every VM goes back to what is wanted of it, and new ones may come."""
    with Api() as api:
        host = api.call("POST", f"/v1/hosts/{segment(name)}/undrain")
    if as_json:
        print_json(host)
    else:
        say(describe_host(host))


def rm(name: Name, /) -> None:
    """Remove a host that is drained and, by its own report, empty. Its worker is not let in any more."""
    with Api() as api:
        api.call("DELETE", f"/v1/hosts/{segment(name)}")
    say(f"{name} is removed")


def describe_host(host: Document) -> str:
    """Say what a host is, and how far its drain is."""
    drain = inner(host, "drain")
    told = f"{host.get('name')} is {host.get('status')}"
    return f"{told}: {describe(drain)}" if drain else told


def _follow(api: Api, host: Document, *, timeout: timedelta | None, silent: bool) -> Document:
    """Follow the drain of a host; return the host as it is then. One that was undrained meanwhile has none."""
    seen = {"host": host}

    def look() -> Document:
        seen["host"] = api.get(f"/v1/hosts/{host['id']}")
        return inner(seen["host"], "drain") or {"state": "cancelled"}

    name = host.get("name")
    follow_campaign(
        look,
        inner(host, "drain"),
        f"drain of {name}",
        f"hostler host show {name}",
        timeout=timeout,
        silent=silent,
    )
    return seen["host"]
