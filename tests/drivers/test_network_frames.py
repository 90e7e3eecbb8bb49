"""What a guest can send, and to whom: frames written into its own tap, as any guest may."""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from drivers.names import HostNames
from drivers.network import Attachment, Network
from drivers.network.namespace import run_inside
from tests.fixtures.frames import BROADCAST, arp, dhcp, ethernet, icmp, ipv4, mac, tcp_syn, udp
from tests.fixtures.place import ARP, IP, IP6, NO_MAC, NONCE, OUTSIDE, Guest, Place, ask

NOBODY = "0.0.0.0"  # noqa: S104 - an address in a frame, not one to listen on


def good_frames(a: Guest, b: Guest) -> dict[str, bytes]:
    echo = icmp(8, NONCE)
    return {
        "arp request": arp(a.mac, 1, (a.mac, a.ip), (NO_MAC, b.ip)) + NONCE,
        "arp reply": arp(a.mac, 2, (a.mac, a.ip), (b.mac, b.ip), to=b.mac) + NONCE,
        "gratuitous arp": arp(a.mac, 1, (a.mac, a.ip), (NO_MAC, a.ip)) + NONCE,
        "address detection": arp(a.mac, 1, (a.mac, NOBODY), (NO_MAC, a.ip)) + NONCE,
        "ping": ethernet(b.mac, a.mac, IP, ipv4(a.ip, b.ip, 1, echo)),
        "udp": ethernet(b.mac, a.mac, IP, ipv4(a.ip, b.ip, 17, udp(a.ip, b.ip, 5000, 53, NONCE))),
        "tcp": ethernet(b.mac, a.mac, IP, ipv4(a.ip, b.ip, 6, tcp_syn(a.ip, b.ip, 80) + NONCE)),
        "broadcast": ethernet(
            BROADCAST, a.mac, IP, ipv4(a.ip, "10.84.0.255", 17, udp(a.ip, "10.84.0.255", 9, 9, NONCE))
        ),
        "multicast": ethernet(
            "01:00:5e:00:00:fb", a.mac, IP, ipv4(a.ip, "224.0.0.251", 17, udp(a.ip, "224.0.0.251", 5353, 5353, NONCE))
        ),
    }


