"""Hold what destroys, or new VMs, and let it go on."""

from __future__ import annotations

from cli.client import Api
from cli.document import Document
from cli.options import Json
from cli.output import moment, print_json, print_table, say


def freeze(*, host: str | None = None, creates: bool = False, show: bool = False, as_json: Json = False) -> None:
    """Hold everything destructive until `hostler unfreeze`; guests run on, deadlines stand still.

    :param host: Only on this host. Default: in the whole fleet.
    :param creates: Refuse new VMs instead.
    :param show: List what is frozen; change nothing.
    """
    with Api() as api:
        if show:
            found: list[Document] = api.get("/v1/freezes")["items"]
            if as_json:
                print_json({"items": found})
            else:
                rows = (
                    (
                        each.get("host_name") or "the fleet",
                        each.get("holds"),
                        each.get("made_by"),
                        moment(each["since"]),
                    )
                    for each in found
                )
                print_table(("WHERE", "HELD", "BY", "SINCE"), rows, empty="nothing is frozen")
            return
        done = api.call("POST", "/v1/freeze", body=_body(host, creates=creates))
    _tell(done, "is frozen", as_json=as_json)


def unfreeze(*, host: str | None = None, creates: bool = False, as_json: Json = False) -> None:
    """End a freeze; what waited for that goes on from there.

    :param host: The one of this host. Default: that of the whole fleet.
    :param creates: The one of new VMs.
    """
    with Api() as api:
        done = api.call("POST", "/v1/unfreeze", body=_body(host, creates=creates))
    _tell(done, "is not frozen any more", as_json=as_json)


def _body(host: str | None, *, creates: bool) -> Document:
    body: Document = {"creates": creates}
    return body if host is None else {**body, "host": host}


def _tell(done: Document, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    where = f"host {done['host_name']}" if done.get("host_name") else "the fleet"
    say(f"{where} {words} ({done.get('holds')}); frozen by {done.get('made_by')} since {moment(done.get('since'))}")
