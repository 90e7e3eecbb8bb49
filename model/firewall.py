"""What of a VM's traffic is let through, as its user wants it (N-5)."""

from __future__ import annotations

import hashlib
import json
import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Literal

from model.base import Lenient

MOST_PREFIXES = 50
"""The most prefixes of one VM's rules, both ways together."""
Protocol = Literal["any", "tcp", "udp", "icmp"]
_PORTS = re.compile(r"(0|[1-9][0-9]{0,4})(?:-(0|[1-9][0-9]{0,4}))?", re.ASCII)
_LAST_PORT = 65535


class FirewallRule(Lenient):
    """One rule. prefixes: of the other side. ports: the destination's, as `22` or `8000-8080`; None: all of them."""

    protocol: Protocol = "any"
    ports: str | None = None
    prefixes: tuple[str, ...]


class Firewall(Lenient):
    """A VM's rules. Disabled, they are kept and nothing is dropped; enabled, all that none of them lets through is."""

    enabled: bool = False
    inbound: tuple[FirewallRule, ...] = ()
    outbound: tuple[FirewallRule, ...] = ()


OPEN = Firewall()
"""What a VM has whose user never said anything."""


def network_digest(firewall: Firewall) -> str | None:
    """Compute what a row and its host's record call a VM's wishes of its network by; None: it has none."""
    if firewall == OPEN:
        return None
    text = json.dumps(firewall.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_prefix(text: str) -> IPv4Network | IPv6Network:
    """Read a prefix. Raises ValueError, in words for its user, unless it is written in the one canonical way."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError("must be a prefix such as 192.0.2.0/24 or 2001:db8::/32") from None
    if str(network) != text:
        raise ValueError(f"must be written in its canonical way: {network}")
    return network


def read_ports(text: str) -> tuple[int, int]:
    """Read a port or an ascending range as first and last. Raises ValueError, in words for its user."""
    found = _PORTS.fullmatch(text)
    if found is None:
        raise ValueError("must be a port such as '22', or a range such as '8000-8080'")
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if max(first, last) > _LAST_PORT:
        raise ValueError(f"a port is at most {_LAST_PORT}")
    if found[2] is not None and last <= first:
        raise ValueError("a range of ports ascends, as '8000-8080'")
    return first, last
