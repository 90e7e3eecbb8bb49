"""One VM's own firewall as nftables chains (N-5): a chain each way, which the fixed part sends its packets to.

The kernel tracks no connections in the bridge family here (it needs nf_conntrack_bridge), so the chains are of the
family inet, which the bridge hands its frames to (nf_call_iptables). A packet is the VM's by its address: what a tap
sends bears that VM's own (S-22), and what a bridged frame carries reaches only the tap that its address belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network

from drivers.network.attachment import Attachment
from drivers.network.rules import ACCEPT, DROP, Json, count, field, is_, meta
from model.firewall import FirewallRule, read_ports, read_prefix

WALLED = "walled"
"""The counter of what VMs' own firewalls drop; also the bridge's set of taps behind one."""
_PREFIXES = ("in_", "out_")
Chains = dict[str, tuple[str, ...]]
"""Chains by name, each rule's expressions as JSON in the one way that the kernel shows them, too."""


def inbound_chain(tap: str) -> str:
    """Return the name of the chain for what goes to a tap."""
    return f"in_{tap}"


def outbound_chain(tap: str) -> str:
    """Return the name of the chain for what comes from a tap."""
    return f"out_{tap}"


def is_own_chain(name: str) -> bool:
    """Tell whether a chain is one VM's own, and no part of the fixed rules."""
    return name.startswith(_PREFIXES)


def tap_of(chain: str) -> str:
    """Return the tap that a chain is of."""
    return chain.partition("_")[2]


def chains_of(chains: Chains, tap: str) -> Chains:
    """Return those of one tap."""
    return {name: chains[name] for name in (inbound_chain(tap), outbound_chain(tap)) if name in chains}


def wanted_chains(a: Attachment) -> Chains:
    """Return the chains of a VM; none while its firewall is disabled."""
    if not a.firewall.enabled:
        return {}
    return {
        inbound_chain(a.tap): _lines(a.firewall.inbound, "saddr"),
        outbound_chain(a.tap): _lines(a.firewall.outbound, "daddr"),
    }


def add_chains(table: str, chains: Chains) -> list[Json]:
    """Return the commands that make chains hold just these rules."""
    place = {"family": "inet", "table": table}
    commands: list[Json] = []
    for name in sorted(chains):
        chain = {"chain": {**place, "name": name}}
        commands += [{"add": chain}, {"flush": chain}]
        commands += [{"add": {"rule": {**place, "chain": name, "expr": json.loads(line)}}} for line in chains[name]]
    return commands


def remove_chains(table: str, names: Iterable[str]) -> list[Json]:
    """Return the commands that remove chains, to which nothing leads any more."""
    found = [{"chain": {"family": "inet", "table": table, "name": name}} for name in sorted(names)]
    return [command for chain in found for command in ({"flush": chain}, {"delete": chain})]


def as_line(expressions: list[Json]) -> str:
    """Write a rule's expressions as they are compared; no blanks, so that a line of words holds each as one."""
    return json.dumps(expressions, sort_keys=True, separators=(",", ":"))


def _lines(rules: tuple[FirewallRule, ...], side: str) -> tuple[str, ...]:
    allowed = [[*match, ACCEPT] for rule in rules for match in _matches(rule, side)]
    return tuple(as_line(each) for each in (*allowed, [count(WALLED), DROP]))


def _matches(rule: FirewallRule, side: str) -> Iterator[list[Json]]:
    """Give a rule's matches, one for each prefix. Guests have no IPv6: its prefixes match nothing (S-22)."""
    for network in map(read_prefix, rule.prefixes):
        if isinstance(network, IPv4Network):
            yield [*_from(network, side), *_protocol(rule)]


def _from(network: IPv4Network, side: str) -> list[Json]:
    if network.prefixlen == 0:
        return []
    address = str(network.network_address)
    whole = network.prefixlen == network.max_prefixlen
    return [is_(field("ip", side), address if whole else {"prefix": {"addr": address, "len": network.prefixlen}})]


def _protocol(rule: FirewallRule) -> list[Json]:
    if rule.protocol == "any":
        return []
    if rule.ports is None:
        return [is_(meta("l4proto"), rule.protocol)]
    first, last = read_ports(rule.ports)
    return [is_(field(rule.protocol, "dport"), first if first == last else {"range": [first, last]})]
