"""End every guest of an installation whose host worker has ended, without changing what is wanted of any (`--vms`).

No record is written: to the next host worker the guests are lost, as after a power cut, and it boots them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from drivers.host.parts import Paths, is_simulated
from drivers.hypervisor import QEMU, SIMULATED, Guest, Hypervisor
from drivers.machine import BOOT_ID, lock_worker, read_boot_id
from drivers.network import Network
from drivers.records import Entry, RecordStore
from drivers.stored import StoredConfig
from model.errors import HostlerError, StepFailed
from workers.host_parts import build_drivers
from workers.host_place import HostPlace
from workers.installation import Installation
from workers.keeper import end_process

LONGEST_PATIENCE_SECONDS = 30.0
_END_SECONDS = 10.0


async def stop_guests(installation: Installation, place: HostPlace) -> int:
    """Ask each guest of a host to power off, end what does not, then end the DHCP server; return how many ran.

    Raises Conflict while a host worker works on them (H-E3), StepFailed when something of a guest does not end.
    """
    folder = installation.host_folder(place)
    lock = lock_worker(folder)
    try:
        return await _stop_all(folder, place)
    finally:
        os.close(lock)


async def _stop_all(folder: Path, place: HostPlace) -> int:
    machines = folder / "machines"
    names = place.names()
    hypervisor = make_hypervisor(folder, place)
    records = RecordStore(machines)
    if machines.exists():
        await asyncio.to_thread(records.load)
    stops = [stop_guest(hypervisor, folder, entry) for entry in records]
    stopped = sum(await asyncio.gather(*stops))
    stopped += await end_unrecorded(hypervisor)
    if (folder / "dnsmasq").exists():
        await Network(names, folder / "dnsmasq").stop_dhcp()
    return stopped


def make_hypervisor(folder: Path, place: HostPlace) -> Hypervisor:
    boot_id_path = Path(place.boot_id_path or BOOT_ID)
    drivers = build_drivers(place.names(), Paths(folder), lambda: read_boot_id(boot_id_path), simulated_guests="none")
    return drivers.hypervisor


async def stop_guest(hypervisor: Hypervisor, host: Path, entry: Entry) -> bool:
    """Stop one guest, gently at first; tell whether it ran."""
    if entry.config is None or entry.status is None or entry.status.process is None:
        return False
    guest, process = describe_guest(entry.config, host), entry.status.process
    found = await hypervisor.find(guest, process)
    if found.process is None:
        return False
    patience = min(LONGEST_PATIENCE_SECONDS, entry.config.input.stop_timeout_seconds)
    if found.power != "paused":  # a paused guest feels no power button
        with contextlib.suppress(HostlerError):
            await hypervisor.ask_to_stop(guest, process)
            await hypervisor.await_end(guest, process, patience)
    await hypervisor.end(guest, process, _END_SECONDS)
    await hypervisor.release(guest.vm_id, guest.sockets)
    return True


async def end_unrecorded(hypervisor: Hypervisor) -> int:
    """End what still runs as a user of guests: a guest whose record cannot be read."""
    left = await hypervisor.find_processes()
    ended = await asyncio.gather(*(end_process(process, signal.SIGTERM, _END_SECONDS) for process in left))
    await hypervisor.kill_strays(left)  # a simulated process hears no signal
    if not all(ended):
        raise StepFailed(f"{ended.count(False)} guest processes do not end: the machine's storage may hang")
    return len(left)


def describe_guest(config: StoredConfig, host: Path) -> Guest:
    """Say as much of a guest as finding and ending it takes."""
    folder = host / "machines" / config.vm_id
    return Guest(
        vm_id=config.vm_id,
        uid=config.allocation.uid,
        gid=config.allocation.uid,
        cpu_millicores=config.input.cpu_millicores,
        memory_mib=config.input.memory_mib,
        mac=config.allocation.mac,
        disk=folder / "disk",
        disk_format="qcow2",
        disk_bytes=0,
        seed=folder / "seed.iso",
        sockets=host / "sockets" / config.vm_id,
        accelerator=config.allocation.accelerator,
        hypervisor=SIMULATED if is_simulated(config) else QEMU,
    )
