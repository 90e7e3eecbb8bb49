"""What a VM's own firewall lets through, in frames that guests, the host and the world outside send (N-5)."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drivers.network import Network
from drivers.network.namespace import run_inside
from model.errors import StepFailed
from model.firewall import OPEN, Firewall, FirewallRule
from tests.fixtures.frames import BROADCAST, arp, dhcp, ethernet, icmp, ipv4, mac, tcp_syn, udp
from tests.fixtures.place import IP, NO_MAC, NONCE, OUTSIDE, UPLINK_MAC, Guest, Place, ask

CLOSED = Firewall(enabled=True)
EVERYONE = "0.0.0.0/0"


def rule(*prefixes: str, protocol: str = "any", ports: str | None = None) -> FirewallRule:
    return FirewallRule.model_validate({"protocol": protocol, "ports": ports, "prefixes": prefixes})


def inbound(*rules: FirewallRule) -> Firewall:
    return Firewall(enabled=True, inbound=rules, outbound=(rule(EVERYONE),))


def outbound(*rules: FirewallRule) -> Firewall:
    return Firewall(enabled=True, inbound=(rule(EVERYONE),), outbound=rules)


async def give(place: Place, guest: Guest, firewall: Firewall) -> None:
    guest.attachment = replace(guest.attachment, firewall=firewall)
    await place.network.ensure(guest.attachment)


class Traffic:
    """Send packets and tell which of them arrive. Each flow has ports of its own, so that none belongs to another."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.port = 20_000
        self.seen = 0

    def arrives(self, sender: Guest, to: Guest, *frames: bytes) -> bool:
        """Send frames, then an ARP request, which no firewall judges: by then they have arrived, or never will."""
        self.seen += 1
        last = b"last%d" % self.seen
        for frame in frames:
            sender.port.send(frame)
        sender.port.send(arp(sender.mac, 1, (sender.mac, sender.ip), (NO_MAC, to.ip)) + last)
        got: list[bytes] = []

        def is_last(frame: bytes) -> bool:
            got.append(frame)
            return last in frame

        assert to.port.receive(is_last) is not None
        return any(NONCE in frame for frame in got)

    def udp(self, a: Guest, b: Guest, port: int, *, by: str | None = None, body: bytes = NONCE) -> bytes:
        self.port += 1
        return ethernet(by or b.mac, a.mac, IP, ipv4(a.ip, b.ip, 17, udp(a.ip, b.ip, self.port, port, body)))

    def tcp(self, a: Guest, b: Guest, port: int) -> bytes:
        return ethernet(b.mac, a.mac, IP, ipv4(a.ip, b.ip, 6, tcp_syn(a.ip, b.ip, port) + NONCE))

    def ping(self, a: Guest, b: Guest) -> bytes:
        return ethernet(b.mac, a.mac, IP, ipv4(a.ip, b.ip, 1, icmp(8, NONCE)))

    def answered(self, sender: Guest, to: Guest, port: int, answer: bytes = NONCE) -> bool:
        """Have `sender` send without a word to look for, and tell whether the answer to that arrives at it."""
        opening = self.udp(sender, to, port, body=b"opening")
        sender.port.send(opening)
        back = ipv4(to.ip, sender.ip, 17, udp(to.ip, sender.ip, port, self.port, answer))
        return self.arrives(to, sender, ethernet(sender.mac, to.mac, IP, back))


def every_kind(traffic: Traffic, a: Guest, b: Guest) -> dict[str, bytes]:
    other = traffic.place.c.ip
    to_all = ipv4(a.ip, "255.255.255.255", 17, udp(a.ip, "255.255.255.255", 9, 9, NONCE))
    subnet = ipv4(a.ip, "10.84.0.255", 17, udp(a.ip, "10.84.0.255", 9, 9, NONCE))
    group = ipv4(a.ip, "224.0.0.251", 17, udp(a.ip, "224.0.0.251", 5353, 5353, NONCE))
    neighbour = ipv4(a.ip, other, 17, udp(a.ip, other, 9, 9, NONCE))
    return {
        "udp": traffic.udp(a, b, 53),
        "tcp": traffic.tcp(a, b, 80),
        "ping": traffic.ping(a, b),
        "another protocol": ethernet(b.mac, a.mac, IP, ipv4(a.ip, b.ip, 47, NONCE)),
        "by way of the gateway": traffic.udp(a, b, 53, by=traffic.place.names.gateway_mac),
        "to all": ethernet(BROADCAST, a.mac, IP, to_all),
        "to all of the subnet": ethernet(BROADCAST, a.mac, IP, subnet),
        "to a group": ethernet("01:00:5e:00:00:fb", a.mac, IP, group),
        "its own address in a frame to all": ethernet(BROADCAST, a.mac, IP, traffic.udp(a, b, 53)[14:]),
        "another's address in a frame to it": ethernet(b.mac, a.mac, IP, neighbour),
    }


