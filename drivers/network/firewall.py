"""The installation's own nftables tables: read, made anew, and one element per VM in each set, its chains besides.

Every change is one transaction (`nft -j -f -`), which the kernel takes whole or not at all, and names our tables only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, cast

from drivers.names import HostNames
from drivers.network.attachment import Attachment
from drivers.network.nft import run_nft
from drivers.network.rules import PROJECT_MARKS, SETS, Json, fixed_part, owner_chain
from drivers.network.walls import (
    Chains,
    add_chains,
    as_line,
    chains_of,
    inbound_chain,
    is_own_chain,
    outbound_chain,
    remove_chains,
    tap_of,
    wanted_chains,
)
from model.errors import Conflict, StepFailed


@dataclass(frozen=True)
class Element:
    """One element of a set, or of a map when it has a mark or a chain that it leads to.

    comment: the project, kept by the kernel with the mark.
    """

    family: str
    name: str
    key: tuple[str | int, ...]
    mark: int | None = None
    comment: str | None = None
    chain: str | None = None

    def as_json(self) -> Any:
        """Return it as libnftables-json(5) writes it."""
        value: Any = {"concat": list(self.key)} if len(self.key) > 1 else next(iter(self.key))
        if self.comment is not None:
            value = {"elem": {"val": value, "comment": self.comment}}
        data: Any = self.mark if self.chain is None else {"goto": {"target": self.chain}}
        return value if data is None else [value, data]

    def is_of(self, tap: str) -> bool:
        """Tell whether it names a tap, or leads to a chain of it."""
        return tap in self.key or self.chain in (inbound_chain(tap), outbound_chain(tap))


@dataclass(frozen=True)
class Tables:
    """What the kernel holds in our tables. fixed: all but the VMs' elements and chains, normalised."""

    fixed: str
    elements: frozenset[Element]
    owners: frozenset[str]
    present: frozenset[str]
    chains: Chains = field(default_factory=Chains)

    def projects(self) -> dict[str, int]:
        """Return the mark of each project that has a VM here."""
        return {e.comment: e.mark for e in self.elements if e.comment is not None and e.mark is not None}

    def by_project(self) -> frozenset[str]:
        """Return the elements as lines, with each project's name in place of its mark, which only this boot knows."""
        names = {mark: project for project, mark in self.projects().items()}
        lines: set[str] = set()
        for e in self.elements:
            key = [names.get(k, str(k)) if isinstance(k, int) else k for k in e.key]
            data = [e.comment or "-"] if e.mark is not None else [e.chain] if e.chain is not None else []
            lines.add(" ".join([e.family, e.name, *key, *data]))
        for name, rules in self.chains.items():
            lines.update(f"{tap_of(name)} {name} {number} {line}" for number, line in enumerate(rules or ("-",)))
        return frozenset(lines)


