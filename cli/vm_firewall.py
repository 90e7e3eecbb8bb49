"""Read and write what a VM's firewall lets through."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document, documents, inner
from cli.failures import Usage
from cli.options import Json, NoWait, Timeout
from cli.output import print_json, print_table, say
from cli.vm_change import change
from cli.vm_create import read_firewall

_WAYS = ("inbound", "outbound")
Rules = Annotated[tuple[str, ...], Parameter(negative=())]


def firewall(
    name: Annotated[str, Parameter(help="Name or id.")],
    rules: str | None = None,
    /,
    *,
    inbound: Rules = (),
    outbound: Rules = (),
    enable: Annotated[bool, Parameter(negative=())] = False,
    disable: Annotated[bool, Parameter(negative=())] = False,
    no_wait: NoWait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Show a VM's firewall, or change it: at once, without a restart.

    A rule is written PROTOCOL[:PORTS]@PREFIX[,PREFIX], as tcp:22@192.0.2.0/24, udp:8000-8080@10.0.0.0/8 or
    any@0.0.0.0/0. What is given replaces the rules of that way and enables the firewall; the other way's stay.

    :param rules: The whole firewall as JSON, or a file of it ('-' reads standard input).
    :param inbound: What may come in, from where; may be given several times.
    :param outbound: What may go out, to where; may be given several times.
    :param enable: Drop what no rule lets through.
    :param disable: Let everything through again; the rules are kept.
    """
    if enable and disable:
        raise Usage("give one of --enable and --disable")
    if rules is not None and (inbound or outbound):
        raise Usage("give the rules as JSON, or by --inbound and --outbound")
    if rules is None and not (inbound or outbound or enable or disable):
        _show(name, as_json=as_json)
        return
    ways = zip(_WAYS, (inbound, outbound), strict=True)
    given = {way: [read_rule(each) for each in words] for way, words in ways if words}
    wanted = (read_firewall(rules) if rules is not None else _find(name)) | given
    if enable or disable or inbound or outbound:
        wanted["enabled"] = not disable
    change("PATCH", name, "", {"firewall": wanted}, no_wait=no_wait, timeout=timeout, as_json=as_json)


def read_rule(text: str) -> Document:
    """Read a rule as people write it. Errors: Usage; whether its parts can be is the API's to say."""
    what, at, prefixes = text.partition("@")
    protocol, _, ports = what.partition(":")
    if not at or not protocol or not prefixes:
        raise Usage("a rule is PROTOCOL[:PORTS]@PREFIX[,PREFIX], as tcp:22@192.0.2.0/24")
    rule: dict[str, Any] = {"protocol": protocol, "prefixes": prefixes.split(",")}
    return rule | ({"ports": ports} if ports else {})


def _find(name: str) -> Document:
    with Api() as api:
        return inner(api.get(f"/v1/vms/{api.find_vm_id(name)}"), "firewall")


def _show(name: str, *, as_json: bool) -> None:
    found = _find(name)
    if as_json:
        print_json(found)
        return
    rows = [
        (way, rule.get("protocol"), rule.get("ports") or "all", rule.get("prefixes"))
        for way in _WAYS
        for rule in documents(found, way)
    ]
    print_table(("WAY", "PROTOCOL", "PORTS", "PREFIXES"), rows, empty="it has no rules")
    enabled = found.get("enabled")
    say("enabled: all else is dropped" if enabled else "disabled: everything is let through, within its project")
