"""Give up a host that is dead."""

from __future__ import annotations

import sys

from cli.client import Api
from cli.document import Document
from cli.options import Json
from cli.output import moment, print_facts, print_json, print_table, say
from cli.room import describe_room
from cli.vm_create import segment


def forget(name: str, /, *, confirm: str | None = None, as_json: Json = False) -> None:
    """Give up a host that is dead, with all VMs on it: their names and what they hold of it are free at once.

    Without --confirm it says what would be released, and does nothing. The host must have been silent for ten minutes.
    What it still runs is stopped and kept if it returns.

    :param name: Name or id.
    :param confirm: The host's name once more: do it.
    """
    with Api() as api:
        host = api.get(f"/v1/hosts/{segment(name)}")
        if confirm is None:
            released = api.list("/v1/vms", host=host["name"])["items"]
            tell(host, released, as_json=as_json)
            return
        after = api.call("POST", f"/v1/hosts/{host['id']}/forget", body={"name": confirm})
    if as_json:
        print_json(after)
    else:
        say(f"{after['name']} is given up since {moment(after.get('forgotten_at'))}")
        say(f"`hostler host show {after['id']}` lists its VMs for 30 days, and what it still runs if it returns")


def tell(host: Document, released: list[Document], *, as_json: bool) -> None:
    """Say what giving up a host releases."""
    if as_json:
        print_json({"host": host, "releases": released})
        return
    heard = moment(host.get("last_report_at")) or "never"
    print_facts([("host", host.get("name")), ("last heard", heard), *describe_room(host)])
    sys.stdout.write("\nwould be released\n")
    rows = (tuple(vm.get(key) for key in ("project", "name", "phase", "id")) for vm in released)
    print_table(("PROJECT", "NAME", "PHASE", "ID"), rows, empty="no VM is on this host")
    say(f"nothing was done: `hostler host forget {host['name']} --confirm {host['name']}` gives it up for good")