class Firewall:
    """Make our tables match. owner: the installation's mark, kept as the name of an empty chain."""

    def __init__(self, names: HostNames, owner: str) -> None:
        self._names = names
        self._owner = owner
        self._wanted: str | None = None

    async def read(self) -> Tables:
        """Read both tables; an absent one reads as empty."""
        found = await asyncio.gather(*(self._list(family) for family in ("bridge", "inet")))
        objects = [item for listed in found for item in listed]
        return _parse(objects)

    def check_owner(self, tables: Tables) -> None:
        """Raise Conflict when a table of our name is not this installation's."""
        if tables.present and tables.owners != frozenset((owner_chain(self._owner),)):
            raise Conflict(
                f"nftables table {self._names.table} is held by another installation or program: "
                "choose another table in the settings, or remove it"
            )

    async def ensure_rules(self) -> bool:
        """Make both tables anew unless they are as this worker made them, VMs' elements kept; tell whether it did."""
        tables = await self.read()
        self.check_owner(tables)
        if tables.fixed == self._wanted:
            return False
        kept = [*add_chains(self._names.table, tables.chains), *_commands(self._names, "add", tables.elements)]
        await self._apply([*fixed_part(self._names, self._owner), *kept])
        self._wanted = (await self.read()).fixed
        return True

    async def ensure(self, a: Attachment, guard: Callable[[], None], tables: Tables) -> bool:
        """Make the VM's elements and chains match in one transaction, others' claims on its address removed.

        Tells whether it had none. What no rule lets through any more is dropped from that moment on (N-5).
        """
        if any(e.name == "own_mac" and e.key[1] == a.mac and e.key[0] != a.tap for e in tables.elements):
            raise Conflict(f"MAC {a.mac} of VM {a.vm_id} is another VM's on this host")
        wanted = _wanted(a, _mark(tables, a))
        stale = _stale(tables, a) - wanted
        missing = wanted - tables.elements
        chains, found = wanted_chains(a), chains_of(tables.chains, a.tap)
        if stale or missing or chains != found:
            guard()
            names, others = self._names, {name: lines for name, lines in chains.items() if lines != found.get(name)}
            await self._apply(
                [
                    *_commands(names, "delete", stale),
                    *remove_chains(names.table, found.keys() - chains.keys()),
                    *add_chains(names.table, others),
                    *_commands(names, "add", missing),
                ]
            )
        return not any(e.is_of(a.tap) for e in tables.elements)

    async def release(self, tap: str, address: IPv4Address | None, guard: Callable[[], None]) -> frozenset[IPv4Address]:
        """Remove all that names the tap, and its addresses unless another has them; return those addresses."""
        tables = await self.read()
        own = frozenset(e for e in tables.elements if e.is_of(tap))
        chains = chains_of(tables.chains, tap)
        addresses = {str(e.key[2]) for e in own if e.name == "own4"} | ({str(address)} if address else set[str]())
        held = {str(e.key[2]) for e in tables.elements - own if e.name == "own4"}
        freed = addresses - held
        guests = frozenset(e for e in tables.elements if e.name == "guest4" and e.key[0] in freed)
        if own or guests or chains:
            guard()
            commands = _commands(self._names, "delete", own | guests)
            await self._apply([*commands, *remove_chains(self._names.table, chains)])
        return frozenset(IPv4Address(text) for text in freed)

    def is_there(self, tables: Tables, a: Attachment) -> bool:
        """Tell whether all of the VM's elements are there, and its chains as wanted."""
        mark = tables.projects().get(a.project)
        if mark is None or wanted_chains(a) != chains_of(tables.chains, a.tap):
            return False
        return _wanted(a, mark) <= tables.elements

    def matches(self, tables: Tables, a: Attachment) -> bool:
        """Tell whether the VM's elements are there and nothing else names its tap or address."""
        mark = tables.projects().get(a.project)
        return mark is not None and self.is_there(tables, a) and not _stale(tables, a) - _wanted(a, mark)

    async def _list(self, family: str) -> list[Json]:
        code, out, err = await run_nft(self._names.netns, "list", "table", family, self._names.table)
        if code == 0:
            return json.loads(out)["nftables"]
        if b"No such file" in err:
            return []
        raise StepFailed(f"cannot read the {family} table {self._names.table}: nft failed")

    async def _apply(self, commands: list[Json]) -> None:
        order = json.dumps({"nftables": commands}).encode()
        code, _, err = await run_nft(self._names.netns, "-f", "-", stdin=order)
        if code != 0:
            cause = RuntimeError(err.decode(errors="replace")[:2000])
            raise StepFailed(
                f"the kernel refused a change of the tables {self._names.table}: nothing was changed"
            ) from cause


