"""Say what is in the way of an upgrade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cli.client import Api
from cli.document import Document, documents, inner
from cli.failures import Problem, Unsuccessful
from cli.options import Json
from cli.output import print_facts, print_json, print_table, say
from model.versions import VERSION


def check(*, to: str = VERSION, as_json: Json = False) -> None:
    """Name what is in the way of an upgrade, in its order; ends with 1 if anything is.

    :param to: The release that is to be. Default: this command's own.
    """
    with Api() as api:
        found = _ask(api, to)
    obstacles = documents(found, "obstacles")
    if as_json:
        print_json(found)
    else:
        print_facts(facts(found))
        rows = (tuple(each.get(key) for key in ("what", "found", "advice")) for each in obstacles)
        print_table(("IN THE WAY", "FOUND", "TO DO"), rows, empty="")
    if obstacles:
        things = "1 thing is" if len(obstacles) == 1 else f"{len(obstacles)} things are"
        raise Unsuccessful(f"{things} in the way of {to}")
    if not as_json:
        say(f"nothing is in the way of {to}")


def _ask(api: Api, to: str) -> Document:
    try:
        return api.get("/v1/upgrade", to=to)
    except Problem as error:
        if error.http_status != 404:
            raise
        raise Unsuccessful("this control plane is of release 0.1, which cannot tell: docs/upgrades.md does") from None


def facts(found: Document) -> list[tuple[str, object]]:
    """List what runs where."""
    versions = Counter(str(host.get("version") or "unknown") for host in documents(found, "hosts"))
    return [
        ("API", found.get("release")),
        ("migrations", found.get("migrations")),
        ("passes begin on", found.get("build") or "unknown"),
        ("open passes", _count(inner(found, "runs"))),
        ("hosts by release", _count(versions)),
        ("floor", found.get("floor") or "none"),
    ]


def _count(counted: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counted.items())) or "none"
