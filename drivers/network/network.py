"""A host's network for VMs: one bridge, a tap, a firewall element set and a DHCP reservation per VM, NAT to outside.

Every call reads the kernel and makes it match (N-2), so each may be repeated from any half state. A guard that a caller
hands in is called before each change and may raise: then nothing more is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
from pathlib import Path

from drivers.names import HostNames
from drivers.network import sysctls
from drivers.network.attachment import Attachment, AttachmentState, NetworkInventory, check, check_parts
from drivers.network.dhcp import Dhcp
from drivers.network.firewall import Firewall, Tables
from drivers.network.links import Link, Links
from drivers.shared import SharedRead
from drivers.threads import in_thread
from model.errors import HostlerError
from model.process import ProcessRecord

Guard = Callable[[], None]


def _permit() -> None:
    """Permit every change."""


class Network:
    """Make the host's network match what VMs are to have.

    folder: of dnsmasq's files, in the installation's state directory; its path names the installation to others.
    resolvers: the DNS servers that guests are told; none: they are told none. dns_user: whom dnsmasq becomes.
    """

    def __init__(
        self,
        names: HostNames,
        folder: Path,
        *,
        resolvers: tuple[IPv4Address, ...] = (),
        dns_user: str = "hostler-dns",
    ) -> None:
        owner = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        self._names = names
        self._links = Links(names, owner)
        self._firewall = Firewall(names, owner)
        self._dhcp = Dhcp(names, folder.resolve(), resolvers=resolvers, user=dns_user)
        # Kernel state is read, compared and changed in several calls: one at a time. Who is cancelled holds it until
        # the last thread and child that it began have ended.
        self._lock = asyncio.Lock()
        self._kernel = SharedRead(self._read_kernel)

    async def _read_kernel(self) -> tuple[dict[str, Link], Tables]:
        """Read links and tables. All links are decoded each time, so looks at many VMs share one reading."""
        links, tables = await asyncio.gather(self._links.read(), self._firewall.read())
        return links, tables

    async def start(self) -> None:
        """Make the shared part match: firewall, bridge, settings, NAT, DHCP; VMs keep what they have.

        Raises Conflict when a name or the subnet is another installation's, StepFailed when the host refuses.
        """
        async with self._lock:
            await self._ensure_shared()

    async def keep(self) -> None:
        """Do one round of upkeep: bring back what died, or what someone else removed or changed, of the shared part."""
        async with self._lock:
            await self._ensure_shared()

    async def stop_dhcp(self) -> None:
        """End our dnsmasq, for a host that is given up; a worker that ends leaves it running."""
        async with self._lock:
            await self._dhcp.stop()

    async def ensure(self, a: Attachment, *, guard: Guard = _permit) -> None:
        """Make a VM's attachment match: link, firewall, reservation. What fails leaves the host as it was (case E2).

        A guard that goes on refusing also keeps what was begun from being undone: then a newer order decides.
        Raises Invalid, Conflict (a name or MAC is another's), StepFailed.
        """
        check(self._names, a)
        async with self._lock:
            had, tables = await asyncio.gather(self._links.read(), self._firewall.read())
            self._links.check_owner(had)
            if not (self._names.bridge in had and len(tables.present) == 2 and self._dhcp.is_running()):
                await self._ensure_shared()
                had, tables = await asyncio.gather(self._links.read(), self._firewall.read())
            undo: list[Callable[[], Awaitable[object]]] = []
            try:
                if a.tap not in had:
                    undo.append(lambda: self._links.remove_tap(a.tap, a.vm_id, guard))
                await self._links.ensure_tap(a, guard, had)
                if await self._firewall.ensure(a, guard, tables):
                    undo.append(lambda: self._firewall.release(a.tap, a.address, guard))
                if a.vm_id not in await in_thread(self._dhcp.reservations):
                    undo.append(lambda: self._dhcp.release(a.vm_id, guard))
                await self._dhcp.ensure(a, guard)
            except HostlerError:
                for step in reversed(undo):
                    with contextlib.suppress(HostlerError):
                        await step()
                raise

    async def release(
        self, vm_id: str, *, tap: str, mac: str, address: IPv4Address | None, guard: Guard = _permit
    ) -> None:
        """Remove a VM's attachment, in the reverse order; what is absent, or another VM's by now, is left (case D4)."""
        check_parts(self._names, vm_id=vm_id, tap=tap, mac=mac)
        async with self._lock:
            await self._dhcp.release(vm_id, guard)
            freed = await self._firewall.release(tap, address, guard)
            await self._links.remove_tap(tap, vm_id, guard)
            for each in sorted(freed):
                await self._links.forget_neighbour(each, guard)

    def open_tap(self, a: Attachment) -> int:
        """Open the VM's tap (IFF_TAP, IFF_NO_PI, IFF_VNET_HDR) for its hypervisor; the caller closes the descriptor.

        Raises Busy while another process has it open, and when it is gone: what follows `ensure` tries both again.
        """
        check(self._names, a)
        return self._links.open_tap(a.tap)

    async def find(self, a: Attachment) -> AttachmentState:
        """Find what is there of an attachment, changing nothing."""
        check(self._names, a)
        links, tables = await self._kernel.read()
        tap = self._links.is_wanted(links, a)
        firewall = self._firewall.is_there(tables, a)
        reservation = await in_thread(self._dhcp.is_there, a)
        matches = tap and reservation and self._firewall.matches(tables, a)
        return AttachmentState(tap=tap, firewall=firewall, reservation=reservation, matches=matches)

    async def inventory(self) -> NetworkInventory:
        """List what the host holds for VMs."""
        links, tables = await self._kernel.read()
        reservations = await in_thread(self._dhcp.reservations)
        return NetworkInventory(
            taps=frozenset(link.name for link in self._links.taps(links)),
            reservations=frozenset(" ".join((vm_id, *line)) for vm_id, line in reservations.items()),
            elements=tables.by_project(),
        )

    async def dump(self) -> str:
        """Return all of our network state as text that is equal whenever the state is (N-8).

        Left out: what only this boot knows (indexes, handles, marks, pids) and what traffic moves (counters, leases).
        """
        links, tables = await self._kernel.read()
        bridge = links.get(self._names.bridge)
        shown = {
            "bridge": None if bridge is None else [bridge.mac, bridge.alias, bridge.up, *bridge.settings],
            "addresses": await self._links.addresses(),
            "taps": [
                [t.name, t.alias, t.up, bridge is not None and t.master == bridge.index]
                for t in self._links.taps(links)
            ],
            "sysctls": await sysctls.read(self._names),
            "rules": tables.fixed.splitlines(),
            "elements": sorted(tables.by_project()),
            "reservations": await in_thread(self._dhcp.reservations),
            "dhcp": self._dhcp.is_running(),
        }
        return json.dumps(shown, indent=1, sort_keys=True)

    @property
    def dhcp_process(self) -> ProcessRecord | None:
        """Return our dnsmasq, alive or not; None when none was started."""
        return self._dhcp.process

    async def _ensure_shared(self, *, quick: bool = False) -> None:
        """Make the shared part match. quick: only when a part of it is missing."""
        links = await self._links.read()
        self._links.check_owner(links)
        if quick:
            tables = await self._firewall.read()
            if self._names.bridge in links and len(tables.present) == 2 and self._dhcp.is_running():
                return
        # The firewall first: a bridge that comes back with its taps is never without it.
        await self._firewall.ensure_rules()
        bridge_index = await self._links.ensure_bridge()
        await sysctls.ensure(self._names)
        await self._links.raise_bridge()
        await self._dhcp.ensure_running(bridge_index)
