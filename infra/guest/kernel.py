"""The guest's kernel and the initrd that finds its root disk."""

from __future__ import annotations

import io
import lzma
import struct
import subprocess
import zlib
from pathlib import Path

INITRD_MODULES = ("virtio_pci", "virtio_mmio", "virtio_blk", "virtio_net")


def unpack_kernel(image: bytes, unpacked: Path) -> bytes:
    """Take the ELF kernel out of a bzImage, so that QEMU's PVH loader saves the guest the unpacking.

    Field offsets: the kernel's Documentation/arch/x86/boot.rst. `unpacked` holds the guest's lz4.
    """
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[(setup_sectors + 1) * 512 + offset :][:length]
    if payload[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor().decompress(payload)
    if payload[:2] == b"\x1f\x8b":
        return zlib.decompressobj(31).decompress(payload)
    if payload[:4] == b"\x02\x21\x4c\x18":
        # LZ4's legacy frame is followed by the unpacked size, which lz4 takes for a broken block.
        return subprocess.run(
            [*loader(unpacked), unpacked / "usr/bin/lz4", "-dcq"], input=payload[:-4], capture_output=True, check=True
        ).stdout
    raise SystemExit("guest: the kernel is packed in a way that is not known here")


def loader(unpacked: Path) -> list[str]:
    """Start of a command that runs an unpacked program with the unpacked libraries."""
    libraries = f"{unpacked}/lib/x86_64-linux-gnu:{unpacked}/usr/lib/x86_64-linux-gnu"
    return [f"{unpacked}/lib64/ld-linux-x86-64.so.2", "--library-path", libraries]


def select_modules(modules_folder: Path, names: tuple[str, ...]) -> list[str]:
    """List the named modules and what they need, needed ones first, as paths below the folder."""
    needs: dict[str, list[str]] = {}
    for line in (modules_folder / "modules.dep").read_text().splitlines():
        module, _, needed = line.partition(":")
        needs[module] = needed.split()
    by_name = {Path(module).name.split(".ko")[0].replace("-", "_"): module for module in needs}
    selected: list[str] = []
    for name in names:
        module = by_name.get(name.replace("-", "_"))
        if module is not None:  # else built in, or not in this kernel
            selected += [m for m in (*reversed(needs[module]), module) if m not in selected]
    return selected


def make_initrd(modules_folder: Path, busybox: bytes, init: bytes) -> bytes:
    """Make the initrd: busybox, the virtio modules in loading order, and the init script."""
    modules = select_modules(modules_folder, INITRD_MODULES)
    order = "".join(f"{Path(module).name}\n" for module in modules)
    entries = [
        ("bin", 0o40755, b"", (0, 0)),
        ("dev", 0o40755, b"", (0, 0)),
        ("dev/console", 0o20600, b"", (5, 1)),
        ("bin/busybox", 0o100755, busybox, (0, 0)),
        ("bin/sh", 0o120777, b"busybox", (0, 0)),
        ("init", 0o100755, init, (0, 0)),
        ("modules.order", 0o100644, order.encode(), (0, 0)),
    ]
    entries += [(Path(m).name, 0o100644, (modules_folder / m).read_bytes(), (0, 0)) for m in modules]
    return cpio(entries)


def cpio(entries: list[tuple[str, int, bytes, tuple[int, int]]]) -> bytes:
    """Pack entries of name, mode, content and device numbers as a "newc" archive.

    The format is described in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
    """
    archive = io.BytesIO()
    numbered = [*enumerate(entries, start=1), (0, ("TRAILER!!!", 0, b"", (0, 0)))]
    for inode, (name, mode, content, device) in numbered:
        path = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
        archive.write(b"070701" + b"".join(b"%08X" % field for field in fields))
        for part in (path, content):
            archive.write(part)
            archive.write(b"\0" * (-archive.tell() % 4))
    return archive.getvalue()
