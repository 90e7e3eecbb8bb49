"""Our own reader against what qemu-img makes, and against what nobody should make."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers.headers import DiskHeader, read_header
from model.errors import Permanent

pytestmark = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")
LIMIT = 1 << 44


def qemu_img(*arguments: str | Path) -> None:
    subprocess.run(["qemu-img", *arguments], check=True, capture_output=True, text=True)


def read(path: Path, **more: object) -> DiskHeader:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_header(descriptor, **({"max_virtual_size_bytes": LIMIT} | more))  # type: ignore[arg-type]
    finally:
        os.close(descriptor)


def qcow2(path: Path, *options: str, size: str = "64M") -> Path:
    qemu_img("create", "-q", "-f", "qcow2", *(w for o in options for w in ("-o", o)), path, size)
    return path


def patched(path: Path, offset: int, form: str, value: int | bytes) -> Path:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack(">" + form, value))
    return path


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sectors=st.integers(1, 1 << 26),
    cluster_bits=st.integers(9, 21),
    version=st.sampled_from(["0.10", "1.1"]),
    refcount_bits=st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    zstd=st.booleans(),
    extended=st.booleans(),
    preallocation=st.sampled_from(["off", "metadata"]),
)
def test_every_plain_qcow2_of_qemu_img_is_taken(
    sectors: int, cluster_bits: int, version: str, refcount_bits: int, zstd: bool, extended: bool, preallocation: str
) -> None:
    """S-18: nothing honest is refused."""
    if cluster_bits < 14:
        sectors, extended = min(sectors, 1 << (cluster_bits + 6)), False
    if preallocation == "metadata":
        sectors = min(sectors, 1 << 17)
    if version == "0.10":
        refcount_bits, zstd, extended = 16, False, False
    options = (
        f"cluster_size={1 << cluster_bits},compat={version},refcount_bits={refcount_bits},preallocation={preallocation}"
    )
    options += ",compression_type=zstd" if zstd else ""
    options += ",extended_l2=on" if extended else ""
    with tempfile.TemporaryDirectory() as folder:
        path = qcow2(Path(folder) / "a", options, size=str(sectors * 512))
        assert read(path) == DiskHeader("qcow2", sectors * 512)
        assert read(path, stated_format="qcow2").format == "qcow2"


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1 << 20])
def test_a_raw_disk_is_as_large_as_its_file_in_whole_sectors(tmp_path: Path, size: int) -> None:
    path = tmp_path / "raw"
    path.write_bytes(b"\x01" * size)
    found = subprocess.run(
        ["qemu-img", "info", "-f", "raw", "--output=json", path], check=True, capture_output=True, text=True
    )
    assert f'"virtual-size": {read(path).virtual_size_bytes}' in found.stdout
    assert read(path).format == "raw"


def test_what_qemu_img_makes_and_nobody_may_bring_is_refused_by_name(tmp_path: Path) -> None:
    """S-18, D-3."""
    base = qcow2(tmp_path / "base")
    backed = tmp_path / "backed"
    qemu_img("create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", backed)
    data = qcow2(tmp_path / "data", f"data_file={tmp_path / 'other'}")
    raw_data = qcow2(tmp_path / "rawdata", f"data_file={tmp_path / 'other2'},data_file_raw=on")
    snapshot = qcow2(tmp_path / "snapshot")
    qemu_img("snapshot", "-c", "one", snapshot)
    bitmap = qcow2(tmp_path / "bitmap")
    qemu_img("bitmap", "--add", bitmap, "b")
    luks = tmp_path / "luks"
    for _ in range(20):  # qemu-img measures how fast the machine is, and gives up on one that is too busy
        with contextlib.suppress(subprocess.CalledProcessError):
            qemu_img("create", "-q", "-f", "qcow2", "--object", "secret,id=s,data=x", "-o",
                     "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=100", luks, "1M")  # fmt: skip
            break
    for path, name in [
        (backed, "backing file"),
        (data, "another file"),
        (raw_data, "another file"),
        (snapshot, "snapshots"),
        (bitmap, "bitmaps"),
        (luks, "encrypted"),
    ]:
        with pytest.raises(Permanent, match=name):
            read(path)
    assert read(backed, overlay=True) == DiskHeader("qcow2", 64 << 20, has_backing_file=True)


@pytest.mark.parametrize("format_", ["vmdk", "vdi", "vpc", "vhdx", "qed", "parallels"])
def test_other_formats_are_refused_by_name(tmp_path: Path, format_: str) -> None:
    """D-3: a format that has extents or backing files of its own never reaches a guessing program."""
    path = tmp_path / "other"
    qemu_img("create", "-q", "-f", format_, path, "16M")
    with pytest.raises(Permanent, match="only qcow2 and raw"):
        read(path)


@pytest.mark.parametrize(
    ("offset", "form", "value", "name"),
    [
        (4, "I", 4, "version 4"),
        (8, "Q", 512, "backing file"),
        (16, "I", 5, "backing file"),
        (20, "I", 8, "clusters"),
        (20, "I", 22, "clusters"),
        (20, "I", 0xFFFFFFFF, "clusters"),
        (24, "Q", 0, "no size"),
        (24, "Q", 1 << 63, "absurd size"),
        (24, "Q", (1 << 64) - 1, "absurd size"),
        (24, "Q", 1 << 50, "does not fit"),
        (32, "I", 1, "encrypted"),
        (32, "I", 2, "encrypted"),
        (36, "I", 0, "does not fit"),
        (36, "I", 0xFFFFFFFF, "does not fit"),
        (36, "I", 1 << 20, "outside the file"),
        (40, "Q", 0, "outside the file"),
        (40, "Q", 1 << 62, "outside the file"),
        (40, "Q", 65537, "outside the file"),
        (48, "Q", 1 << 62, "outside the file"),
        (56, "I", 0xFFFFFFFF, "impossible reference"),
        (60, "I", 1, "snapshots"),
        (72, "Q", 1, "closed properly"),
        (72, "Q", 2, "corrupt"),
        (72, "Q", 4, "another file"),
        (72, "Q", 8, "unknown way"),
        (72, "Q", 1 << 40, "not known"),
        (88, "Q", 2, "another file"),
        (96, "I", 7, "width"),
        (100, "I", 96, "length"),
        (100, "I", 0xFFFFFFF8, "length"),
        (104, "B", 1, "unknown way"),
        (112, "I", 0x44415441, "another file"),
        (112, "I", 0xE2792ACA, "backing file"),
        (112, "I", 0x12345678, "extension"),
        (116, "I", 0xFFFFFFF0, "first cluster"),
    ],
)
def test_a_hostile_field_is_refused(tmp_path: Path, offset: int, form: str, value: int, name: str) -> None:
    """S-18."""
    path = patched(qcow2(tmp_path / "q"), offset, form, value)
    with pytest.raises(Permanent, match=name):
        read(path)


def test_sizes_over_the_limit_and_wrong_statements_are_refused(tmp_path: Path) -> None:
    """D-3."""
    path = qcow2(tmp_path / "q", size="10G")
    with pytest.raises(Permanent, match="10 240 MiB, over the limit of 5 120 MiB"):
        read(path, max_virtual_size_bytes=5 << 30)
    with pytest.raises(Permanent, match="stated to be raw"):
        read(path, stated_format="raw")
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(4096))
    with pytest.raises(Permanent, match="stated to be qcow2"):
        read(raw, stated_format="qcow2")
    (tmp_path / "empty").touch()
    with pytest.raises(Permanent, match="empty"):
        read(tmp_path / "empty")


@settings(max_examples=300, deadline=None)
@given(head=st.binary(max_size=200), tail=st.integers(0, 1 << 20), magic=st.booleans())
def test_no_bytes_lead_to_anything_but_an_answer_or_a_refusal(head: bytes, tail: int, magic: bool) -> None:
    """S-18."""
    with tempfile.TemporaryFile() as file:
        file.write((b"QFI\xfb\0\0\0\x03" if magic else b"") + head)
        file.truncate(max(tail, file.tell()))
        file.flush()
        try:
            assert 0 < read_header(file.fileno(), max_virtual_size_bytes=LIMIT).virtual_size_bytes <= LIMIT
        except Permanent:
            pass


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_changed_header_that_is_taken_is_taken_by_qemu_img_without_another_file(data: st.DataObject) -> None:
    """S-18: what our reader takes names no other file, by the word of QEMU itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = qcow2(Path(folder) / "q")
        for _ in range(data.draw(st.integers(1, 3))):
            patched(path, data.draw(st.integers(8, 150)), "B", data.draw(st.integers(0, 255)))
        try:
            read(path)
        except Permanent:
            return
        found = subprocess.run(
            ["qemu-img", "info", "-f", "qcow2", "--output=json", path], capture_output=True, text=True, check=False
        )
        assert "backing-filename" not in found.stdout
        assert '"data-file"' not in found.stdout
        assert '"encrypted": true' not in found.stdout
