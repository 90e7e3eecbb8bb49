"""The names that one installation takes from its host, so that several live side by side."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from model.errors import Invalid
from model.ids import mac_address, tap_name

GATEWAY_MAC = "02:48:53:54:4c:52"
"""The bridge's MAC on every host: a guest that was restored or moved keeps its gateway's neighbour entry (N-1)."""

LINK_NAME_LIMIT = 15
"""IFNAMSIZ of Linux without its final zero."""

_BRIDGE = re.compile(r"[a-z][a-z0-9]{1,14}", re.ASCII)
_TABLE = re.compile(r"[a-z][a-z0-9_]{0,30}", re.ASCII)
_TAP_PREFIX = re.compile(r"[a-z]{1,3}", re.ASCII)
_CGROUP = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
_NAMESPACE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,62}", re.ASCII)
_SUBNET = IPv4Network("10.84.0.0/24")
_CLOSED = tuple(IPv4Network(n) for n in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"))


@dataclass(frozen=True)
class HostNames:
    """Name everything that an installation owns on its host outside its state directory.

    Errors: Invalid, when a name does not fit its narrow pattern, or two of them would meet.
    """

    bridge: str = "hostler0"
    table: str = "hostler"
    """nftables tables of this name, in the families bridge and inet."""
    tap_prefix: str = "hst"
    """What all taps of this installation begin with, and no other link of the host does."""
    cgroup: str = "hostler"
    uid_base: int = 200_000
    uid_count: int = 10_000
    subnet: IPv4Network = _SUBNET
    netns: str | None = None
    """A named network namespace (/run/netns); None: the worker's own."""

    def __post_init__(self) -> None:
        _match("bridge", self.bridge, _BRIDGE)
        _match("nftables table", self.table, _TABLE)
        _match("tap prefix", self.tap_prefix, _TAP_PREFIX)
        _match("cgroup", self.cgroup, _CGROUP)
        if self.netns is not None:
            _match("network namespace", self.netns, _NAMESPACE)
        if self.bridge.startswith(self.tap_prefix):
            raise Invalid(f"bridge {self.bridge} begins with the tap prefix {self.tap_prefix}: choose another")
        self._check_users()
        self._check_subnet()

    def _check_users(self) -> None:
        # 65534 is nobody, and 2^31 upwards is read as negative by old programs.
        if not (self.uid_base >= 100_000 and self.uid_count >= 1 and self.uid_base + self.uid_count <= 2**31):
            raise Invalid("the users of guests must lie between 100000 and 2147483647: choose another range")

    def _check_subnet(self) -> None:
        if not 16 <= self.subnet.prefixlen <= 29:
            raise Invalid(f"subnet {self.subnet}: its prefix must be from /16 to /29")
        if any(self.subnet.overlaps(closed) for closed in _CLOSED):
            raise Invalid(f"subnet {self.subnet} overlaps addresses that no guest can have: choose another")

    @property
    def gateway(self) -> IPv4Address:
        """Return the bridge's own address: the subnet's first."""
        return self.subnet.network_address + 1

    @property
    def gateway_mac(self) -> str:
        """Return the bridge's MAC, the same on every host."""
        return GATEWAY_MAC

    @property
    def users(self) -> range:
        """Return the uids of guests; each is its own gid too."""
        return range(self.uid_base, self.uid_base + self.uid_count)

    def tap(self, vm_id: str) -> str:
        """Return the name of a VM's tap."""
        return tap_name(self.tap_prefix, vm_id)

    def mac(self, vm_id: str) -> str:
        """Return a VM's MAC address, as its row has it unless that one was taken (L-C13)."""
        return mac_address(vm_id)

    def owns_tap(self, link: str) -> bool:
        """Tell whether a link's name is one that this installation gives to taps."""
        return len(link) <= LINK_NAME_LIMIT and re.fullmatch(self.tap_prefix + "[0-9a-z]+", link, re.ASCII) is not None


def _match(what: str, value: str, pattern: re.Pattern[str]) -> None:
    if pattern.fullmatch(value) is None:
        raise Invalid(f"{what} {value[:64]!r} is not a name that Hostler takes: it must match {pattern.pattern}")
