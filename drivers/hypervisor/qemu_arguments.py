"""QEMU's arguments for one guest, built of fixed words and checked values (S-12, X-6)."""

from __future__ import annotations

import json
import re

from drivers.hypervisor import Guest, GuestVolume
from model.errors import Permanent
from model.ids import check_label
from model.volume import MOST_VOLUMES, volume_serial

PROGRAM = "qemu-system-x86_64"
TRANSLATION_CACHE_MIB = 64
SPARE_PORTS = MOST_VOLUMES
"""Slots for volumes, from which alone they can be unplugged; q35 makes none while it runs."""

DISK, BASE, SEED, TAP, MONITOR, CONSOLE, VOLUMES = 10, 11, 12, 13, 14, 15, 16
"""The numbers of descriptors in QEMU's process; those of volumes are the last."""

FIRST_VOLUME_SET = 4
"""Sets of descriptors 1 to 3 are those of root disk, base and seed."""

SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
MACHINE = "usb=off,sata=off,smbus=off,vmport=off,i8042=off,dump-guest-core=off,mem-merge=off"

_MACHINE_TYPE = re.compile(r"(?:pc-)?q35(?:-[0-9]{1,2}\.[0-9]{1,2})?", re.ASCII)
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)
_COMMAND_LINE = re.compile(r"[ -~]{0,2000}", re.ASCII)


def build_arguments(guest: Guest) -> tuple[str, ...]:
    """Build the whole command for a guest; a pure function of it. Permanent: a value that QEMU must not see."""
    check(guest)
    accelerator = "kvm" if guest.accelerator == "kvm" else f"tcg,tb-size={TRANSLATION_CACHE_MIB}"
    return (
        PROGRAM,
        *("-name", guest.vm_id, "-nodefaults", "-no-user-config", "-display", "none"),
        *("-sandbox", SANDBOX),
        *("-machine", f"{guest.machine_type or 'q35'},{MACHINE}", "-accel", accelerator),
        *("-cpu", "host" if guest.accelerator == "kvm" else "max"),
        *("-smp", str(find_processor_count(guest.cpu_millicores)), "-m", f"{guest.memory_mib}M"),
        *("-rtc", "base=utc,clock=host", "-action", "shutdown=pause,panic=pause"),
        *("-global", "ICH9-LPC.disable_s3=1", "-global", "ICH9-LPC.disable_s4=1"),
        *("-chardev", f"socket,id=monitor,fd={MONITOR},server=on,wait=off", "-mon", "chardev=monitor,mode=control"),
        *("-chardev", f"socket,id=console,fd={CONSOLE},server=on,wait=off", "-serial", "chardev:console"),
        *build_boot(guest),
        *build_disks(guest),
        *("-netdev", spell(type="tap", id="net0", fd=str(TAP))),
        *device("virtio-net-pci", id="nic0", netdev="net0", mac=guest.mac, romfile=""),
        *device("virtio-rng-pci", id="rng0"),
        *device("virtio-balloon-pci", id="balloon0"),
        *device("pvpanic-pci", id="panic0"),
        *(word for n in range(SPARE_PORTS) for word in device("pcie-root-port", id=f"spare{n}", chassis=n + 1, slot=n)),
        *(word for place, volume in enumerate(guest.volumes) for word in build_volume(place, volume)),
    )


def build_boot(guest: Guest) -> tuple[str, ...]:
    if guest.kernel is None:
        return ()  # SeaBIOS, q35's own, boots the disk
    initrd = () if guest.initrd is None else ("-initrd", str(guest.initrd))
    return ("-kernel", str(guest.kernel), *initrd, "-append", guest.command_line or "")