def hostile_frames(names: HostNames, a: Guest, b: Guest) -> dict[str, bytes]:
    gateway, gateway_mac = str(names.gateway), names.gateway_mac
    own = ipv4(a.ip, b.ip, 17, udp(a.ip, b.ip, 5000, 53, NONCE))
    as_gateway = arp(gateway_mac, 2, (gateway_mac, gateway), (b.mac, b.ip), to=b.mac) + NONCE
    answer = NONCE + dhcp(b.mac, 2)[:184]

    def to_b(packet: bytes, *, source: str = a.mac, to: str = b.mac, kind: int = IP) -> bytes:
        return ethernet(to, source, kind, packet)

    def tagged(kind: int, tag: int, inner: bytes) -> bytes:
        return inner[:12] + struct.pack("!HH", kind, tag) + inner[12:]

    def icmp6(kind: int, source: str, to: str, body: bytes) -> bytes:
        packed = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, to)
        message = struct.pack("!BBH", kind, 0, 0) + body
        return struct.pack("!IHBB", 6 << 28, len(message), 58, 255) + packed + message

    snap = b"\xaa\xaa\x03\x00\x00\x00\x08\x00"
    return {
        "neighbour's mac": to_b(own, source=b.mac),
        "made-up mac": to_b(own, source="02:00:00:00:00:77"),
        "gateway's mac": to_b(own, source=gateway_mac),
        "neighbour's address": to_b(ipv4(b.ip, b.ip, 17, udp(b.ip, b.ip, 5000, 53, NONCE))),
        "gateway's address": to_b(ipv4(gateway, b.ip, 17, udp(gateway, b.ip, 5000, 53, NONCE))),
        "outside address": to_b(ipv4(OUTSIDE, b.ip, 1, icmp(8, NONCE))),
        "loopback address": to_b(ipv4("127.0.0.1", b.ip, 1, icmp(8, NONCE))),
        "no address": to_b(ipv4(NOBODY, b.ip, 1, icmp(8, NONCE))),
        "no address, to all": to_b(ipv4(NOBODY, "255.255.255.255", 17, udp(NOBODY, "255.255.255.255", 68, 53, NONCE))),
        "dhcp request to a neighbour": to_b(ipv4(NOBODY, b.ip, 17, udp(NOBODY, b.ip, 68, 67, NONCE))),
        "dhcp request, neighbour's mac": to_b(
            ipv4(NOBODY, "255.255.255.255", 17, udp(NOBODY, "255.255.255.255", 68, 67, NONCE)),
            source=b.mac,
            to=BROADCAST,
        ),
        "dhcp answer": to_b(ipv4(a.ip, b.ip, 17, udp(a.ip, b.ip, 67, 68, answer))),
        "dhcp answer to all": to_b(
            ipv4(a.ip, "255.255.255.255", 17, udp(a.ip, "255.255.255.255", 67, 68, answer)), to=BROADCAST
        ),
        "dhcp answer from nowhere": to_b(
            ipv4(NOBODY, "255.255.255.255", 17, udp(NOBODY, "255.255.255.255", 67, 68, answer)), to=BROADCAST
        ),
        "dhcp answer in fragments": to_b(ipv4(a.ip, b.ip, 17, udp(a.ip, b.ip, 67, 68, answer)[:216], fragment=0x2000)),
        "ip options": to_b(
            ipv4(a.ip, b.ip, 1, icmp(8, NONCE), options=b"\x83\x07\x04" + IPv4Address(b.ip).packed + b"\0")
        ),
        "fragment to all": to_b(ipv4(a.ip, "255.255.255.255", 17, NONCE, fragment=0x2000), to=BROADCAST),
        "later fragment to many": to_b(ipv4(a.ip, "224.0.0.1", 17, NONCE, fragment=3), to="01:00:5e:00:00:01"),
        "redirect": to_b(ipv4(a.ip, b.ip, 1, icmp(5, IPv4Address(a.ip).packed + NONCE, code=1))),
        "router advertisement": to_b(ipv4(a.ip, b.ip, 1, icmp(9, NONCE))),
        "ip shorter than its header": to_b(b"\x45\x00\x00\x08" + NONCE),
        "wrong version": to_b(b"\x65" + own[1:]),
        "arp as gateway": arp(a.mac, 2, (a.mac, gateway), (b.mac, b.ip), to=b.mac) + NONCE,
        "arp as gateway, its mac": as_gateway,
        "arp as neighbour": arp(a.mac, 1, (a.mac, b.ip), (NO_MAC, b.ip)) + NONCE,
        "arp with another mac inside": arp(a.mac, 2, (b.mac, a.ip), (b.mac, b.ip), to=b.mac) + NONCE,
        "arp with another mac outside": arp(b.mac, 2, (a.mac, a.ip), (b.mac, b.ip), to=b.mac) + NONCE,
        "address detection for another": arp(b.mac, 1, (b.mac, NOBODY), (NO_MAC, b.ip)) + NONCE,
        "detection answered from nowhere": arp(a.mac, 2, (a.mac, NOBODY), (b.mac, b.ip), to=b.mac) + NONCE,
        "reverse arp": arp(a.mac, 3, (a.mac, a.ip), (a.mac, a.ip)) + NONCE,
        "rarp's own type": to_b(arp(a.mac, 3, (a.mac, a.ip), (a.mac, a.ip))[14:] + NONCE, kind=0x8035, to=BROADCAST),
        "arp of long addresses": to_b(struct.pack("!HHBBH", 1, IP, 8, 4, 1) + NONCE * 2, kind=ARP, to=BROADCAST),
        "vlan 0": tagged(0x8100, 0, to_b(own)),
        "vlan 0, arp as gateway": tagged(0x8100, 0, as_gateway),
        "vlan 5": tagged(0x8100, 5, to_b(own)),
        "provider's vlan": tagged(0x88A8, 5, to_b(own)),
        "two tags": tagged(0x8100, 0, tagged(0x8100, 0, to_b(own))),
        "mpls": to_b(b"\x00\x01\x01\x40" + own, kind=0x8847),
        "pppoe": to_b(NONCE, kind=0x8863),
        "snap": to_b(snap + own, kind=len(snap + own)),
        "novell": to_b(b"\xff\xff" + NONCE, kind=len(NONCE) + 2),
        "bpdu": to_b(b"\x42\x42\x03" + bytes(35) + NONCE, kind=38 + len(NONCE), to="01:80:c2:00:00:00"),
        "lldp": to_b(NONCE, kind=0x88CC, to="01:80:c2:00:00:0e"),
        "pause": to_b(NONCE, kind=0x8808, to="01:80:c2:00:00:01"),
        "reserved group, ip": to_b(own, to="01:80:c2:00:00:0e"),
        "unknown type": to_b(NONCE, kind=0x9999),
        "ipv6": to_b(icmp6(128, "fe80::1", "fe80::2", NONCE), kind=IP6),
        "ipv6 router advertisement": to_b(icmp6(134, "fe80::1", "ff02::1", NONCE), kind=IP6, to="33:33:00:00:00:01"),
        "ipv6 neighbour advertisement": to_b(icmp6(136, "fe80::1", "ff02::1", NONCE), kind=IP6, to="33:33:00:00:00:01"),
    }


