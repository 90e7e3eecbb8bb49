"""The host's bridge and the persistent taps of its VMs, by rtnetlink(7)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError

from drivers.names import HostNames
from drivers.network.attachment import Attachment
from drivers.network.namespace import run_inside, run_inside_async
from model.errors import Busy, Conflict, StepFailed

_TUNSETIFF, _TUNSETPERSIST = 0x400454CA, 0x400454CB
_TAP_FLAGS = 0x0002 | 0x1000 | 0x4000  # IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
_IFF_UP = 0x1
_ALIAS = "hostler:"

# Multicast snooping off: guests could feign a router (S-24). nf_call_iptables on for this bridge alone: frames between
# two guests then pass the inet tables as well, whatever the host's own default is, and connections are tracked there.
# The group mask: frames to 01:80:c2:00:00:03 to 0f go through the bridge's rules (and end there). Without it the kernel
# learns the source of those to :0e (LLDP) and hands them to the host, past all rules, as if its own link were the tap.
_BRIDGE_SETTINGS = {"br_mcast_snooping": 0, "br_nf_call_iptables": 1, "br_stp_state": 0, "br_group_fwd_mask": 0xFFF8}
_BRIDGE_SHOWN = ("IFLA_BR_MCAST_SNOOPING", "IFLA_BR_NF_CALL_IPTABLES", "IFLA_BR_STP_STATE", "IFLA_BR_GROUP_FWD_MASK")

Guard = Callable[[], None]


@dataclass(frozen=True)
class Link:
    """One link of the namespace as the kernel shows it."""

    index: int
    name: str
    kind: str | None
    alias: str
    mac: str
    master: int | None
    up: bool
    settings: tuple[int | None, ...]
    """Of a bridge, in the order of the settings above."""


class Links:
    """Make bridge and taps match. owner: the installation's mark, kept in each link's alias."""

    def __init__(self, names: HostNames, owner: str) -> None:
        self._names = names
        self._alias = f"{_ALIAS}{owner}"

    async def read(self) -> dict[str, Link]:
        """Read all links of the namespace by name."""
        async with self._route("read the host's links") as ip:
            return await _read(ip)

    def check_owner(self, links: dict[str, Link]) -> None:
        """Raise Conflict when the bridge, or a link with our prefix, is not this installation's."""
        bridge = links.get(self._names.bridge)
        if bridge is not None and not self._is_ours(bridge):
            # One that died between making the bridge and signing it left it with our MAC and nothing else.
            unsigned = not bridge.alias and bridge.kind == "bridge" and bridge.mac == self._names.gateway_mac
            if not unsigned or any(link.master == bridge.index for link in links.values()):
                raise Conflict(
                    f"bridge {bridge.name} is held by another installation or program: "
                    "choose another bridge in the settings, or remove it"
                )
        for link in links.values():
            if self._names.owns_tap(link.name) and link.alias.startswith(_ALIAS) and not self._is_ours(link):
                raise Conflict(
                    f"link {link.name} is held by another installation: choose another tap prefix than "
                    f"{self._names.tap_prefix} in the settings"
                )

    async def ensure_bridge(self) -> int:
        """Make the bridge match and take our own taps onto it again; return its index."""
        names = self._names
        async with self._route(f"set up the bridge {names.bridge}") as ip:
            links = await _read(ip)
            self.check_owner(links)
            await self._check_subnet(ip, links)
            bridge = links.get(names.bridge)
            if bridge is None:
                await ip.link("add", ifname=names.bridge, kind="bridge", address=names.gateway_mac, **_BRIDGE_SETTINGS)
                bridge = (await _read(ip))[names.bridge]
            if bridge.alias != self._alias:
                await ip.link("set", index=bridge.index, ifalias=self._alias)
            if bridge.settings != tuple(_BRIDGE_SETTINGS.values()):
                await ip.link("set", index=bridge.index, kind="bridge", **_BRIDGE_SETTINGS)
            if bridge.mac != names.gateway_mac:
                await ip.link("set", index=bridge.index, address=names.gateway_mac)
            await self._ensure_address(ip, bridge.index)
            for link in links.values():
                if link.kind == "tun" and link.master is None and self._is_ours(link):
                    await ip.link("set", index=link.index, master=bridge.index)
            return bridge.index

    async def raise_bridge(self) -> None:
        """Set the bridge up, once its sysctls and the firewall are there."""
        async with self._route(f"set the bridge {self._names.bridge} up") as ip:
            bridge = (await _read(ip)).get(self._names.bridge)
            if bridge is None:
                raise StepFailed(f"the bridge {self._names.bridge} vanished while it was set up")
            if not bridge.up:
                await ip.link("set", index=bridge.index, state="up")

    async def ensure_tap(self, a: Attachment, guard: Guard, links: dict[str, Link]) -> bool:
        """Make the VM's tap match; tell whether it was made."""
        async with self._route(f"set up the tap {a.tap}") as ip:
            link, bridge = links.get(a.tap), links.get(self._names.bridge)
            if bridge is None:
                raise StepFailed(f"the bridge {self._names.bridge} vanished while a tap was set up")
            if link is not None and (link.kind != "tun" or (link.alias and link.alias != self._tap_alias(a.vm_id))):
                raise Conflict(f"tap {a.tap} is held by something else than VM {a.vm_id}: remove that link")
            made = link is None
            if link is None:
                guard()
                await run_inside_async(self._names.netns, lambda: _make_tap(a.tap))
                link = (await _read(ip, a.tap))[a.tap]
            if not self._is_wanted(link, a.vm_id, bridge):
                guard()
                await run_inside_async(self._names.netns, lambda: _silence(a.tap))
                with _refusing_vanished(a.tap):
                    await ip.link(
                        "set", index=link.index, ifalias=self._tap_alias(a.vm_id), master=bridge.index, state="up"
                    )
            return made

    async def remove_tap(self, tap: str, vm_id: str, guard: Guard) -> None:
        """Remove a VM's tap; that it is absent, or another's, is as good."""
        async with self._route(f"remove the tap {tap}") as ip:
            link = (await _read(ip)).get(tap)
            if link is None or link.kind != "tun" or link.alias not in ("", self._tap_alias(vm_id)):
                return
            guard()
            with _accepting(errno.ENODEV, errno.EINVAL):
                await ip.link("del", index=link.index)

    async def forget_neighbour(self, address: IPv4Address, guard: Guard) -> None:
        """Remove what the host learned about an address on its bridge (D4)."""
        async with self._route(f"forget the neighbour {address}") as ip:
            bridge = (await _read(ip)).get(self._names.bridge)
            if bridge is None:
                return
            entries: list[Any] = [n async for n in await ip.neigh("dump", family=2, ifindex=bridge.index)]
            if any(n.get("dst") == str(address) and n.get("ifindex") == bridge.index for n in entries):
                guard()
                with _accepting(errno.ENOENT, errno.ENODEV):
                    await ip.neigh("del", dst=str(address), ifindex=bridge.index)

    def is_wanted(self, links: dict[str, Link], a: Attachment) -> bool:
        """Tell whether a VM's tap is there, on our bridge, up and signed."""
        link, bridge = links.get(a.tap), links.get(self._names.bridge)
        return link is not None and bridge is not None and self._is_wanted(link, a.vm_id, bridge)

    def taps(self, links: dict[str, Link]) -> list[Link]:
        """Return our taps: with our prefix, and signed by us or on our bridge."""
        bridge = links.get(self._names.bridge)
        index = None if bridge is None else bridge.index
        found = (link for link in links.values() if self._names.owns_tap(link.name) and link.kind == "tun")
        return sorted(
            (link for link in found if self._is_ours(link) or (index is not None and link.master == index)),
            key=lambda link: link.name,
        )

    def open_tap(self, tap: str) -> int:
        """Open an existing tap for a hypervisor. Raises Busy when one has it open, or it is gone."""
        return run_inside(self._names.netns, lambda: _open_existing(tap))

    async def addresses(self) -> list[str]:
        """Return the bridge's IPv4 addresses with their prefixes."""
        async with self._route("read the bridge's addresses") as ip:
            bridge = (await _read(ip)).get(self._names.bridge)
            return [] if bridge is None else sorted(await _addresses(ip, bridge.index))

    def _is_ours(self, link: Link) -> bool:
        return link.alias == self._alias or link.alias.startswith(self._alias + ":")

    def _is_wanted(self, link: Link, vm_id: str, bridge: Link) -> bool:
        signed = link.alias == self._tap_alias(vm_id)
        return link.kind == "tun" and link.master == bridge.index and link.up and signed

    def _tap_alias(self, vm_id: str) -> str:
        return f"{self._alias}:{vm_id}"

    async def _check_subnet(self, ip: Any, links: dict[str, Link]) -> None:
        names = {link.index: link.name for link in links.values()}
        async for message in await ip.addr("dump", family=2):
            link = names.get(message["index"])
            network = IPv4Network(f"{message.get('address')}/{message['prefixlen']}", strict=False)
            if link != self._names.bridge and network.overlaps(self._names.subnet):
                raise Conflict(
                    f"subnet {self._names.subnet} is in use: link {link} has {network}; "
                    "choose another subnet in the settings"
                )

    async def _ensure_address(self, ip: Any, index: int) -> None:
        names = self._names
        wanted = f"{names.gateway}/{names.subnet.prefixlen}"
        found = await _addresses(ip, index)
        for stale in found - {wanted}:
            address, _, length = stale.partition("/")
            await ip.addr("del", index=index, address=address, prefixlen=int(length))
        if wanted not in found:
            await ip.addr("add", index=index, address=str(names.gateway), prefixlen=names.subnet.prefixlen)

    @contextlib.asynccontextmanager
    async def _route(self, wish: str) -> AsyncGenerator[Any]:
        # pyroute2 builds its calls at run time and so has no types: what it answers is narrowed in `_read`.
        try:
            async with AsyncIPRoute(netns=self._names.netns) as ip:
                yield ip
        except NetlinkError as error:
            raise StepFailed(f"cannot {wish}: the kernel refused ({errno.errorcode.get(_code(error))})") from error
        except OSError as error:
            raise StepFailed(f"cannot {wish}: the network namespace cannot be reached") from error


