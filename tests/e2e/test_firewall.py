"""A VM's firewall with real guests: between two of one bridge, live, and after the host was rebooted (N-5, N-8)."""

from __future__ import annotations

import json

from tests.e2e.installation import Installation

SSH, ALL = "tcp:22@0.0.0.0/0", "any@0.0.0.0/0"
PORT = 7000


def test_rules_apply_while_both_guests_run(fleet: Installation) -> None:
    """N-5: ping and TCP between two guests, both ways; no guest is started anew."""
    closed = {"enabled": True, "inbound": [{"protocol": "tcp", "ports": "22", "prefixes": ["0.0.0.0/0"]}]}
    fleet.create("server", firewall=closed)
    fleet.create("client")
    server, client = (fleet.ready(name)["addresses"]["ip"] for name in ("server", "client"))
    guests = fleet.guests()

    def pings(name: str, to: str) -> bool:
        return fleet.ssh(name, f"ping -c 1 -W 2 {to} >/dev/null && echo yes || echo no").strip() == "yes"

    def reaches(port: int) -> bool:
        fleet.ssh("server", f"(echo hello | timeout 90 nc -l -p {port} >/dev/null 2>&1 &) ; sleep 0.3")
        return "hello" in fleet.ssh("client", f"timeout 10 nc {server} {port} </dev/null || true")

    assert not pings("client", server), "its first packet was judged already"
    assert not pings("server", client), "it may send nothing that was not asked of it; its SSH answers go on"
    fleet.hostler("vm", "firewall", "server", "--outbound", ALL)
    assert pings("server", client)
    assert not pings("client", server)
    assert not reaches(PORT)
    fleet.hostler("vm", "firewall", "server", "--inbound", SSH, "--inbound", f"tcp:{PORT}@{client}/32")
    assert reaches(PORT)
    assert not reaches(PORT + 1)
    assert not pings("client", server)
    fleet.hostler("vm", "firewall", "server", "--disable")
    assert pings("client", server)
    assert reaches(PORT + 1)
    fleet.hostler("vm", "firewall", "server", "--enable")
    assert not pings("client", server), "the rules were kept"
    shown = json.loads(fleet.hostler("vm", "firewall", "server", "--json").stdout)
    assert [rule["ports"] for rule in shown["inbound"]] == ["22", str(PORT)]
    assert fleet.guests() == guests
    fleet.hostler("vm", "restart", "server", timeout=180)
    assert not pings("client", server)
    assert reaches(PORT)
