"""Make, list and end the tokens that the API is called with."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document
from cli.options import Json, read_duration
from cli.output import age, moment, print_json, print_table, say
from cli.vm_create import segment

_COLUMNS = ("NAME", "ROLE", "PROJECT", "MADE BY", "USED", "ENDS", "ID")
_ExpiresIn = Annotated[str, Parameter(name="--expires-in", help="How long it is good for, as 12h or 30d.")]


def create(
    name: str,
    /,
    *,
    role: Literal["admin", "operator", "viewer"] = "operator",
    project: str | None = None,
    expires_in: _ExpiresIn = "90d",
    as_json: Json = False,
) -> None:
    """Make a token with no more rights than yours, and print it: a secret that is shown this once.

    :param name: What it is for: a DNS label.
    :param role: viewer looks, operator changes, admin adds hosts and admins, too.
    :param project: Good for this project alone. Default: for all that yours is good for.
    """
    lifetime = read_duration(expires_in, "--expires-in")
    body: Document = {"name": name, "role": role}
    if lifetime is not None:
        body["expires_in_seconds"] = int(lifetime.total_seconds())
    if project is not None:
        body["project"] = project
    with Api() as api:
        made = api.call("POST", "/v1/tokens", body=body)
    if as_json:
        print_json(made)
        return
    sys.stdout.write(f"{made['token']}\n")  # alone on standard output: it goes into a file, 0600, or a pipe
    say(f"{name} is {reach(made)} until {moment(made['expires_at'])}: use it as HOSTLER_TOKEN")


def ls(*, as_json: Json = False) -> None:
    """List tokens, those that have ended too."""
    with Api() as api:
        found = api.list("/v1/tokens")
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, map(row, found["items"]), empty="there are no tokens")


def row(token: Document) -> tuple[object, ...]:
    """Make a token's row of the table."""
    used, revoked = age(token.get("last_used_at")), token.get("revoked_at")
    return (
        token.get("name") or "-",
        token.get("role"),
        token.get("project") or "all",
        token.get("maker"),
        f"{used} ago" if used else "never",
        f"revoked {moment(revoked)}" if revoked else moment(token.get("expires_at")),
        token.get("id"),
    )


def revoke(token_id: str, /, *, as_json: Json = False) -> None:
    """End a token at once.

    :param token_id: Its id, as `hostler token ls` shows it; never the token itself.
    """
    with Api() as api:
        ended = api.call("DELETE", f"/v1/tokens/{segment(token_id)}")
    if as_json:
        print_json(ended)
    else:
        say(f"the token {ended.get('name') or ended['id']} has ended")


def reach(token: Document) -> str:
    """Say what a token is good for."""
    return f"{token['role']} of " + (f"project {token['project']}" if token.get("project") else "every project")