def build_disks(guest: Guest) -> tuple[str, ...]:
    """Spell out the block graph to its last node, so that no header can name another file."""
    root: dict[str, object] = {
        "driver": guest.disk_format,
        "node-name": "root",
        "file": "root-file",
        "discard": "unmap",
    }
    words = [*node_of_descriptor("root-file", DISK, set_number=1)]
    if guest.disk_format == "qcow2":
        root["backing"] = None if guest.base is None else "base"
    if guest.base is not None:
        words += node_of_descriptor("base-file", BASE, set_number=2, read_only=True)
        base: dict[str, object] = {"driver": guest.base_format, "node-name": "base", "file": "base-file"}
        if guest.base_format == "qcow2":
            base["backing"] = None
        words += ["-blockdev", json.dumps(base | {"read-only": True})]
    words += ["-blockdev", json.dumps(root)]
    words += node_of_descriptor("seed-file", SEED, set_number=3, read_only=True)
    words += ["-blockdev", spell(driver="raw", node_name="seed", file="seed-file", read_only=True)]
    first: dict[str, object] = {"bootindex": 0} if guest.kernel is None else {}  # a kernel takes the first place itself
    words += device("virtio-blk-pci", id="disk0", drive="root", werror="stop", rerror="stop", **first)
    words += device("virtio-blk-pci", id="seed0", drive="seed")
    return tuple(words)


def build_volume(place: int, volume: GuestVolume) -> tuple[str, ...]:
    """Spell out a volume that a guest boots with, in the slot of its place."""
    serial, number = volume_serial(volume.volume_id), FIRST_VOLUME_SET + place
    return (
        *("-add-fd", f"set={number},fd={VOLUMES + place},opaque={serial}"),
        *("-blockdev", spell(**volume_file(serial, number)), "-blockdev", spell(**volume_node(serial))),
        *("-device", spell(**volume_device(serial, f"spare{place}"))),
    )


def volume_file(serial: str, set_number: int) -> dict[str, object]:
    """Spell the file beneath a volume's node, as a blockdev."""
    return {
        "driver": "file",
        "node-name": f"{serial}-file",
        "filename": f"/dev/fdset/{set_number}",
        "discard": "unmap",
    }


def volume_node(serial: str) -> dict[str, object]:
    """Spell a volume's node: raw, whatever the guest writes into it (S-13)."""
    return {"driver": "raw", "node-name": serial, "file": f"{serial}-file", "discard": "unmap"}


def volume_device(serial: str, port: str) -> dict[str, object]:
    """Spell a volume's disk in a free slot; its id, and the serial number that the guest reads, is the node's name."""
    return {
        "driver": "virtio-blk-pci",
        "id": serial,
        "drive": serial,
        "bus": port,
        "serial": serial,
        "werror": "stop",
        "rerror": "stop",
    }


def node_of_descriptor(name: str, descriptor: int, *, set_number: int, read_only: bool = False) -> tuple[str, ...]:
    path, discard = f"/dev/fdset/{set_number}", "ignore" if read_only else "unmap"
    file = spell(driver="file", node_name=name, filename=path, read_only=read_only, discard=discard)
    return ("-add-fd", f"set={set_number},fd={descriptor}", "-blockdev", file)


def device(driver: str, **properties: object) -> tuple[str, str]:
    return ("-device", spell(driver=driver, **properties))


def spell(**words: object) -> str:
    return json.dumps({key.replace("_", "-"): value for key, value in words.items()})


def find_processor_count(cpu_millicores: int) -> int:
    """L-V8: as many vCPUs as are needed to use the whole quota."""
    return max(1, -(-cpu_millicores // 1000))


def check(guest: Guest) -> None:
    """Refuse what is no plain value of its kind; all of it was checked before, where it came from."""
    try:
        check_label(guest.vm_id)
    except ValueError as error:
        raise Permanent("the VM's id is no label") from error
    patterns = (
        (_MAC, guest.mac),
        (_MACHINE_TYPE, guest.machine_type or "q35"),
        (_COMMAND_LINE, guest.command_line or ""),
    )
    if not all(pattern.fullmatch(value) for pattern, value in patterns):
        raise Permanent("the VM's MAC, machine type or kernel command line is none that this host's QEMU is given")
    formats = ("raw", "qcow2")
    if guest.disk_format not in formats or (guest.base is not None and guest.base_format not in formats):
        raise Permanent("a disk's format must be raw or qcow2")
    if guest.base is not None and guest.disk_format != "qcow2":
        raise Permanent("only a qcow2 disk can lie over a base image")
    if guest.kernel is None and guest.firmware not in (None, "bios"):
        raise Permanent(f"firmware {guest.firmware!r} cannot boot here: this host's QEMU driver knows bios")
