"""A host's sets: which images it keeps, what else is wanted of it, and how far it has taken that over (H-S1, D-5)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document, documents, inner, things
from cli.failures import Usage
from cli.options import Json
from cli.output import moment, print_facts, print_json
from cli.vm_create import segment

Kind = Literal["privileged-addresses", "wireguard-peers", "gateway-routes"]

_WHY = {
    "host_away": "the host is silent, or has not joined yet",
    "host_outdated": "the host's worker is too old for it: upgrade it",
    "host_below_floor": "the host's worker is older than the fleet allows: upgrade it",
    "behind": "the control plane stands still until `hostler restore` is finished",
    "no_answer": "the host did not answer; it is asked again in a minute",
}


def policy(name: str, /, *images: str, none: bool = False, as_json: Json = False) -> None:
    """Show the images that a host fetches ahead and keeps, or set them: all at once. Others go a day after their use.

    :param name: Name or id of the host.
    :param images: What it is to keep from now on, as public/NAME or PROJECT/NAME.
    :param none: Let it keep none.
    """
    if images and none:
        raise Usage("--none takes no images")
    _tell(name, "image-policies", list(images) if images or none else None, as_json=as_json)


def sets(
    name: str,
    kind: Kind | None = None,
    file: Annotated[str | None, Parameter(help="A JSON list, the whole set; -: standard input.")] = None,
    /,
    *,
    as_json: Json = False,
) -> None:
    """Show a host's sets and how far it has taken them over, or replace one of them, whole.

    :param name: Name or id of the host.
    :param kind: Which set is replaced.
    """
    if (kind is None) != (file is None):
        raise Usage("to replace a set give its name and a file with the whole of it")
    _tell(name, kind, None if file is None else read_list(file), as_json=as_json)


def read_list(file: str) -> list[Any]:
    """Read a JSON list from a file, or standard input. Errors: Usage."""
    try:
        found = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Usage(f"{file}: cannot be read as JSON") from error
    if not isinstance(found, list):
        raise Usage(f"{file}: must hold a JSON list, the whole set")
    return found  # pyright: ignore[reportUnknownVariableType]


def _tell(name: str, kind: str | None, items: list[Any] | None, *, as_json: bool) -> None:
    with Api() as api:
        path = f"/v1/hosts/{segment(name)}/sets"
        found = api.get(path) if items is None else api.call("PUT", f"{path}/{kind}", body={"items": items})
    if as_json:
        print_json(found)
    else:
        print_facts(facts(found))


def facts(found: Document) -> list[tuple[str, object]]:
    """List what is wanted of a host besides its VMs, and what of that is applied or pending."""
    told: list[tuple[str, object]] = [("images kept", ", ".join(map(str, things(found, "image_policies"))) or "none")]
    if things(found, "privileged_addresses"):
        told.append(("privileged addresses", ", ".join(map(str, things(found, "privileged_addresses")))))
    told += [("wireguard peer", _peer(each)) for each in documents(found, "wireguard_peers")]
    told += [
        ("gateway route", f"{each.get('destination')} by {each.get('gateway')}")
        for each in documents(found, "gateway_routes")
    ]
    return told + progress(found)


def progress(found: Document) -> list[tuple[str, object]]:
    """Say how far a host has taken over its sets; nothing where none was ever set."""
    if not found.get("revision"):
        return []
    whole = f"revision {found['revision']}"
    acknowledged = found.get("acknowledged")
    pending = f"pending: {whole}, the host has {acknowledged or 'none yet'}" if found.get("pending") else None
    told: list[tuple[str, object]] = [("sets", pending or f"applied: {whole}, {moment(found.get('synced_at'))}")]
    states = inner(found, "states")
    if states:
        told.append(("sets by kind", ", ".join(f"{key.replace('_', ' ')}: {state}" for key, state in states.items())))
    if found.get("why"):
        told.append(("not synced", _WHY.get(str(found["why"]), found["why"])))
    if found.get("error"):
        told.append(("sync failed", found["error"]))
    seen = things(found, "fenced")
    if len(seen) == 2:
        words = (
            f"the host has seen epoch {seen[0]}, number {seen[1]}: `hostler restore` says whether this store is behind"
        )
        told.append(("sync refused", words))
    return told


def _peer(peer: Document) -> str:
    endpoint = f" at {peer['endpoint']}" if peer.get("endpoint") else ""
    networks = ", ".join(map(str, things(peer, "allowed_networks")))
    return f"{peer.get('public_key')}{endpoint}{f' for {networks}' if networks else ''}"