async def test_enabled_without_rules_nothing_arrives_and_nothing_leaves(place: Place) -> None:
    """N-5: drop by default, both ways; also what goes to many, or to the tap with another's address."""
    a, b, traffic = place.a, place.b, Traffic(place)
    for firewalls in ((OPEN, OPEN), (OPEN, CLOSED), (CLOSED, OPEN), (OPEN, OPEN)):
        for guest, firewall in zip((a, b), firewalls, strict=True):
            await give(place, guest, firewall)
        for name, frame in every_kind(traffic, a, b).items():
            assert traffic.arrives(a, b, frame) == (firewalls == (OPEN, OPEN)), (name, firewalls)


async def test_a_large_datagram_is_judged_whole(place: Place) -> None:
    """N-5: a later fragment bears no port, and is the datagram's all the same."""
    a, b, traffic = place.a, place.b, Traffic(place)

    def fragments(port: int, ident: int) -> tuple[bytes, bytes]:
        datagram = udp(a.ip, b.ip, 5000, port, NONCE * 10)
        halves = ((datagram[:88], 0x2000), (datagram[88:], 11))
        first, second = (ipv4(a.ip, b.ip, 17, body, fragment=bits, ident=ident) for body, bits in halves)
        return ethernet(b.mac, a.mac, IP, first), ethernet(b.mac, a.mac, IP, second)

    await give(place, b, inbound(rule(f"{a.ip}/32", protocol="udp", ports="5001")))
    assert traffic.arrives(a, b, *fragments(5001, 1))
    assert not traffic.arrives(a, b, *fragments(5002, 2))


@pytest.mark.parametrize("way", ["inbound", "outbound"])
async def test_a_rule_lets_through_just_what_it_says(place: Place, way: str) -> None:
    """N-5: protocol, ports and prefix, of the other side, all three."""
    a, b, traffic = place.a, place.b, Traffic(place)
    walled, other = (b, a) if way == "inbound" else (a, b)
    make: Callable[..., Firewall] = inbound if way == "inbound" else outbound
    own = f"{other.ip}/32"
    kinds: dict[str, Callable[[], bytes]] = {
        "udp 53": lambda: traffic.udp(a, b, 53),
        "udp 54": lambda: traffic.udp(a, b, 54),
        "udp 60": lambda: traffic.udp(a, b, 60),
        "tcp 53": lambda: traffic.tcp(a, b, 53),
        "ping": lambda: traffic.ping(a, b),
    }
    cases: list[tuple[FirewallRule, set[str]]] = [
        (rule(own), set(kinds)),
        (rule(EVERYONE), set(kinds)),
        (rule("10.84.0.0/24"), set(kinds)),
        (rule("10.84.0.128/25", "192.0.2.0/24"), set()),
        (rule("2001:db8::/32"), set()),
        (rule(own, protocol="udp"), {"udp 53", "udp 54", "udp 60"}),
        (rule(own, protocol="tcp"), {"tcp 53"}),
        (rule(own, protocol="icmp"), {"ping"}),
        (rule(own, protocol="udp", ports="53"), {"udp 53"}),
        (rule(EVERYONE, protocol="udp", ports="54-60"), {"udp 54", "udp 60"}),
        (rule("192.0.2.0/24", own, protocol="tcp", ports="0-65535"), {"tcp 53"}),
    ]
    for given, through in cases:
        await give(place, walled, make(given))
        assert (await place.network.find(walled.attachment)).matches, given
        found = {name for name, frame in kinds.items() if traffic.arrives(a, b, frame())}
        assert found == through, given


