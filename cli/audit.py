"""Look at the audit trail, and check that it is what was written."""

from __future__ import annotations

import json

from cli.client import Api
from cli.document import Document
from cli.options import Json
from cli.output import moment, print_json, print_table, say
from model.errors import Conflict

_COLUMNS = ("AT", "WHO", "FROM", "DID", "TO", "CHANGE")


def ls(*, object: str | None = None, actor: str | None = None, limit: int = 50, as_json: Json = False) -> None:
    """List what was changed, newest first.

    :param object: Only what was done to this, such as `vm/ID` or `host/ID`.
    :param actor: Only what this one did, such as `token/ID`.
    :param limit: At most so many entries.
    """
    with Api() as api:
        found = api.get("/v1/audit", object=object, actor=actor, limit=limit)
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, map(row, found["items"]), empty="nothing was changed yet")


def row(entry: Document) -> tuple[object, ...]:
    """Make an entry's row of the table."""
    change = {key: entry[key] for key in ("before", "after") if entry.get(key)}
    told = json.dumps(change, separators=(",", ":")) if change else "-"
    return (*(moment(entry["at"]), entry["actor"], entry.get("origin")), entry["action"], entry["object"], told)


def check(*, head: str | None = None, as_json: Json = False) -> None:
    """Say whether the audit trail is still what was written, and print the hash of its last entry.

    :param head: What an earlier check printed: nothing up to there may have changed since.
    """
    with Api() as api:
        found = api.get("/v1/audit/check", head=head)
    if as_json:
        print_json(found)
    if found["broken"]:
        raise Conflict(
            f"the audit trail is not what was written: {found['broken']}; the {found['entries']} before it fit together"
        )
    if not as_json:
        say(f"{found['entries']} entries fit together; keep this elsewhere, for --head: {found['head']}")
