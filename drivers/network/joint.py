"""A host's own network namespace, joined to the machine by one pair of links: several hosts on one machine.

Inside, the machine's loopback ports that are named answer on loopback, too, as on the machine itself: what is sent to
them is translated onto the link and, at its other end, back to loopback. So the control plane listens nowhere else, and
with the link cut nothing of the host reaches it. Nothing else of the machine is open to the host or its guests; what
is beyond the machine is reached as by a router.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from pyroute2 import AsyncIPRoute
from pyroute2 import netns as _netns
from pyroute2.netlink.exceptions import NetlinkError

from drivers.network.namespace import namespace_path, run_inside_async
from drivers.network.nft import run_nft
from drivers.threads import in_thread
from model.errors import StepFailed

INSIDE = "to-control"
"""The link's name inside: no tap's, since those have no hyphen."""

kernel: Any = _netns
"""pyroute2 builds its calls at run time and so has no types."""

_SYSCTLS = Path("/proc/sys/net/ipv4")
Json = dict[str, Any]


@dataclass(frozen=True)
class Joint:
    """Name a host's namespace and what joins it.

    link: the machine's end. network: a /30, the machine's address first. table: nftables tables of this name, in the
    family ip, on both sides. ports: TCP ports of the machine's loopback that the host reaches.
    """

    netns: str
    link: str
    network: IPv4Network
    table: str
    ports: tuple[int, ...]

    @property
    def machine(self) -> IPv4Address:
        """Return the address of the machine's end."""
        return self.network.network_address + 1

    @property
    def host(self) -> IPv4Address:
        """Return the address of the host's end."""
        return self.network.network_address + 2


async def ensure_joint(joint: Joint) -> None:
    """Make namespace, links and translation match; may be repeated. Errors: StepFailed, when the kernel refuses."""
    if not namespace_path(joint.netns).exists():
        await in_thread(kernel.create, joint.netns)
    async with _links(joint, None) as machine, _links(joint, joint.netns) as inside:
        if not await inside.link_lookup(ifname=INSIDE):
            for index in await machine.link_lookup(ifname=joint.link):  # what is left of another namespace
                await machine.link("del", index=index)
            peer = {"ifname": INSIDE, "net_ns_fd": joint.netns}
            await machine.link("add", ifname=joint.link, kind="veth", peer=peer)
        await _set_up(machine, joint.link, joint.machine)
        await _set_up(inside, INSIDE, joint.host)
        await _set_up(inside, "lo", None)
        await run_inside_async(joint.netns, lambda: _write(f"conf/{INSIDE}/route_localnet"))
        await in_thread(_write, f"conf/{joint.link}/route_localnet")
        await in_thread(_write, "ip_forward")
        await inside.route("replace", dst="default", gateway=str(joint.machine))
    await _apply(joint.netns, _inner_table(joint))
    await _apply(None, _outer_table(joint))


async def remove_joint(joint: Joint) -> None:
    """Remove the namespace and its links; what is absent is as good."""
    async with _links(joint, None) as machine:
        for index in await machine.link_lookup(ifname=joint.link):
            with contextlib.suppress(NetlinkError):  # it may have gone with its namespace meanwhile
                await machine.link("del", index=index)
    with contextlib.suppress(FileNotFoundError):
        await in_thread(kernel.remove, joint.netns)
    await _apply(None, _table(joint)[:2])


async def _set_up(ip: Any, name: str, address: IPv4Address | None) -> None:
    (index,) = await ip.link_lookup(ifname=name)
    if address is not None:
        await ip.addr("replace", index=index, address=str(address), prefixlen=30)
    await ip.link("set", index=index, state="up")


