"""Say what is wrong, worst first."""

from __future__ import annotations

import sys

from cli.client import Api
from cli.document import Document, documents
from cli.failures import Unsuccessful
from cli.options import Json
from cli.output import moment, print_json, say


def doctor(*, as_json: Json = False) -> None:
    """Say what is wrong in the fleet, worst first, what is done about it and what you can do.

    Ends with 1 when anything is critical.
    """
    with Api() as api:
        found = api.get("/v1/conditions")
    items = documents(found, "items")
    if as_json:
        print_json(found)
    elif not items:
        say("nothing is wrong")
    else:
        sys.stdout.write("\n".join(map(describe, items)))
    if any(each["severity"] == "critical" for each in items):
        raise Unsuccessful("something is critical")


def describe(found: Document) -> str:
    """Write one condition: with what, since when; what it is, what is done about it, what to do."""
    kind = str(found["object"]).partition("/")[0]
    named = f"{kind} {found['name']}" if found.get("name") else str(found["object"])
    since = moment(found.get("since"))
    head = f"{found['severity']}: {found['condition']}, {named}" + (f", since {since}" if since else "")
    told = (("what", "what"), ("meanwhile", "meanwhile"), ("you can", "advice"))
    return "\n".join((head, *(f"    {label:<11}{found[key]}" for label, key in told), ""))