async def _read(ip: Any, name: str | None = None) -> dict[str, Link]:
    links: dict[str, Link] = {}
    messages = [m async for m in await ip.link("dump")] if name is None else await ip.link("get", ifname=name)
    for message in messages:
        data: Any = message.get(("linkinfo", "data"))
        kind: str | None = message.get(("linkinfo", "kind"))
        shown: list[int | None] = [data.get(n) if kind == "bridge" and data else None for n in _BRIDGE_SHOWN]
        link = Link(
            index=message["index"],
            name=message.get("ifname"),
            kind=kind,
            alias=message.get("ifalias") or "",
            mac=str(message.get("address") or ""),
            master=message.get("master"),
            up=bool(message["flags"] & _IFF_UP),
            settings=tuple(shown),
        )
        links[link.name] = link
    return links


async def _addresses(ip: Any, index: int) -> set[str]:
    messages: list[Any] = [m async for m in await ip.addr("dump", family=2, index=index)]
    return {f"{m.get('address')}/{m['prefixlen']}" for m in messages if m["index"] == index}


@contextlib.contextmanager
def _accepting(*codes: int) -> Generator[None]:
    try:
        yield
    except NetlinkError as error:
        if _code(error) not in codes:
            raise


@contextlib.contextmanager
def _refusing_vanished(tap: str) -> Generator[None]:
    """Raise Busy for a link that was seen and is gone: the kernel still removes it, the step is tried again (C6)."""
    try:
        yield
    except NetlinkError as error:
        if _code(error) != errno.ENODEV:
            raise
        raise Busy(f"the kernel still removes an earlier tap {tap}: trying again") from error


def _code(error: Any) -> int:
    return int(error.code)


def _make_tap(name: str) -> None:
    descriptor = _attach(name)
    try:
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)


def _silence(name: str) -> None:
    # The host itself is no neighbour on a tap: without this it gives each an IPv6 address and talks to the guest.
    setting = Path("/proc/sys/net/ipv6/conf") / name / "disable_ipv6"
    if setting.exists():
        setting.write_text("1")


def _open_existing(name: str) -> int:
    try:
        # TUNSETIFF would make a tap that is not there, on no bridge and gone with its descriptor.
        socket.if_nametoindex(name)
    except OSError as error:
        raise Busy(f"tap {name} is not there any more: trying again") from error
    return _attach(name)


def _attach(name: str) -> int:
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise StepFailed("taps cannot be made: the host has no usable tun device") from error
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_FLAGS))
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EBUSY:
            raise Busy(f"tap {name} is still open in a process that has not ended: trying again") from error
        raise StepFailed(f"tap {name} cannot be opened: the kernel refused") from error
    return descriptor
