"""A VM's attachment in the kernel: made, found, released, from any half state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from pyroute2 import AsyncIPRoute

from drivers.confine import is_alive, read_boot_id, signal_process
from drivers.names import HostNames
from drivers.network import Attachment, AttachmentState, Network
from drivers.network.links import Link
from drivers.network.nft import converse
from model.errors import Busy, Conflict, Fenced, Invalid, StepFailed

WHOLE = AttachmentState(tap=True, firewall=True, reservation=True, matches=True)
NONE = AttachmentState(tap=False, firewall=False, reservation=False, matches=False)


@pytest.fixture
def names(netns: str) -> HostNames:
    return HostNames(netns=netns)


@pytest.fixture
async def network(names: HostNames, tmp_path: Path) -> AsyncIterator[Network]:
    network = Network(names, tmp_path / "dnsmasq", dns_user="games")
    await network.start()
    try:
        yield network
    finally:
        await network.stop_dhcp()


def attachment(names: HostNames, vm_id: str = "vm-a", last: int = 2, project: str = "red") -> Attachment:
    return Attachment(vm_id, project, names.mac(vm_id), names.tap(vm_id), names.subnet[last])


async def release(network: Network, a: Attachment) -> None:
    await network.release(a.vm_id, tap=a.tap, mac=a.mac, address=a.address)


def inside(names: HostNames, *argv: str, stdin: str = "") -> str:
    command = ["nsenter", f"--net=/run/netns/{names.netns}", *argv]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


class FailingGuard:
    """Refuses the change of one number, or all from it on."""

    def __init__(self, at: int, error: Exception, *, for_good: bool = False) -> None:
        self.at, self.error, self.for_good, self.calls = at, error, for_good, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.at or (self.for_good and self.calls > self.at):
            raise self.error


async def test_an_attachment_is_made_found_and_released(network: Network, names: HostNames) -> None:
    before, a = await network.inventory(), attachment(names)
    assert await network.find(a) == NONE
    for _ in range(2):
        await network.ensure(a)
        assert await network.find(a) == WHOLE
    whole = await network.inventory()
    assert whole.taps == {a.tap}
    assert whole.reservations == {f"{a.vm_id} {a.mac} {a.address}"}
    assert len(whole.elements) == 5
    for _ in range(2):
        await release(network, a)
        assert await network.inventory() == before
    assert not before.mentions(a.tap, a.mac, str(a.address))


async def test_ensuring_what_is_there_changes_nothing(network: Network, names: HostNames) -> None:
    a, guard = attachment(names), FailingGuard(1, Fenced("older"))
    await network.ensure(a)
    await network.ensure(a, guard=guard)
    assert guard.calls == 0


HALF_STATES: dict[str, Callable[[HostNames, Attachment, Path], list[list[str]]]] = {
    "tap": lambda n, a, f: [["ip", "link", "del", a.tap]],
    "tap down": lambda n, a, f: [["ip", "link", "set", a.tap, "down"]],
    "tap off bridge": lambda n, a, f: [["ip", "link", "set", a.tap, "nomaster"]],
    "address element": lambda n, a, f: [
        ["nft", "delete", "element", "bridge", n.table, "own4", f'{{ "{a.tap}" . {a.mac} . {a.address} }}']
    ],
    "mac element": lambda n, a, f: [
        ["nft", "delete", "element", "bridge", n.table, "own_mac", f'{{ "{a.tap}" . {a.mac} }}']
    ],
    "project": lambda n, a, f: [["nft", "delete", "element", "bridge", n.table, "project", f'{{ "{a.tap}" }}']],
    "guest": lambda n, a, f: [["nft", "delete", "element", "inet", n.table, "guest4", f"{{ {a.address} }}"]],
    "bridge table": lambda n, a, f: [["nft", "delete", "table", "bridge", n.table]],
    "both tables": lambda n, a, f: [["nft", "delete", "table", t, n.table] for t in ("bridge", "inet")],
    "bridge": lambda n, a, f: [["ip", "link", "del", n.bridge]],
    "reservation": lambda n, a, f: [["rm", str(f / "hosts" / a.vm_id)]],
}


@pytest.mark.parametrize("part", HALF_STATES)
async def test_any_half_state_is_made_whole_and_can_be_released(
    network: Network, names: HostNames, tmp_path: Path, part: str
) -> None:
    """N-2, case E2."""
    before, a, other = await network.inventory(), attachment(names), attachment(names, "vm-b", 3)
    await network.ensure(other)
    await network.ensure(a)
    whole = await network.dump()
    for argv in HALF_STATES[part](names, a, tmp_path / "dnsmasq"):
        inside(names, *argv)
    assert not (await network.find(a)).matches
    await network.ensure(a)
    await network.ensure(other)
    assert await network.find(a) == WHOLE
    assert await network.dump() == whole
    for argv in HALF_STATES[part](names, a, tmp_path / "dnsmasq"):
        inside(names, *argv)
    await release(network, a)
    await release(network, other)
    assert await network.inventory() == before


async def test_case_e2_a_failure_at_any_change_leaves_the_host_as_it_was(network: Network, names: HostNames) -> None:
    """case E2."""
    a, before = attachment(names), await network.dump()
    counting = FailingGuard(0, StepFailed(""))
    await network.ensure(a, guard=counting)
    await release(network, a)
    assert counting.calls >= 4
    for at in range(1, counting.calls + 1):
        with pytest.raises(StepFailed, match="made to fail"):
            await network.ensure(a, guard=FailingGuard(at, StepFailed("made to fail")))
        assert await network.dump() == before
    await network.ensure(a)
    assert await network.find(a) == WHOLE


async def test_a_fenced_order_changes_nothing_more(network: Network, names: HostNames) -> None:
    """L-G5, case E2."""
    a, before = attachment(names), await network.inventory()
    for at in range(1, 5):
        guard = FailingGuard(at, Fenced("a newer order is here"), for_good=True)
        with pytest.raises(Fenced):
            await network.ensure(a, guard=guard)
        await network.ensure(a)
        assert await network.find(a) == WHOLE
        whole = await network.inventory()
        with pytest.raises(Fenced):
            await network.release(
                a.vm_id, tap=a.tap, mac=a.mac, address=a.address, guard=FailingGuard(1, Fenced("newer"))
            )
        assert await network.inventory() == whole
        for stop in range(2, 4):
            with contextlib.suppress(Fenced):
                await network.release(
                    a.vm_id, tap=a.tap, mac=a.mac, address=a.address, guard=FailingGuard(stop, Fenced("newer"))
                )
        await release(network, a)
        assert await network.inventory() == before


async def test_after_a_reboot_all_is_as_before(network: Network, names: HostNames, tmp_path: Path) -> None:
    """N-8."""
    attachments = [attachment(names, f"vm-{n}", n, "red" if n % 2 else "blue") for n in range(2, 6)]
    for a in attachments:
        await network.ensure(a)
    before = await network.dump()
    process = network.dhcp_process
    assert process is not None
    signal_process(process, signal.SIGKILL)
    for a in attachments:
        inside(names, "ip", "link", "del", a.tap)
    inside(names, "ip", "link", "del", names.bridge)
    inside(names, "nft", "flush", "ruleset")
    inside(names, "sysctl", "-qw", "net.ipv4.ip_forward=0")
    after_boot = Network(names, tmp_path / "dnsmasq", dns_user="games")
    await after_boot.start()
    for a in reversed(attachments):
        await after_boot.ensure(a)
    assert await after_boot.dump() == before


async def test_case_d5_an_address_that_moved_leaves_nothing_of_its_old_owner(
    network: Network, names: HostNames
) -> None:
    """case D5."""
    a, b = attachment(names), attachment(names, "vm-b", 3)
    await network.ensure(a)
    await network.ensure(Attachment(b.vm_id, b.project, b.mac, b.tap, a.address))
    lines = (await network.inventory()).mentions(str(a.address))
    assert len(lines) == 3
    assert not any(a.mac in line or a.tap in line for line in lines)
    await release(network, a)
    assert (await network.inventory()).mentions(str(a.address)) == lines


async def test_a_vm_that_changes_address_and_project_keeps_nothing_old(network: Network, names: HostNames) -> None:
    a = attachment(names)
    await network.ensure(a)
    moved = Attachment(a.vm_id, "blue", a.mac, a.tap, names.subnet[9])
    await network.ensure(moved)
    assert await network.find(moved) == WHOLE
    assert not (await network.inventory()).mentions(str(a.address), "red")


async def test_a_mac_is_one_vms(network: Network, names: HostNames) -> None:
    a, b = attachment(names), attachment(names, "vm-b", 3)
    await network.ensure(a)
    before = await network.inventory()
    with pytest.raises(Conflict, match="another VM's"):
        await network.ensure(Attachment(b.vm_id, b.project, a.mac, b.tap, b.address))
    assert await network.inventory() == before


async def test_case_e7_a_tap_is_opened_once_at_a_time(network: Network, names: HostNames) -> None:
    """case E7."""
    a = attachment(names)
    with pytest.raises(Busy, match="not there"):
        network.open_tap(a)
    await network.ensure(a)
    descriptor = network.open_tap(a)
    with pytest.raises(Busy):
        network.open_tap(a)
    os.close(descriptor)
    os.close(network.open_tap(a))
    assert await network.find(a) == WHOLE


async def test_dhcp_is_adopted_and_restarted_only_when_dead(network: Network, names: HostNames, tmp_path: Path) -> None:
    first = network.dhcp_process
    assert first is not None
    assert is_alive(first, read_boot_id())
    status = Path(f"/proc/{first.pid}/status").read_text()
    assert "Uid:\t0\t" not in status
    assert "Uid:\t65534\t" not in status
    await Network(names, tmp_path / "dnsmasq", dns_user="games").start()
    await network.keep()
    assert network.dhcp_process == first
    signal_process(first, signal.SIGKILL)
    await network.keep()
    second = network.dhcp_process
    assert second is not None
    assert second != first
    assert is_alive(second, read_boot_id())


async def test_a_dhcp_server_that_no_record_names_is_ended(network: Network, names: HostNames, tmp_path: Path) -> None:
    """H-E2, N-1: its host lost its state directory; two servers would answer, one by reservations of another time."""
    first = network.dhcp_process
    assert first is not None
    shutil.rmtree(tmp_path / "dnsmasq")
    anew = Network(names, tmp_path / "dnsmasq", dns_user="games")
    await anew.start()
    second = anew.dhcp_process
    assert second is not None
    assert not is_alive(first, read_boot_id())
    assert is_alive(second, read_boot_id())
    shutil.rmtree(tmp_path / "dnsmasq")
    await Network(names, tmp_path / "dnsmasq", dns_user="games").stop_dhcp()
    assert not is_alive(second, read_boot_id())


async def test_two_installations_live_side_by_side(network: Network, names: HostNames, tmp_path: Path) -> None:
    other = HostNames("hostler1", "other", "oth", subnet=IPv4Network("10.85.0.0/24"), netns=names.netns)
    await network.ensure(attachment(names))
    before, process = await network.dump(), network.dhcp_process
    second = Network(other, tmp_path / "second", dns_user="games")
    try:
        await second.start()
        await second.ensure(attachment(other))
        assert await second.find(attachment(other)) == WHOLE
        await network.keep()
        assert await network.dump() == before
        assert network.dhcp_process == process
        assert second.dhcp_process != process
    finally:
        await second.stop_dhcp()
    assert process is not None
    assert is_alive(process, read_boot_id())


@pytest.mark.parametrize("held", ["bridge", "table", "tap_prefix", "subnet"])
async def test_a_name_that_another_installation_holds_is_refused(
    network: Network, names: HostNames, tmp_path: Path, held: str
) -> None:
    await network.ensure(attachment(names))
    own: dict[str, object] = {
        "bridge": "hostler1",
        "table": "other",
        "tap_prefix": "oth",
        "subnet": IPv4Network("10.85.0.0/24"),
    }
    own[held] = getattr(names, held)
    before = await network.dump()
    with pytest.raises(Conflict, match=str(own[held])):
        await Network(HostNames(netns=names.netns, **own), tmp_path / "second").start()  # type: ignore[arg-type]
    assert await network.dump() == before


async def test_what_is_foreign_stays_untouched(network: Network, names: HostNames) -> None:
    """N-2, N-10."""
    inside(names, "nft", "-f", "-", stdin="table inet stranger {\n chain c { type filter hook input priority 5; }\n}\n")
    inside(names, "ip", "link", "add", "br9", "type", "bridge")
    inside(names, "ip", "tuntap", "add", "hst9", "mode", "tap")
    inside(names, "ip", "addr", "add", "192.0.2.1/24", "dev", "br9")
    inside(names, "ip", "route", "add", "unreachable", "198.51.100.0/24")

    def foreign() -> list[str]:
        return [
            inside(names, "nft", "list", "table", "inet", "stranger"),
            inside(names, "ip", "-o", "addr", "show", "br9"),
            inside(names, "ip", "-o", "link", "show", "hst9"),
            inside(names, "ip", "route", "show", "type", "unreachable"),
        ]

    before, a = foreign(), attachment(names)
    await network.ensure(a)
    inside(names, "ip", "link", "del", names.bridge)
    await network.keep()
    await network.ensure(a)
    await release(network, a)
    assert foreign() == before
    assert not (await network.inventory()).taps


async def test_upkeep_restores_what_a_stranger_changed(network: Network, names: HostNames) -> None:
    """N-10."""
    await network.ensure(attachment(names))
    before = await network.dump()
    inside(names, "nft", "flush", "chain", "bridge", names.table, "leave")
    inside(names, "nft", "add", "rule", "inet", names.table, "to_host", "accept")
    inside(names, "ip", "link", "set", names.bridge, "type", "bridge", "mcast_snooping", "1")
    inside(names, "ip", "addr", "flush", "dev", names.bridge)
    inside(names, "sysctl", "-qw", f"net.ipv4.conf.{names.bridge}.rp_filter=0")
    assert await network.dump() != before
    await network.keep()
    assert await network.dump() == before


async def test_case_d2_many_at_once_each_get_their_own(network: Network, names: HostNames) -> None:
    """case D2."""
    attachments = [attachment(names, f"vm-{n}", n) for n in range(2, 14)]
    await asyncio.gather(*(network.ensure(a) for a in attachments))
    assert set(await asyncio.gather(*(network.find(a) for a in attachments))) == {WHOLE}
    assert len((await network.inventory()).taps) == len(attachments)
    await asyncio.gather(*(release(network, a) for a in attachments))
    assert not (await network.inventory()).elements


@pytest.mark.parametrize(
    "change",
    [
        {"vm_id": "a\nb"},
        {"vm_id": "../a"},
        {"vm_id": ""},
        {"project": "red,blue"},
        {"mac": "02:00:00:00:00:0g"},
        {"mac": "03:00:00:00:00:01"},
        {"mac": "02:48:53:54:4c:52"},
        {"tap": "eth0"},
        {"tap": "hst0\n"},
        {"address": IPv4Address("10.84.0.1")},
        {"address": IPv4Address("10.84.0.255")},
        {"address": IPv4Address("10.85.0.2")},
    ],
)
async def test_what_is_no_plain_name_of_ours_is_refused(
    network: Network, names: HostNames, change: dict[str, object]
) -> None:
    """S-20, S-21."""
    a = attachment(names)
    wrong = Attachment(**({field: getattr(a, field) for field in a.__dataclass_fields__} | change))  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        await network.ensure(wrong)
    assert not (await network.inventory()).taps


async def test_case_d4_a_neighbour_entry_goes_with_its_vm(network: Network, names: HostNames) -> None:
    """case D4."""
    a = attachment(names)
    await network.ensure(a)
    async with AsyncIPRoute(netns=names.netns) as ip:
        index = (await ip.link_lookup(ifname=names.bridge))[0]
        await ip.neigh("add", dst=str(a.address), lladdr=a.mac, ifindex=index, state=0x80)
        await release(network, a)
        assert not [n async for n in await ip.neigh("dump", family=2) if n.get("dst") == str(a.address)]


async def test_case_c6_a_link_that_is_still_there_though_deleted(
    network: Network, names: HostNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C6: as long as the kernel shows a tap that is gone nothing is half made; afterwards it is made anew."""
    a, links = attachment(names), network._links
    await network.ensure(a)
    read, stale = links.read, (await links.read())[a.tap]
    await release(network, a)

    async def slow_to_forget() -> dict[str, Link]:
        return {**await read(), a.tap: replace(stale, up=False)}

    with monkeypatch.context() as patched:
        patched.setattr(links, "read", slow_to_forget)
        with pytest.raises(Busy, match="still removes"):
            await network.ensure(a)
    await network.ensure(a)
    assert await network.find(a) == WHOLE


async def test_an_nft_outlives_no_event_loop() -> None:
    """Only a loop that ends cancels what waits for nft: the child, which would be nobody's, ends with it."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec("sleep", "60", stdin=pipe, stdout=pipe, stderr=pipe)
    waiting = asyncio.create_task(converse(child, b""))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert child.returncode == -signal.SIGKILL