async def test_what_answers_is_let_through_and_what_was_begun_goes_on(place: Place) -> None:
    """N-5: established and related first, both ways, also when the rules change meanwhile."""
    a, b, traffic = place.a, place.b, Traffic(place)
    await give(place, b, outbound(rule(f"{a.ip}/32")).model_copy(update={"inbound": ()}))
    assert traffic.answered(b, a, 4000), "b asked, so a may answer"
    assert not traffic.arrives(a, b, traffic.udp(a, b, 4000))
    await give(place, a, CLOSED)
    assert not traffic.arrives(b, a, traffic.udp(b, a, 4000))
    await give(place, a, OPEN)
    await give(place, b, inbound(rule(f"{a.ip}/32", ports="4001", protocol="udp")).model_copy(update={"outbound": ()}))
    assert traffic.answered(a, b, 4001), "a was let in, so b may answer"
    flow = traffic.port
    await give(place, b, CLOSED)
    again = ipv4(a.ip, b.ip, 17, udp(a.ip, b.ip, flow, 4001, NONCE))
    assert traffic.arrives(a, b, ethernet(b.mac, a.mac, IP, again)), "a connection that was let in goes on"
    assert not traffic.arrives(a, b, traffic.udp(a, b, 4001))
    refused = ipv4(a.ip, b.ip, 17, udp(a.ip, b.ip, 4001, flow, b""))
    unreachable = ipv4(b.ip, a.ip, 1, icmp(3, bytes(4) + refused + NONCE, code=3))
    assert not traffic.arrives(b, a, ethernet(a.mac, b.mac, IP, unreachable)), "an error of no connection"


async def test_disabling_opens_all_and_nothing_of_it_is_left(place: Place) -> None:
    """N-5: disabled, everything is allowed but other projects."""
    a, b, c, traffic = place.a, place.b, place.c, Traffic(place)
    before = await place.network.dump()
    await give(place, b, inbound(rule("192.0.2.0/24")))
    assert not traffic.arrives(a, b, traffic.udp(a, b, 53))
    await give(place, b, inbound(rule("192.0.2.0/24")).model_copy(update={"enabled": False}))
    assert traffic.arrives(a, b, traffic.udp(a, b, 53))
    assert await place.network.dump() == before
    await give(place, b, inbound(rule(EVERYONE)))
    await give(place, c, outbound(rule(EVERYONE)))
    c.port.send(traffic.udp(c, b, 53))
    assert not traffic.arrives(a, b), "what a rule lets through is let through within the project (S-23)"


