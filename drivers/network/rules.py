"""The firewall's fixed part, as nftables JSON (libnftables-json(5)): what guests may send, and to whom.

Two tables of the installation's name. Family bridge: only frames that a VM is known to own enter the bridge (S-22),
and none leaves it to another project's tap (S-23). Family inet: what of the host guests reach (N-4), and NAT. What is a
VM's own is one element in each set; these rules never change with the VMs. A VM's own firewall adds a chain each way
(`walls.py`), to which two maps lead.
"""

from __future__ import annotations

from typing import Any

from drivers.names import HostNames

Json = dict[str, Any]

PROJECT_MARKS = range(1, 0x4000)
"""Marks of projects stay below the bits that container platforms and overlay networks use for themselves."""

SETS: dict[tuple[str, str], Json] = {
    ("bridge", "own4"): {"type": ["ifname", "ether_addr", "ipv4_addr"]},
    ("bridge", "own_mac"): {"type": ["ifname", "ether_addr"]},
    ("bridge", "project"): {"type": "ifname", "map": "mark"},
    ("bridge", "member"): {"type": ["mark", "ifname"]},
    ("bridge", "walled"): {"type": "ifname"},
    ("inet", "guest4"): {"type": "ipv4_addr"},
    ("inet", "inbound4"): {"type": "ipv4_addr", "map": "verdict"},
    ("inet", "outbound4"): {"type": "ipv4_addr", "map": "verdict"},
}
"""The sets (with `map`: maps) that hold an element per VM."""

# Never forwarded for a guest: this network, loopback, link-local with the metadata service.
_CLOSED = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16")
_LAST_FRAGMENTS, _ANY_FRAGMENT = 0x1FFF, 0x3FFF


def fixed_part(names: HostNames, owner: str) -> list[Json]:
    """Return the commands that make both tables anew but for the elements of VMs; one transaction takes them whole."""
    commands: list[Json] = []
    for family in ("bridge", "inet"):
        table: Json = {"table": {"family": family, "name": names.table}}
        # Adding before deleting makes the deletion succeed when there was none.
        commands += [{"add": table}, {"delete": table}, {"add": table}]
    build = _Builder(names)
    build.owner(owner)
    for (family, name), spec in SETS.items():
        build.set(family, name, **spec)
    _frames(build)
    _host(build)
    return commands + build.commands


class _Builder:
    def __init__(self, names: HostNames) -> None:
        self.names = names
        self.commands: list[Json] = []

    def owner(self, owner: str) -> None:
        # The kernel keeps it with the table: an empty chain costs no packet anything.
        for family in ("bridge", "inet"):
            self.chain(family, owner_chain(owner))

    def set(self, family: str, name: str, **spec: Any) -> None:
        kind = "map" if "map" in spec else "set"
        self._add(kind, {"family": family, "table": self.names.table, "name": name, **spec})

    def counter(self, family: str, name: str) -> None:
        self._add("counter", {"family": family, "table": self.names.table, "name": name})

    def chain(self, family: str, name: str, **hook: Any) -> None:
        base = {"type": "filter", "policy": "accept", **hook} if hook else {}
        self._add("chain", {"family": family, "table": self.names.table, "name": name, **base})

    def rule(self, family: str, chain: str, *expressions: Json) -> None:
        self._add("rule", {"family": family, "table": self.names.table, "chain": chain, "expr": list(expressions)})

    def _add(self, kind: str, value: Json) -> None:
        self.commands.append({"add": {kind: value}})


def owner_chain(owner: str) -> str:
    """Return the name of the empty chain that says whose a table is."""
    return f"owner_{owner}"


