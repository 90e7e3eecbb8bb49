"""Taps that are only told of: the network of simulated guests, on no link of the host (X-4)."""

from __future__ import annotations

import json
import os
from ipaddress import IPv4Address

from drivers.names import HostNames
from drivers.network.attachment import Attachment, AttachmentState, NetworkInventory, check, check_parts
from drivers.network.network import Guard
from drivers.simulated import DEFAULT, Simulation, Tap
from model.errors import Busy, Conflict, StepFailed


class SimulatedNetwork:
    """The interface of `Network` for a simulated machine's guests."""

    def __init__(self, simulation: Simulation, names: HostNames) -> None:
        self._simulation = simulation
        self._names = names

    async def start(self) -> None:
        """Do nothing: there is no shared part."""

    async def keep(self) -> None:
        """Do nothing: there is no shared part."""

    async def stop_dhcp(self) -> None:
        """Do nothing: no server runs."""

    async def ensure(self, a: Attachment, *, guard: Guard) -> None:
        check(self._names, a)
        if self._simulation.controls(a.vm_id).refuses_taps:
            raise StepFailed("the simulated network refused the tap")
        wanted = _tap(a)
        for tap in self._simulation.taps():
            if tap == wanted:
                return
            same = (tap.tap == a.tap, tap.mac == a.mac, tap.address == a.address)
            if tap.vm_id != a.vm_id and any(same):
                raise Conflict("the tap, MAC or address is another VM's")
        guard()
        self._simulation.append("tap", a.vm_id, tap=wanted)

    async def release(self, vm_id: str, *, tap: str, mac: str, address: IPv4Address | None, guard: Guard) -> None:
        del address
        check_parts(self._names, vm_id=vm_id, tap=tap, mac=mac)
        for found in self._simulation.taps():
            if found.vm_id == vm_id:
                guard()
                self._simulation.append("remove_tap", vm_id, tap=found)

    def open_tap(self, a: Attachment) -> int:
        check(self._names, a)
        if self._simulation.processes(a.vm_id):
            raise Busy("another process has the tap open")
        if not any(tap.tap == a.tap and tap.vm_id == a.vm_id for tap in self._simulation.taps()):
            raise StepFailed("the tap is not there: it must be made first")
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    async def find(self, a: Attachment) -> AttachmentState:
        check(self._names, a)
        there = _tap(a) in self._simulation.taps()
        return AttachmentState(tap=there, firewall=there, reservation=there, matches=there)

    async def inventory(self) -> NetworkInventory:
        taps = self._simulation.taps()
        held = self._simulation.controls(DEFAULT).held
        return NetworkInventory(
            taps=frozenset(tap.tap for tap in taps),
            reservations=frozenset(f"{tap.vm_id} {tap.mac} {tap.address}" for tap in taps),
            elements=frozenset(map(str, held)),
        )

    async def dump(self) -> str:
        lines = sorted(tap.model_dump_json() for tap in self._simulation.taps())
        return json.dumps(lines, indent=1)


def _tap(a: Attachment) -> Tap:
    return Tap(vm_id=a.vm_id, project=a.project, tap=a.tap, mac=a.mac, address=a.address)