async def test_only_a_guests_own_frames_pass(place: Place) -> None:
    """S-22, N-3."""
    a, b = place.a, place.b
    for name, frame in good_frames(a, b).items():
        a.port.send(frame)
        marker = a.marker()
        a.port.send(marker)
        assert any(NONCE in got for got in b.gets(marker)), name
    passed: list[str] = []
    for name, frame in hostile_frames(place.names, a, b).items():
        assert NONCE in frame
        a.port.send(frame)
        marker = a.marker()
        a.port.send(marker)
        if any(NONCE in got for got in b.gets(marker)):
            passed.append(name)
    assert passed == []


async def test_a_large_datagram_passes_in_fragments(place: Place) -> None:
    a, b = place.a, place.b
    datagram = udp(a.ip, b.ip, 5000, 5001, NONCE * 10)
    a.port.send(ethernet(b.mac, a.mac, IP, ipv4(a.ip, b.ip, 17, datagram[:88], fragment=0x2000)))
    a.port.send(ethernet(b.mac, a.mac, IP, ipv4(a.ip, b.ip, 17, datagram[88:], fragment=11)))
    marker = a.marker()
    a.port.send(marker)
    assert sum(frame.count(NONCE) for frame in b.gets(marker)) >= 9


async def test_no_frame_teaches_the_bridge_anothers_mac(place: Place) -> None:
    """S-22: frames to reserved groups pass by the kernel's prerouting."""
    a, b = place.a, place.b
    b.port.send(b.marker())
    for frame in hostile_frames(place.names, a, b).values():
        for source in (b.mac, place.names.gateway_mac, "02:00:00:00:00:77"):
            a.port.send(frame[:6] + mac(source) + frame[12:])
            for last in range(16):
                a.port.send(mac(f"01:80:c2:00:00:{last:02x}") + mac(source) + frame[12:])
    learnt = place.run("bridge", "fdb", "show", "br", place.names.bridge, "dynamic").split("\n")
    on_a = [line.split()[0] for line in learnt if f"dev {a.attachment.tap}" in line]
    assert set(on_a) <= {a.mac}


async def test_a_tap_without_its_elements_carries_nothing(place: Place) -> None:
    a, b = place.a, place.b
    for table, name, element in [
        ("bridge", "project", f'"{a.attachment.tap}"'),
        ("bridge", "own_mac", f'"{a.attachment.tap}" . {a.mac}'),
        ("bridge", "own4", f'"{a.attachment.tap}" . {a.mac} . {a.ip}'),
    ]:
        place.run("nft", "delete", "element", table, place.names.table, name, f"{{ {element} }}")
        a.port.send(good_frames(a, b)["arp request"])
        marker = place.d.marker()
        place.d.port.send(marker)
        assert not any(NONCE in got for got in place.c.gets(marker))
        await place.network.ensure(a.attachment)