def _frames(build: _Builder) -> None:
    tap_in = is_(meta("iifname"), build.names.tap_prefix + "*")
    tap_out = is_(meta("oifname"), build.names.tap_prefix + "*")
    project = {"&": [meta("mark"), PROJECT_MARKS.stop - 1]}
    build.counter("bridge", "bad")
    build.counter("bridge", "foreign")
    _ipv4_frames(build)
    _arp_frames(build)
    build.chain("bridge", "enter", hook="prerouting", prio=-300)
    build.rule("bridge", "enter", tap_in, _set(meta("mark"), _look_up(meta("iifname"), "@project")))
    # Without a project a frame would pass for the host's own below.
    build.rule("bridge", "enter", tap_in, is_(project, 0), *_BAD)
    reserved = is_(field("ether", "daddr"), {"range": ["01:80:c2:00:00:00", "01:80:c2:00:00:0f"]})
    build.rule("bridge", "enter", tap_in, reserved, *_BAD)
    kinds = {"set": [["ip", {"jump": {"target": "ipv4"}}], ["arp", {"jump": {"target": "arp"}}]]}
    build.rule("bridge", "enter", tap_in, {"vmap": {"key": field("ether", "type"), "data": kinds}})
    build.rule("bridge", "enter", tap_in, *_BAD)
    # Some frames to 01:80:c2:00:00:0x pass the kernel's prerouting by, and would still teach the bridge their source.
    build.chain("bridge", "local", hook="input", prio=-300)
    build.rule("bridge", "local", tap_in, reserved, *_BAD)
    # After routing, so that the way round by the gateway is no way round (S-23).
    build.chain("bridge", "leave", hook="postrouting", prio=-300)
    build.rule("bridge", "leave", tap_out, _set(meta("mark"), project))
    member = {"concat": [meta("mark"), meta("oifname")]}
    stranger = is_(member, "@member", "!=")
    build.rule("bridge", "leave", tap_out, is_(meta("mark"), 0, "!="), stranger, count("foreign"), DROP)
    # The firewall of a VM judges packets by their address (N-5): what goes to many, or to this tap with another's
    # address, would pass it by. What the host's DHCP server answers no guest can send (S-22).
    walled = [is_(meta("oifname"), "@walled")]
    own = {"concat": [meta("oifname"), field("ether", "daddr"), field("ip", "daddr")]}
    build.counter("bridge", "walled")
    build.rule("bridge", "leave", *walled, *_dhcp_answer(), ACCEPT)
    build.rule("bridge", "leave", *walled, is_(own, "@own4", "!="), count("walled"), DROP)


def _ipv4_frames(build: _Builder) -> None:
    own = is_({"concat": [meta("iifname"), field("ether", "saddr"), field("ip", "saddr")]}, "@own4")
    to_many = is_(
        field("ip", "daddr"),
        {"set": [{"prefix": {"addr": "224.0.0.0", "len": 3}}, str(build.names.subnet.broadcast_address)]},
    )
    fragment = is_({"&": [field("ip", "frag-off"), _ANY_FRAGMENT]}, 0, "!=")
    later_fragment = is_({"&": [field("ip", "frag-off"), _LAST_FRAGMENTS]}, 0, "!=")
    build.chain("bridge", "ipv4")
    build.rule("bridge", "ipv4", is_(field("ip", "hdrlength"), 5, "!="), *_BAD)
    build.rule("bridge", "ipv4", fragment, to_many, *_BAD)
    advice = {"set": ["redirect", "router-advertisement"]}
    build.rule("bridge", "ipv4", is_(field("icmp", "type"), advice), *_BAD)
    build.rule("bridge", "ipv4", own, is_(field("udp", "sport"), 67, "!="), ACCEPT)
    # They carry no port; a DHCP answer's first fragment is dropped, so that it never becomes whole.
    build.rule("bridge", "ipv4", own, later_fragment, ACCEPT)
    build.rule("bridge", "ipv4", own, is_(field("ip", "protocol"), "udp", "!="), ACCEPT)
    build.rule(
        "bridge",
        "ipv4",
        _OWN_MAC,
        is_(field("ip", "saddr"), "0.0.0.0"),  # noqa: S104 - an address in a rule, not one to listen on
        is_(field("ip", "daddr"), "255.255.255.255"),
        *_dhcp_request(),
        ACCEPT,
    )
    build.rule("bridge", "ipv4", *_BAD)


def _arp_frames(build: _Builder) -> None:
    ethernet = [
        is_(field("arp", name), value) for name, value in (("htype", 1), ("ptype", "ip"), ("hlen", 6), ("plen", 4))
    ]
    said = {"concat": [meta("iifname"), field("arp", "saddr ether"), field("arp", "saddr ip")]}
    said_mac = {"concat": [meta("iifname"), field("arp", "saddr ether")]}
    operation = field("arp", "operation")
    build.chain("bridge", "arp")
    either = is_(operation, {"set": ["request", "reply"]})
    build.rule("bridge", "arp", either, *ethernet, is_(said, "@own4"), _OWN_MAC, ACCEPT)
    # Address detection (RFC 5227) asks before it has the address.
    probe = is_(field("arp", "saddr ip"), "0.0.0.0")  # noqa: S104 - an address in a rule, not one to listen on
    build.rule(
        "bridge", "arp", is_(operation, "request"), *ethernet, probe, _OWN_MAC, is_(said_mac, "@own_mac"), ACCEPT
    )
    build.rule("bridge", "arp", *_BAD)