@contextlib.asynccontextmanager
async def _links(joint: Joint, netns: str | None) -> AsyncGenerator[Any]:
    """Speak rtnetlink(7) inside a namespace, or on the machine."""
    try:
        async with AsyncIPRoute(netns=netns) as ip:
            yield ip
    except NetlinkError as error:
        code: Any = error.code
        why = errno.errorcode.get(code, "?")
        raise StepFailed(f"cannot join namespace {joint.netns}: the kernel refused ({why})") from error
    except OSError as error:
        raise StepFailed(f"cannot join namespace {joint.netns}: {error.strerror}") from error


def _write(key: str) -> None:
    """Set a switch of the kernel's unless it is set: writing ip_forward resets others even when it changes nothing."""
    path = _SYSCTLS / key
    if path.read_text().strip() != "1":
        path.write_text("1")


def _table(joint: Joint) -> list[Json]:
    table: Json = {"table": {"family": "ip", "name": joint.table}}
    # Adding before deleting makes the deletion succeed when there was none.
    return [{"add": table}, {"delete": table}, {"add": table}]


def _inner_table(joint: Joint) -> list[Json]:
    """Send what is meant for the machine's ports over the link."""
    add = _Adding(joint)
    add.chain("ports", "output", "nat", -100)
    add.rule("ports", *_to("127.0.0.1", joint.ports), {"dnat": {"addr": str(joint.machine)}})
    add.chain("leave", "postrouting", "nat", 90)
    loopback = {"prefix": {"addr": "127.0.0.0", "len": 8}}
    add.rule("leave", _is(_meta("oifname"), INSIDE), _is(_ip("saddr"), loopback), {"snat": {"addr": str(joint.host)}})
    return add.commands


def _outer_table(joint: Joint) -> list[Json]:
    """Take what came for the ports to loopback, refuse the rest that is for the machine, translate what goes on."""
    add = _Adding(joint)
    ours = _is(_meta("iifname"), joint.link)
    add.chain("ports", "prerouting", "nat", -100)
    add.rule("ports", ours, *_to(str(joint.machine), joint.ports), {"dnat": {"addr": "127.0.0.1"}})
    add.chain("closed", "input", "filter", -10)
    translated = {"match": {"op": "in", "left": {"ct": {"key": "status"}}, "right": "dnat"}}
    known = {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}
    for accepted in (translated, known):
        add.rule("closed", ours, accepted, {"accept": None})
    add.rule("closed", ours, {"drop": None})
    add.chain("leave", "postrouting", "nat", 100)
    add.rule("leave", _is(_ip("saddr"), str(joint.host)), _is(_meta("oifname"), joint.link, "!="), {"masquerade": None})
    return add.commands


class _Adding:
    def __init__(self, joint: Joint) -> None:
        self._where = {"family": "ip", "table": joint.table}
        self.commands = _table(joint)

    def chain(self, name: str, hook: str, kind: str, priority: int) -> None:
        spec = {"type": kind, "hook": hook, "prio": priority, "policy": "accept"}
        self.commands.append({"add": {"chain": {**self._where, "name": name, **spec}}})

    def rule(self, chain: str, *expressions: Json) -> None:
        self.commands.append({"add": {"rule": {**self._where, "chain": chain, "expr": list(expressions)}}})


def _to(address: str, ports: tuple[int, ...]) -> list[Json]:
    wanted = {"set": list(ports)}
    port = {"payload": {"protocol": "tcp", "field": "dport"}}
    return [_is(_ip("daddr"), address), _is(port, wanted)]


def _is(left: Json, right: Any, operator: str = "==") -> Json:
    return {"match": {"op": operator, "left": left, "right": right}}


def _meta(key: str) -> Json:
    return {"meta": {"key": key}}


def _ip(field: str) -> Json:
    return {"payload": {"protocol": "ip", "field": field}}


async def _apply(netns: str | None, commands: list[Json]) -> None:
    """Apply one transaction in a namespace."""
    code, _, err = await run_nft(netns, "-f", "-", stdin=json.dumps({"nftables": commands}).encode())
    if code != 0:
        cause = RuntimeError(err.decode(errors="replace")[:2000])
        raise StepFailed("the kernel refused the tables that join a host's namespace") from cause