def between_projects(place: Place, source: Guest, to: Guest) -> dict[str, bytes]:
    gateway_mac = place.names.gateway_mac
    packet = ipv4(source.ip, to.ip, 17, udp(source.ip, to.ip, 5000, 53, NONCE))
    return {
        "arp to all": arp(source.mac, 1, (source.mac, source.ip), (NO_MAC, to.ip)) + NONCE,
        "arp to it": arp(source.mac, 2, (source.mac, source.ip), (to.mac, to.ip), to=to.mac) + NONCE,
        "bridged": ethernet(to.mac, source.mac, IP, packet),
        "broadcast": ethernet(BROADCAST, source.mac, IP, packet),
        "by way of the gateway": ethernet(gateway_mac, source.mac, IP, packet),
    }


async def test_between_projects_nothing_passes(place: Place) -> None:
    """S-23: bridged, or routed by way of the gateway."""
    for sender, passes in ((place.d, True), (place.a, False), (place.b, False)):
        for name, frame in between_projects(place, sender, place.c).items():
            sender.port.send(frame)
            marker = place.d.marker()
            place.d.port.send(marker)
            got = [f for f in place.c.gets(marker) if NONCE in f]
            assert bool(got) == passes, (sender.attachment.vm_id, name)


async def test_the_hosts_ports_are_closed_and_it_answers_pings(place: Place) -> None:
    """N-4, S-24."""
    a, names = place.a, place.names
    gateway, gateway_mac = str(names.gateway), names.gateway_mac
    listener = run_inside(names.netns, lambda: socket.create_server((NOBODY, 0)))
    datagrams = run_inside(names.netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
    try:
        datagrams.bind((NOBODY, 0))
        port, udp_port = listener.getsockname()[1], datagrams.getsockname()[1]
        for target in (gateway, "192.0.2.1", "127.0.0.1"):
            syn = ipv4(a.ip, target, 6, tcp_syn(a.ip, target, port))
            a.port.send(ethernet(gateway_mac, a.mac, IP, syn))
            hello = ipv4(a.ip, target, 17, udp(a.ip, target, 68, udp_port, NONCE))
            for to in (gateway_mac, BROADCAST, *(f"01:80:c2:00:00:{last:02x}" for last in range(16))):
                a.port.send(ethernet(to, a.mac, IP, hello))
        a.port.send(ethernet(gateway_mac, a.mac, IP, ipv4(a.ip, "192.0.2.1", 1, icmp(8, b"host's own network"))))
        a.port.send(arp(a.mac, 1, (a.mac, a.ip), (NO_MAC, "192.0.2.1")))
        a.port.send(ethernet(gateway_mac, a.mac, IP, ipv4(a.ip, gateway, 1, icmp(8, b"the gateway"))))
        seen: list[bytes] = []

        def is_echo(frame: bytes) -> bool:
            seen.append(frame)
            return frame[12:14] == b"\x08\x00" and frame[23] == 1 and frame[34] == 0

        echo = a.port.receive(is_echo)
        assert echo is not None
        assert b"the gateway" in echo
        assert not [f for f in seen if f[12:14] == b"\x08\x00" and f[23] == 6]
        assert not [f for f in seen if f[12:14] == b"\x08\x06"]
        with pytest.raises(BlockingIOError) as caught:
            datagrams.recv(100)
        assert caught.value.errno == errno.EAGAIN
        client = run_inside(names.netns, lambda: socket.create_connection((gateway, port), 2))
        client.close()
    finally:
        listener.close()
        datagrams.close()


async def test_the_gateway_answers_arp(place: Place) -> None:
    a, gateway = place.a, str(place.names.gateway)
    a.port.send(arp(a.mac, 1, (a.mac, a.ip), (NO_MAC, gateway)))
    reply = a.port.receive(lambda f: f[12:14] == b"\x08\x06" and f[20:22] == b"\x00\x02")
    assert reply is not None
    assert reply[22:32] == mac(place.names.gateway_mac) + place.names.gateway.packed


async def test_guests_reach_the_outside_but_not_metadata_nor_each_unknown_address(place: Place) -> None:
    """N-1 (NAT), N-4, S-24."""
    a, gateway_mac = place.a, place.names.gateway_mac
    for number, target in enumerate(["169.254.169.254", "127.0.0.1", "0.1.2.3", OUTSIDE]):
        packet = ipv4(a.ip, target, 17, udp(a.ip, target, 5000 + number, 53, NONCE))
        a.port.send(ethernet(gateway_mac, a.mac, IP, packet))
    seen: list[bytes] = []

    def is_outside(frame: bytes) -> bool:
        seen.append(frame)
        return frame[12:14] == b"\x08\x00" and frame[30:34] == IPv4Address(OUTSIDE).packed

    frame = place.outside.receive(is_outside)
    assert frame is not None
    assert frame[26:30] == IPv4Address("192.0.2.1").packed
    assert sum(NONCE in f for f in seen) == 1
    for last in range(100, 200):
        target = f"10.84.0.{last}"
        a.port.send(ethernet(gateway_mac, a.mac, IP, ipv4(a.ip, target, 17, udp(a.ip, target, 5000, 53, NONCE))))
    assert len(place.run("ip", "neigh", "show", "dev", place.names.bridge).splitlines()) <= 4


async def test_dhcp_gives_each_mac_its_reserved_address(place: Place) -> None:
    """N-1."""
    gateway = str(place.names.gateway)
    for guest in (place.a, place.c):
        assert ask(guest.port, guest.mac, dhcp(guest.mac, 1)) == (guest.ip, 2)
        request = dhcp(guest.mac, 3, requested=guest.ip, server=gateway)
        assert ask(guest.port, guest.mac, request) == (guest.ip, 5)


async def test_dhcp_gives_an_unknown_mac_nothing(place: Place) -> None:
    a = place.a
    assert ask(a.port, a.mac, dhcp(a.mac, 1)) == (a.ip, 2)
    assert ask(a.port, a.mac, dhcp("02:00:00:00:00:77", 1)) is None
    assert ask(a.port, a.mac, dhcp(a.mac, 1)) == (a.ip, 2)


async def test_case_d5_dhcp_gives_a_moved_address_to_its_new_owner_alone(place: Place) -> None:
    """case D5: also while the old owner's lease lasts."""
    a, b, network = place.a, place.b, place.network
    gateway = str(place.names.gateway)
    request = dhcp(a.mac, 3, requested=a.ip, server=gateway)
    assert ask(a.port, a.mac, dhcp(a.mac, 1)) == (a.ip, 2)
    assert ask(a.port, a.mac, request) == (a.ip, 5)
    await network.release("a", tap=a.attachment.tap, mac=a.mac, address=a.attachment.address)
    await network.ensure(Attachment("b", "red", b.mac, b.attachment.tap, a.attachment.address))
    assert ask(b.port, b.mac, dhcp(b.mac, 1)) == (a.ip, 2)
    request = dhcp(b.mac, 3, requested=a.ip, server=gateway)
    assert ask(b.port, b.mac, request) == (a.ip, 5)
    # The old owner's MAC, asked for from another tap, has no address any more.
    assert ask(b.port, b.mac, dhcp(a.mac, 1)) is None


@pytest.mark.parametrize("signal_first", [False, True])
async def test_dhcp_works_after_the_worker_and_dnsmasq_began_anew(
    place: Place, tmp_path: Path, signal_first: bool
) -> None:
    process = place.network.dhcp_process
    assert process is not None
    if signal_first:
        os.kill(process.pid, 9)
    again = Network(place.names, tmp_path / "dnsmasq", dns_user="games")
    await again.start()
    assert ask(place.a.port, place.a.mac, dhcp(place.a.mac, 1)) == (place.a.ip, 2)