def _host(build: _Builder) -> None:
    names = build.names
    subnet = {"prefix": {"addr": str(names.subnet.network_address), "len": names.subnet.prefixlen}}
    from_guests, to_guests = is_(meta("iifname"), names.bridge), is_(meta("oifname"), names.bridge)
    for counter in ("host_closed", "closed", "nobody"):
        build.counter("inet", counter)
    closed = [{"prefix": {"addr": p.partition("/")[0], "len": int(p.partition("/")[2])}} for p in _CLOSED]
    build.set("inet", "closed4", type="ipv4_addr", flags=["interval"], elem=closed)

    build.chain("inet", "to_host")
    build.rule("inet", "to_host", _KNOWN, ACCEPT)
    here = {"set": [str(names.gateway), "255.255.255.255"]}
    build.rule("inet", "to_host", is_(field("ip", "daddr"), here), *_dhcp_request(), ACCEPT)
    ping = is_(field("icmp", "type"), "echo-request")
    build.rule("inet", "to_host", is_(field("ip", "daddr"), str(names.gateway)), ping, ACCEPT)
    build.rule("inet", "to_host", count("host_closed"), DROP)
    build.chain("inet", "input", hook="input", prio=-10)
    build.rule("inet", "input", from_guests, {"jump": {"target": "to_host"}})
    # What a guest sends comes from the bridge; what comes from its tap went past the bridge.
    around = is_(meta("iifname"), names.tap_prefix + "*")
    build.rule("inet", "input", around, count("host_closed"), DROP)

    _walls(build, from_guests, to_guests)
    # Bridged frames pass here too, with the bridge as both links: see nf_call_iptables of the bridge.
    build.chain("inet", "forward", hook="forward", prio=-10)
    build.rule("inet", "forward", around, count("closed"), DROP)
    build.rule("inet", "forward", from_guests, is_(meta("nfproto"), "ipv6"), count("closed"), DROP)
    build.rule("inet", "forward", from_guests, is_(field("ip", "daddr"), "@closed4"), count("closed"), DROP)
    # An address that no VM has would fill the host's neighbour table, one for the whole machine (S-24).
    build.rule(
        "inet",
        "forward",
        to_guests,
        is_(field("ip", "daddr"), subnet),
        is_(field("ip", "daddr"), str(names.subnet.broadcast_address), "!="),
        is_(field("ip", "daddr"), "@guest4", "!="),
        count("nobody"),
        DROP,
    )
    build.chain("inet", "outside", hook="postrouting", prio=100, type="nat")
    outside = [is_(field("ip", "saddr"), subnet), is_(field("ip", "daddr"), subnet, "!=")]
    build.rule("inet", "outside", *outside, is_(meta("oifname"), names.bridge, "!="), {"masquerade": None})


def _walls(build: _Builder, from_guests: Json, to_guests: Json) -> None:
    """Send what VMs send and get, the host's own included, through the chains of those that have a firewall (N-5)."""
    gateway = str(build.names.gateway)
    build.counter("inet", "walled")
    # After connections are tracked, before addresses are translated.
    build.chain("inet", "depart", hook="prerouting", prio=-150)
    build.rule("inet", "depart", from_guests, _KNOWN, ACCEPT)
    asked = is_(field("ip", "daddr"), {"set": [gateway, "255.255.255.255"]})
    build.rule("inet", "depart", from_guests, asked, *_dhcp_request(), ACCEPT)
    build.rule("inet", "depart", from_guests, {"vmap": {"key": field("ip", "saddr"), "data": "@outbound4"}})
    build.chain("inet", "arrive", hook="postrouting", prio=-10)
    build.rule("inet", "arrive", to_guests, _KNOWN, ACCEPT)
    build.rule("inet", "arrive", to_guests, is_(field("ip", "saddr"), gateway), *_dhcp_answer(), ACCEPT)
    build.rule("inet", "arrive", to_guests, {"vmap": {"key": field("ip", "daddr"), "data": "@inbound4"}})


def _dhcp_request() -> list[Json]:
    return [is_(field("udp", "sport"), 68), is_(field("udp", "dport"), 67)]


def _dhcp_answer() -> list[Json]:
    return [is_(field("udp", "sport"), 67), is_(field("udp", "dport"), 68)]


def meta(key: str) -> Json:
    return {"meta": {"key": key}}


def field(protocol: str, name: str) -> Json:
    return {"payload": {"protocol": protocol, "field": name}}


def is_(left: Json, right: Any, operator: str = "==") -> Json:
    return {"match": {"op": operator, "left": left, "right": right}}


def _set(key: Json, value: Json) -> Json:
    return {"mangle": {"key": key, "value": value}}


def _look_up(key: Json, data: str) -> Json:
    return {"map": {"key": key, "data": data}}


def count(name: str) -> Json:
    return {"counter": name}


ACCEPT: Json = {"accept": None}
DROP: Json = {"drop": None}
_KNOWN: Json = {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}
_BAD = (count("bad"), DROP)
_OWN_MAC = is_({"concat": [meta("iifname"), field("ether", "saddr")]}, "@own_mac")
