"""One VM's attachment to its host's network, and what was found of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address

from drivers.names import HostNames
from drivers.network.addresses import is_guest_address
from model.errors import Invalid
from model.firewall import OPEN, Firewall

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}", re.ASCII)


@dataclass(frozen=True)
class Attachment:
    """What a VM has on its host's network. mac: lower case with colons. tap: a name that HostNames gives.

    simulated: of a guest that is only told of, on no link of the kernel. firewall: what is let through.
    """

    vm_id: str
    project: str
    mac: str
    tap: str
    address: IPv4Address
    simulated: bool = False
    firewall: Firewall = OPEN


@dataclass(frozen=True)
class AttachmentState:
    """What is there of an attachment: each part as wanted, and `matches` when all are and nothing contradicts."""

    tap: bool
    firewall: bool
    reservation: bool
    matches: bool


@dataclass(frozen=True)
class NetworkInventory:
    """What a host holds for VMs, each as a line of text: equal before and after means that nothing was left."""

    taps: frozenset[str]
    reservations: frozenset[str]
    elements: frozenset[str]
    """Of the firewall's sets: family, set, value."""

    def mentions(self, *words: str) -> frozenset[str]:
        """Return every line that holds one of the words: to prove that a VM is gone."""
        lines = self.taps | self.reservations | self.elements
        return frozenset(line for line in lines if any(word in line.split() for word in words))


def check(names: HostNames, a: Attachment) -> None:
    """Raise Invalid unless every part is a plain name that may go into kernel calls and generated lines (S-20)."""
    check_parts(names, vm_id=a.vm_id, tap=a.tap, mac=a.mac)
    if _PROJECT.fullmatch(a.project) is None:
        raise Invalid(f"project {a.project[:64]!r} is not a name that the network takes")
    if not is_guest_address(names.subnet, a.address):
        raise Invalid(f"address {a.address} is none that a VM in {names.subnet} may have")


def check_parts(names: HostNames, *, vm_id: str, tap: str, mac: str) -> None:
    """Raise Invalid unless id, tap and MAC are plain and this installation's own."""
    if _ID.fullmatch(vm_id) is None:
        raise Invalid(f"VM id {vm_id[:64]!r} is not a name that the network takes")
    if not names.owns_tap(tap):
        raise Invalid(f"tap {tap[:16]!r} is not one of this installation: its taps begin with {names.tap_prefix}")
    if _MAC.fullmatch(mac) is None or mac == names.gateway_mac:
        raise Invalid(f"MAC {mac[:18]!r} is none that a VM may have: a lower-case unicast address is needed")
