"""The networks of one host as one: real taps for real guests, told ones for simulated guests."""

from __future__ import annotations

import json
from ipaddress import IPv4Address
from typing import Protocol

from drivers.network.attachment import Attachment, AttachmentState, NetworkInventory
from drivers.network.network import Guard


class GuestNetwork(Protocol):
    """What a host does with its guests' network; `Network` says what each call promises."""

    async def start(self) -> None: ...

    async def keep(self) -> None: ...

    async def stop_dhcp(self) -> None: ...

    async def ensure(self, a: Attachment, *, guard: Guard) -> None: ...

    async def release(self, vm_id: str, *, tap: str, mac: str, address: IPv4Address | None, guard: Guard) -> None: ...

    def open_tap(self, a: Attachment) -> int: ...

    async def find(self, a: Attachment) -> AttachmentState: ...

    async def inventory(self) -> NetworkInventory: ...

    async def dump(self) -> str: ...


class Networks:
    """A `GuestNetwork` made of the kernel's and a simulated one."""

    def __init__(self, real: GuestNetwork, simulated: GuestNetwork) -> None:
        self._real = real
        self._simulated = simulated

    async def start(self) -> None:
        await self._real.start()
        await self._simulated.start()

    async def keep(self) -> None:
        await self._real.keep()
        await self._simulated.keep()

    async def stop_dhcp(self) -> None:
        await self._real.stop_dhcp()
        await self._simulated.stop_dhcp()

    async def ensure(self, a: Attachment, *, guard: Guard) -> None:
        await self._of(a).ensure(a, guard=guard)

    async def release(self, vm_id: str, *, tap: str, mac: str, address: IPv4Address | None, guard: Guard) -> None:
        for network in (self._real, self._simulated):
            await network.release(vm_id, tap=tap, mac=mac, address=address, guard=guard)

    def open_tap(self, a: Attachment) -> int:
        return self._of(a).open_tap(a)

    async def find(self, a: Attachment) -> AttachmentState:
        return await self._of(a).find(a)

    async def inventory(self) -> NetworkInventory:
        one, other = await self._real.inventory(), await self._simulated.inventory()
        return NetworkInventory(
            taps=one.taps | other.taps,
            reservations=one.reservations | other.reservations,
            elements=one.elements | other.elements,
        )

    async def dump(self) -> str:
        shown = {"kernel": json.loads(await self._real.dump()), "simulated": json.loads(await self._simulated.dump())}
        return json.dumps(shown, indent=1, sort_keys=True)

    def _of(self, a: Attachment) -> GuestNetwork:
        return self._simulated if a.simulated else self._real
