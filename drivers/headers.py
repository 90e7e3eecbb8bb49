"""Our own eyes on an image, before any other program opens it (S-18).

Reads at most a few hundred bytes by position from an open descriptor and trusts none of them. Layout: "qcow2 image
file format", docs/interop/qcow2.txt of QEMU.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Literal

from model.errors import Permanent

SECTOR = 512
MIB = 1 << 20
QCOW2_MAGIC = b"QFI\xfb"

_V2 = struct.Struct(">4sIQIIQIIQQIIQ")
_V3 = struct.Struct(">QQQII")
_EXTENSION = struct.Struct(">II")
_L1_LIMIT_BYTES = 32 * MIB
_REFCOUNT_TABLE_LIMIT_BYTES = 8 * MIB

_INCOMPATIBLE = {
    0: "was not closed properly",
    1: "is marked as corrupt",
    2: "keeps its data in another file",
}
_COMPRESSION_TYPE = 1 << 3
_EXTENDED_L2 = 1 << 4
_END = 0x00000000
_FEATURE_NAMES = 0x6803F857
_BACKING_FORMAT = 0xE2792ACA
_EXTENSIONS = {
    0x44415441: "keeps its data in another file",
    0x0537BE77: "is encrypted",
    0x23852875: "holds dirty bitmaps",
    _BACKING_FORMAT: "names a backing file",
}
_OTHER_FORMATS = (
    (0, b"KDMV", "VMDK"),
    (0, b"COWD", "VMDK"),
    (0, b"# Disk Descriptor", "VMDK"),
    (0, b"conectix", "VHD"),
    (0, b"vhdxfile", "VHDX"),
    (0, b"QED\0", "QED"),
    (0, b"WithoutFreeSpace", "Parallels"),
    (0, b"WithouFreSpacExt", "Parallels"),
    (0, b"OOOM\0", "cow"),
    (0, b"Bochs Virtual HD Image", "Bochs"),
    (0, b"LUKS\xba\xbe", "LUKS"),
    (0, b"\x1f\x8b", "gzip (packed twice)"),
    (0, b"\xfd7zXZ\0", "xz (packed twice)"),
    (0, b"\x28\xb5\x2f\xfd", "zstd (packed twice)"),
    (0, b"BZh", "bzip2"),
    (0, b"PK\x03\x04", "zip"),
    (0, b"\x7fELF", "a program"),
    (0, b"<!DOCTYPE", "a web page"),
    (0, b"<html", "a web page"),
    (64, b"\x7f\x10\xda\xbe", "VDI"),
)

DiskFormat = Literal["qcow2", "raw"]


@dataclass(frozen=True)
class DiskHeader:
    """What a disk image says of itself; has_backing_file is only ever true where an overlay was asked for."""

    format: DiskFormat
    virtual_size_bytes: int
    has_backing_file: bool = False


def read_header(
    descriptor: int,
    *,
    max_virtual_size_bytes: int,
    stated_format: DiskFormat | None = None,
    overlay: bool = False,
) -> DiskHeader:
    """Read which of the two formats a file has and how large its disk is.

    stated_format: what the user, or an earlier reading, says; another one is refused. overlay: a backing file is
    accepted, since it is our own disk (its name is not read). Raises Permanent, which names what is wrong.
    """
    head = os.pread(descriptor, 112, 0)
    size = os.fstat(descriptor).st_size
    is_qcow2 = head.startswith(QCOW2_MAGIC)
    if stated_format and is_qcow2 != (stated_format == "qcow2"):
        found = "a qcow2 header" if is_qcow2 else "no qcow2 header"
        raise Permanent(f"the image is stated to be {stated_format}, but it has {found}; state what it is")
    header = _qcow2(descriptor, head, size, overlay=overlay) if is_qcow2 else _raw(head, size)
    if header.virtual_size_bytes > max_virtual_size_bytes:
        raise _refused(
            f"has a disk of {_mib(header.virtual_size_bytes)} MiB, over the limit of {_mib(max_virtual_size_bytes)} MiB"
        )
    return header


def _raw(head: bytes, size: int) -> DiskHeader:
    if size == 0:
        raise _refused("is empty")
    for offset, magic, name in _OTHER_FORMATS:
        if head[offset : offset + len(magic)] == magic:
            raise _refused(f"looks like {name}; only qcow2 and raw are taken")
    return DiskHeader("raw", -(-size // SECTOR) * SECTOR)


def _qcow2(descriptor: int, head: bytes, file_size: int, *, overlay: bool) -> DiskHeader:
    if len(head) < _V2.size:
        raise _refused("ends within its header")
    (_, version, backing_offset, backing_size, cluster_bits, size, crypt, l1_size, l1_offset, refcount_offset,
     refcount_clusters, snapshots, _) = _V2.unpack_from(head)  # fmt: skip
    if version not in (2, 3):
        raise _refused(f"is of qcow2 version {version}; 2 and 3 are known")
    if (backing_offset or backing_size) and not overlay:
        raise _refused("names a backing file")
    if crypt:
        raise _refused("is encrypted")
    if snapshots and not overlay:
        raise _refused("holds internal snapshots")
    if not 9 <= cluster_bits <= 21:
        raise _refused(f"has clusters of 2^{cluster_bits} bytes")
    incompatible, header_length = _version_3(head, cluster_bits) if version == 3 else (0, _V2.size)
    _check_extensions(descriptor, header_length, 1 << cluster_bits, overlay=overlay)
    _check_tables(
        file_size, size, cluster_bits, incompatible, (l1_offset, l1_size), (refcount_offset, refcount_clusters)
    )
    return DiskHeader("qcow2", -(-size // SECTOR) * SECTOR, bool(backing_offset))


def _version_3(head: bytes, cluster_bits: int) -> tuple[int, int]:
    """Check the fields that version 3 adds; give the incompatible features and the header's length."""
    if len(head) < _V2.size + _V3.size:
        raise _refused("ends within its header")
    incompatible, _, autoclear, refcount_order, length = _V3.unpack_from(head, _V2.size)
    for bit, meaning in _INCOMPATIBLE.items():
        if incompatible & 1 << bit:
            raise _refused(meaning)
    if incompatible & ~(_COMPRESSION_TYPE | _EXTENDED_L2):
        raise _refused("needs a feature that is not known here")
    if autoclear & 2:
        raise _refused("keeps its data in another file")
    if refcount_order > 6:
        raise _refused("has reference counts of an unknown width")
    if length < _V2.size + _V3.size or length % 8 or length > 1 << cluster_bits:
        raise _refused("has a header of an impossible length")
    compression = head[104] if length > 104 and len(head) > 104 else 0
    if compression not in (0, 1) or (compression != 0) != bool(incompatible & _COMPRESSION_TYPE):
        raise _refused("is compressed in an unknown way")
    if incompatible & _EXTENDED_L2 and cluster_bits < 14:
        raise _refused("has extended L2 entries with clusters that are too small for them")
    return incompatible, length


