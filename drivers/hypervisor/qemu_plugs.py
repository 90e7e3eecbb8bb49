"""Volumes of a guest that runs: plugged into and out of QEMU by its monitor, each call safe to repeat (H-V1).

A volume is three things there: its file and its node, which carry its serial number as name, and its disk in a slot.
What is there of them is asked of QEMU each time.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

from drivers.hypervisor import GuestVolume
from drivers.hypervisor.guest_files import opened
from drivers.hypervisor.monitor import Monitor
from drivers.hypervisor.qemu_arguments import volume_device, volume_file, volume_node
from model.errors import StepFailed
from model.volume import volume_serial

UNPLUG_SECONDS = 20.0
RELEASE_SECONDS = 5.0
LOOK_SECONDS = 0.2
_DEVICES: dict[str, object] = {"path": "/machine/peripheral"}


class Plugs:
    """The volumes of one guest, as its QEMU tells them."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    async def find(self) -> frozenset[str]:
        """Find the serial numbers of the volumes that are plugged in."""
        devices = {str(each.get("name")) for each in _items(await self._monitor.execute("qom-list", _DEVICES))}
        return frozenset(devices & set(await self._find_nodes()))

    async def attach(self, volume: GuestVolume) -> None:
        """Plug a volume in, and let it be as large as it is to be."""
        serial = volume_serial(volume.volume_id)
        nodes = await self._find_nodes()
        if f"{serial}-file" not in nodes:
            with opened(volume.path, os.O_RDWR) as descriptor:
                added = await self._monitor.execute("add-fd", {"opaque": serial}, descriptor=descriptor)
            number = cast("dict[str, Any]", added)["fdset-id"]
            await self._monitor.execute("blockdev-add", volume_file(serial, int(number)))
        if serial not in nodes:
            await self._monitor.execute("blockdev-add", volume_node(serial))
        if serial not in await self.find():
            await self._monitor.execute("device_add", volume_device(serial, await self._find_port()))
        if (await self._find_nodes()).get(serial, 0) < volume.size_bytes:
            await self._monitor.execute("block_resize", {"node-name": serial, "size": volume.size_bytes})

    async def detach(self, volume_id: str) -> None:
        """Ask the guest to let a volume go, and take it away once it has."""
        serial = volume_serial(volume_id)
        if serial in await self.find():
            await self._unplug(serial)
        nodes = await self._find_nodes()
        for name in (serial, f"{serial}-file"):
            if name in nodes:
                await self._delete_node(name)
        for each in _items(await self._monitor.execute("query-fdsets")):
            if any(held.get("opaque") == serial for held in _items(each.get("fds"))):
                await self._monitor.execute("remove-fd", {"fdset-id": each["fdset-id"]})

    async def _unplug(self, serial: str) -> None:
        try:
            await self._monitor.execute("device_del", {"id": serial})
        except StepFailed as error:
            if "already in the process of unplug" not in error.detail:
                raise
        deadline = asyncio.get_running_loop().time() + UNPLUG_SECONDS
        while serial in await self.find():
            if asyncio.get_running_loop().time() > deadline:
                raise StepFailed(
                    f"the guest has not let the volume with the serial number {serial} go within {UNPLUG_SECONDS:g} s: "
                    "unmount it there, or stop the guest; it is asked again"
                )
            await asyncio.sleep(LOOK_SECONDS)

    async def _delete_node(self, name: str) -> None:
        """Take a node away; that of a disk which went this moment is in use for another one."""
        deadline = asyncio.get_running_loop().time() + RELEASE_SECONDS
        while True:
            try:
                await self._monitor.execute("blockdev-del", {"node-name": name})
                return
            except StepFailed as error:
                if "is in use" not in error.detail or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    async def _find_nodes(self) -> dict[str, int]:
        """Return the block nodes and their sizes in bytes."""
        found = _items(await self._monitor.execute("query-named-block-nodes", {"flat": True}))
        return {str(each.get("node-name")): int(_inner(each, "image").get("virtual-size") or 0) for each in found}

    async def _find_port(self) -> str:
        """Find a slot with nothing in it."""
        for bus in _items(await self._monitor.execute("query-pci")):
            for device in _items(bus.get("devices")):
                name = str(device.get("qdev_id"))
                if name.startswith("spare") and not _inner(device, "pci_bridge").get("devices"):
                    return name
        raise StepFailed("every slot of the running guest is taken: the volume comes with its next start")


def _items(answer: object) -> list[dict[str, Any]]:
    """Take a list of objects out of an answer; what is none of that is nothing."""
    found = cast("list[object]", answer) if isinstance(answer, list) else []
    return [cast("dict[str, Any]", each) for each in found if isinstance(each, dict)]


def _inner(item: dict[str, Any], key: str) -> dict[str, Any]:
    found: object = item.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