def _parse(objects: list[Json]) -> Tables:
    fixed: list[str] = []
    elements: set[Element] = set()
    owners: set[str] = set()
    present: set[str] = set()
    chains: dict[str, list[str]] = {}
    for item in objects:
        ((kind, value),) = item.items()
        if kind == "metainfo":
            continue
        value.pop("handle", None)
        if kind == "table":
            present.add(value["family"])
        if kind == "counter":
            value |= {"packets": 0, "bytes": 0}
        if kind == "chain" and value["name"].startswith("owner_"):
            owners.add(value["name"])
        if kind == "chain" and is_own_chain(value["name"]):
            chains.setdefault(value["name"], [])
            continue
        if kind == "rule" and is_own_chain(value["chain"]):
            chains.setdefault(value["chain"], []).append(as_line(value["expr"]))
            continue
        if kind in ("set", "map") and (value["family"], value["name"]) in SETS:
            elements.update(_element(value["family"], value["name"], e) for e in value.pop("elem", []))
        fixed.append(json.dumps(item, sort_keys=True))
    rules = {name: tuple(lines) for name, lines in chains.items()}
    return Tables("\n".join(fixed), frozenset(elements), frozenset(owners), frozenset(present), rules)


def _element(family: str, name: str, found: Any) -> Element:
    value: Any = found
    mark: int | None = None
    chain: str | None = None
    comment: str | None = None
    if isinstance(found, list):
        value, data = cast("list[Any]", found)
        if isinstance(data, dict):
            ((_, verdict),) = cast("Json", data).items()
            chain = verdict["target"]
        else:
            mark = data
    if isinstance(value, dict) and "elem" in value:
        described = cast("Json", value)["elem"]
        value, comment = described["val"], described.get("comment")
    key: list[Any] = cast("Json", value)["concat"] if isinstance(value, dict) else [value]
    return Element(family, name, tuple(key), mark, comment, chain)


def _wanted(a: Attachment, mark: int) -> frozenset[Element]:
    behind = ()
    if a.firewall.enabled:
        behind = (
            Element("bridge", "walled", (a.tap,)),
            Element("inet", "inbound4", (str(a.address),), chain=inbound_chain(a.tap)),
            Element("inet", "outbound4", (str(a.address),), chain=outbound_chain(a.tap)),
        )
    return frozenset(
        (
            *behind,
            Element("bridge", "own4", (a.tap, a.mac, str(a.address))),
            Element("bridge", "own_mac", (a.tap, a.mac)),
            Element("bridge", "project", (a.tap,), mark, a.project),
            Element("bridge", "member", (mark, a.tap)),
            Element("inet", "guest4", (str(a.address),)),
        )
    )


def _stale(tables: Tables, a: Attachment) -> frozenset[Element]:
    """Find all that names the tap, its former addresses unless another has them, and others' claims on its address."""
    address = str(a.address)
    claims = frozenset(e for e in tables.elements if e.name == "own4")
    own = frozenset(e for e in tables.elements if e.is_of(a.tap))
    former = {e.key[2] for e in own & claims} - {e.key[2] for e in claims - own}
    guests = frozenset(e for e in tables.elements if e.name == "guest4" and e.key[0] in former)
    led = frozenset(e for e in tables.elements if e.chain is not None and e.key[0] == address)
    return own | guests | led | frozenset(e for e in claims if e.key[2] == address)


def _mark(tables: Tables, a: Attachment) -> int:
    """Find the project's mark, or the lowest that none has; what the tap itself had is free again only afterwards."""
    projects = tables.projects()
    if a.project in projects:
        return projects[a.project]
    used = {e.mark for e in tables.elements} | {e.key[0] for e in tables.elements if e.name == "member"}
    for mark in PROJECT_MARKS:
        if mark not in used:
            return mark
    raise StepFailed("this host has VMs of too many projects")


def _commands(names: HostNames, verb: str, elements: Iterable[Element]) -> list[Json]:
    by_set: dict[tuple[str, str], list[Element]] = {}
    for element in sorted(elements, key=lambda e: (e.family, e.name, [str(part) for part in e.key])):
        by_set.setdefault((element.family, element.name), []).append(element)
    return [
        {
            verb: {
                "element": {"family": family, "table": names.table, "name": name, "elem": [e.as_json() for e in found]}
            }
        }
        for (family, name), found in by_set.items()
    ]