def _check_extensions(descriptor: int, offset: int, cluster_size: int, *, overlay: bool) -> None:
    """Walk the header extensions of the first cluster, refusing every kind that is not known to be harmless."""
    while offset + _EXTENSION.size <= cluster_size:
        data = os.pread(descriptor, _EXTENSION.size, offset)
        if len(data) < _EXTENSION.size:
            raise _refused("ends within its header")
        kind, length = _EXTENSION.unpack(data)
        if kind == _END:
            return
        if kind in _EXTENSIONS and not (overlay and kind == _BACKING_FORMAT):
            raise _refused(_EXTENSIONS[kind])
        if kind not in (_FEATURE_NAMES, _BACKING_FORMAT):
            raise _refused("has a header extension that is not known here")
        offset += _EXTENSION.size + -(-length // 8) * 8
    if offset > cluster_size:
        raise _refused("has a header extension beyond its first cluster")


def _check_tables(
    file_size: int,
    size: int,
    cluster_bits: int,
    incompatible: int,
    l1: tuple[int, int],
    refcounts: tuple[int, int],
) -> None:
    """Check that the tables lie in the file and that the first is large enough for the disk."""
    if size == 0:
        raise _refused("has a disk of no size")
    if size >= 1 << 63:
        raise _refused("has a disk of an absurd size")
    cluster_size = 1 << cluster_bits
    l1_offset, l1_entries = l1
    reach = cluster_size * (cluster_size // (16 if incompatible & _EXTENDED_L2 else 8))
    if l1_entries < -(-size // reach) or l1_entries * 8 > _L1_LIMIT_BYTES:
        raise _refused("has a first-level table that does not fit its disk")
    if l1_offset % cluster_size or not cluster_size <= l1_offset <= file_size - l1_entries * 8:
        raise _refused("has a first-level table that lies outside the file")
    offset, clusters = refcounts
    length = clusters * cluster_size
    if not clusters or length > _REFCOUNT_TABLE_LIMIT_BYTES or offset % cluster_size:
        raise _refused("has an impossible reference count table")
    if not cluster_size <= offset <= file_size - length:
        raise _refused("has a reference count table that lies outside the file")


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.0f}".replace(",", " ")


def _refused(what: str) -> Permanent:
    return Permanent(f"the image {what}; give an image that stands alone")
