"""Let hosts join the fleet, let a machine take another's place, and end what a host may do."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document
from cli.options import Json
from cli.output import moment, print_json, say
from cli.vm_create import segment

ExpiresIn = Annotated[int, Parameter(name="--expires-in", help="For how many seconds the join string can be used.")]
DEFAULT_SECONDS = 3600


def add(name: str, /, *, expires_in: ExpiresIn = DEFAULT_SECONDS, as_json: Json = False) -> None:
    """Add a host, and print its join string: a secret that is good once, for `hostler worker host --join`.

    The same name again prints another one for a host that has not joined yet, and ends the one before it.

    :param name: What the host is called.
    """
    _invite("/v1/hosts", {"name": name, "join_expires_in_seconds": expires_in}, as_json=as_json)


def replace(name: str, /, *, expires_in: ExpiresIn = DEFAULT_SECONDS, as_json: Json = False) -> None:
    """Let a machine take a host's place, with its state directory or an empty one; print what it joins with.

    The credential that the host has ends when the join string is used.

    :param name: Name or id.
    """
    _invite(f"/v1/hosts/{segment(name)}/replace", {"join_expires_in_seconds": expires_in}, as_json=as_json)


def revoke(name: str, /, *, as_json: Json = False) -> None:
    """End a host's credential and its join string; its guests run on, and nothing is told to it any more.

    :param name: Name or id.
    """
    with Api() as api:
        host = api.call("POST", f"/v1/hosts/{segment(name)}/revoke")
    if as_json:
        print_json(host)
    else:
        say(f"{host['name']} has no credential any more; `hostler host replace {host['name']}` lets it join again")


def _invite(path: str, body: Document, *, as_json: bool) -> None:
    with Api() as api:
        invited = api.call("POST", path, body=body)
    if as_json:
        print_json(invited)
        return
    # Alone on standard output: it goes into a file, 0600, or a pipe.
    sys.stdout.write(f"{invited['join']}\n")
    say(
        f"{invited['name']} joins with it until {moment(invited['join_expires_at'])}: on the host, as root, "
        "`hostler worker host --join FILE`, or `--join -` and this line on standard input"
    )