async def test_the_outside_and_the_host_itself_are_judged_by_their_addresses(place: Place) -> None:
    """N-5: what is routed, both ways, and what the host's own programs send."""
    b, traffic = place.b, Traffic(place)
    uplink = json.loads(place.run("ip", "-j", "link", "show", "up0"))[0]["address"]

    def from_outside(port: int) -> bool:
        traffic.port += 1
        packet = ipv4(OUTSIDE, b.ip, 17, udp(OUTSIDE, b.ip, traffic.port, port, NONCE))
        place.outside.send(ethernet(uplink, UPLINK_MAC, IP, packet))
        return traffic.arrives(place.a, b)

    def to_outside(port: int) -> bool:
        traffic.port += 1
        packet = ipv4(b.ip, OUTSIDE, 17, udp(b.ip, OUTSIDE, traffic.port, port, NONCE))
        b.port.send(ethernet(place.names.gateway_mac, b.mac, IP, packet))
        return place.outside.receive(lambda frame: NONCE in frame, 0.3) is not None

    def from_host(port: int) -> bool:
        with run_inside(place.names.netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            try:
                sender.sendto(NONCE, (b.ip, port))
            except PermissionError:
                return False
        return traffic.arrives(place.a, b)

    assert (from_outside(53), to_outside(53), from_host(53)) == (True, True, True)
    await give(place, b, CLOSED)
    assert (from_outside(53), to_outside(53), from_host(53)) == (False, False, False)
    outer = rule("198.51.100.0/24", protocol="udp", ports="53")
    await give(place, b, Firewall(enabled=True, inbound=(outer,), outbound=(outer,)))
    assert (from_outside(53), to_outside(53), from_host(53)) == (True, True, False)
    assert (from_outside(54), to_outside(54)) == (False, False)
    await give(place, b, inbound(rule(f"{place.names.gateway}/32")))
    assert (from_outside(53), from_host(53)) == (False, True)


async def test_a_guest_behind_a_closed_firewall_keeps_its_lease(place: Place) -> None:
    """N-5, N-1: DHCP and ARP go on; nothing else of the host answers."""
    b, traffic = place.b, Traffic(place)
    await give(place, b, CLOSED)
    gateway, gateway_mac = str(place.names.gateway), place.names.gateway_mac
    assert ask(b.port, b.mac, dhcp(b.mac, 1)) == (b.ip, 2)
    assert ask(b.port, b.mac, dhcp(b.mac, 3, requested=b.ip, server=gateway)) == (b.ip, 5)
    b.port.send(arp(b.mac, 1, (b.mac, b.ip), (NO_MAC, gateway)))
    assert b.port.receive(lambda f: f[12:14] == b"\x08\x06" and mac(gateway_mac) == f[22:28]) is not None
    b.port.send(ethernet(gateway_mac, b.mac, IP, ipv4(b.ip, gateway, 1, icmp(8, NONCE))))
    assert not traffic.arrives(place.a, b)


async def test_a_change_is_one_transaction_and_others_rules_stay(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-2, N-5: what the kernel refuses changes nothing; an element and the chain that it leads to come together."""
    a, b, traffic = place.a, place.b, Traffic(place)
    await give(place, a, outbound(rule("198.51.100.0/24")))
    await give(place, b, inbound(rule("192.0.2.0/24")))
    before = await place.network.dump()
    firewall, orders = place.network._firewall, 0
    apply = firewall._apply

    async def counted(commands: list[dict[str, object]]) -> None:
        nonlocal orders
        orders += 1
        await apply(commands)

    async def refused(commands: list[dict[str, object]]) -> None:
        await apply([*commands, {"delete": {"table": {"family": "inet", "name": "no-such-table"}}}])

    for firewall_of_b in (OPEN, inbound(rule(EVERYONE)), CLOSED):
        monkeypatch.setattr(firewall, "_apply", refused)
        with pytest.raises(StepFailed):
            await place.network.ensure(replace(b.attachment, firewall=firewall_of_b))
        assert await place.network.dump() == before
    monkeypatch.setattr(firewall, "_apply", counted)
    for number, firewall_of_b in enumerate((OPEN, inbound(rule(EVERYONE)), CLOSED), 1):
        await give(place, b, firewall_of_b)
        assert orders == number
    assert not traffic.arrives(b, a, traffic.udp(b, a, 53))
    await place.network.release("b", tap=b.attachment.tap, mac=b.mac, address=b.attachment.address)
    assert not (await place.network.inventory()).mentions(b.attachment.tap, b.ip)
    assert (await place.network.inventory()).mentions(a.attachment.tap)


DRIFTS = {
    "a rule that lets all in": "insert rule inet {table} in_{tap} accept",
    "a rule less": "flush chain inet {table} in_{tap}",
    "no way to the chain": "delete element inet {table} inbound4 {{ {ip} }}",
    "not behind a firewall": "delete element bridge {table} walled {{ {tap} }}",
    "the tables": "flush ruleset",
}


@pytest.mark.parametrize("drift", DRIFTS)
async def test_what_somebody_else_changed_is_seen_and_made_good(place: Place, drift: str) -> None:
    """N-2, N-8: the rules that the kernel holds are compared, not that they were given once."""
    b = place.b
    await give(place, b, inbound(rule("192.0.2.0/24", protocol="tcp", ports="22")))
    before = await place.network.dump()
    command = DRIFTS[drift].format(table=place.names.table, tap=b.attachment.tap, ip=b.ip)
    place.run("nft", *command.split())
    assert not (await place.network.find(b.attachment)).matches
    await place.network.keep()
    for guest in (place.a, b, place.c, place.d):
        await place.network.ensure(guest.attachment)
    assert await place.network.dump() == before


async def test_a_reboot_of_the_host_brings_the_rules_back(place: Place, tmp_path: Path) -> None:
    """N-8: equal to what was before, and none of it open meanwhile."""
    a, b, traffic = place.a, place.b, Traffic(place)
    await give(place, b, inbound(rule(f"{a.ip}/32", protocol="udp", ports="53")))
    await give(place, a, outbound(rule("10.84.0.0/24", protocol="udp")))
    before = await place.network.dump()
    for guest in (a, b, place.c, place.d):
        guest.port.close()
        place.run("ip", "link", "del", guest.attachment.tap)
    place.run("ip", "link", "del", place.names.bridge)
    place.run("nft", "flush", "ruleset")
    place.network = Network(place.names, tmp_path / "dnsmasq", dns_user="games")
    await place.network.start()
    for guest in (place.d, b, place.c, a):
        await place.network.ensure(guest.attachment)
        guest.port.descriptor = place.network.open_tap(guest.attachment)
    assert await place.network.dump() == before
    assert traffic.arrives(a, b, traffic.udp(a, b, 53))
    assert not traffic.arrives(a, b, traffic.udp(a, b, 54))
    assert not traffic.arrives(a, b, traffic.tcp(a, b, 53))
