"""Settle what a restored database does not know of the hosts, and end the standstill."""

from __future__ import annotations

import sys

from cli.client import Api
from cli.document import Document, documents, things
from cli.failures import Usage
from cli.options import Json
from cli.output import moment, print_facts, print_json, print_table, say
from cli.vm_create import segment
from model.restore import CHOICES, MEANING


def restore(
    *,
    settle: tuple[str, ...] = (),
    project: str | None = None,
    begin: bool = False,
    finish: bool = False,
    as_json: Json = False,
) -> None:
    """Show what a restored database does not know of the hosts; settle it; end the standstill.

    While the database is older than what hosts were ordered last, nothing is booted, stopped or destroyed.

    :param settle: VM=CHOICE, or KIND=CHOICE for all of a kind that are not settled; may be given several times.
    :param project: Whose the VMs are that are adopted now, as their host's record says.
    :param begin: Declare the database restored, moved or new, where that cannot be seen.
    :param finish: Go on from here, once every host was heard and every VM is settled.
    """
    chosen = [_read(pair) for pair in settle]
    with Api() as api:
        if begin:
            api.call("POST", "/v1/restore/begin")
        for what, choice in chosen:
            for item in _named(documents(api.get("/v1/restore"), "items"), what):
                body = {"choice": choice, "host": item.get("host_id")}
                if project is not None:
                    body["project"] = project
                api.call("POST", f"/v1/restore/vms/{segment(str(item['vm_id']))}", body=body)
        found = api.call("POST", "/v1/restore/finish") if finish else api.get("/v1/restore")
    if as_json:
        print_json(found)
    else:
        tell(found)


def _read(pair: str) -> tuple[str, str]:
    what, sign, choice = pair.partition("=")
    if not sign or choice not in MEANING:
        raise Usage(f"--settle takes VM=CHOICE or KIND=CHOICE, where CHOICE is one of {', '.join(MEANING)}")
    return what, choice


def _named(items: list[Document], what: str) -> list[Document]:
    if what in CHOICES:
        return [item for item in items if item.get("kind") == what and item.get("choice") is None]
    found = [item for item in items if what in (item.get("vm_id"), item.get("name"))]
    if not found:
        raise Usage(f"nothing has to be settled of a VM {what}: `hostler restore` lists what has to be")
    return found


def tell(found: Document) -> None:
    """Print where the restore is, what has to be settled, and what to type next."""
    if not found.get("behind"):
        say(f"nothing is being restored; the epoch is {found.get('epoch')}")
        return
    items = documents(found, "items")
    open_ones = [item for item in items if item.get("choice") is None]
    unheard = [
        f"{host.get('name')} (last heard {moment(host.get('last_report_at')) or 'never'})"
        for host in documents(found, "unheard")
    ]
    print_facts(
        [
            ("standing still since", moment(found.get("since"))),
            ("because", found.get("why")),
            ("not heard yet", ", ".join(unheard) or "no host"),
            ("to be settled", f"{len(open_ones)} of {len(items)} VMs"),
        ]
    )
    sys.stdout.write("\n")
    print_table(("VM", "ID", "HOST", "KIND", "WHAT", "CHOICE"), map(_row, items), empty="nothing has to be settled")
    for choice in dict.fromkeys(choice for item in open_ones for choice in things(item, "choices")):
        say(f"{choice}: {MEANING[choice]}")
    say(
        "`hostler restore --settle VM=CHOICE` settles one, `--settle KIND=CHOICE` all of a kind"
        if open_ones
        else "`hostler restore --finish` goes on from here"
    )


def _row(item: Document) -> tuple[object, ...]:
    choices = "|".join(map(str, things(item, "choices")))
    return (
        item.get("name"),
        item.get("vm_id"),
        item.get("host_name"),
        item.get("kind"),
        "; ".join(map(str, things(item, "differs"))),
        item.get("choice") or f"({choices})",
    )
