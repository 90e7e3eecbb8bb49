"""Root disks by the real qemu-img, as their VM's own user."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.disks import Disks, DiskState
from drivers.images import BaseImage
from drivers.space import Space
from model.errors import Fenced, OutOfSpace, Permanent, StepFailed, Unreadable

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="disks belong to users of their own, so it needs root"),
    pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img"),
]
MIB = 1 << 20
UID, GID = 297_100, 297_100


def passes() -> None:
    """A guard that lets everything through."""


@pytest.fixture
def base(tmp_path: Path) -> BaseImage:
    path = tmp_path / "base.raw"
    path.write_bytes(b"base" * (MIB // 4) + bytes(MIB))
    path.chmod(0o444)
    return BaseImage(path, "raw", 2 * MIB, 2 * MIB)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "vm"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(Space(tmp_path))


async def make(disks: Disks, base: BaseImage, path: Path, size: int | None) -> DiskState:
    return await disks.make_overlay(base, path, size, uid=UID, gid=GID, guard=passes)


def head(path: Path) -> bytes:
    target = Path(f"{path}.head")
    qemu_img("dd", "-f", "qcow2", "-O", "raw", "bs=4096", "count=1", f"if={path}", f"of={target}")
    return target.read_bytes()[:8]


def qemu_img(*arguments: str | Path) -> None:
    subprocess.run(["qemu-img", *arguments], check=True)


async def test_a_disk_is_an_overlay_of_its_vm_s_user(disks: Disks, base: BaseImage, folder: Path) -> None:
    """D-4, L-C9, S-10."""
    path = folder / "disk"
    assert await disks.find(path) is None
    made = await make(disks, base, path, 64 * MIB)
    assert (made.format, made.virtual_size_bytes) == ("qcow2", 64 * MIB)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (UID, GID, 0o600)
    assert [p.name for p in folder.iterdir()] == ["disk"]
    assert head(path) == b"basebase"


async def test_making_it_again_changes_nothing_and_removes_leftovers_first(
    disks: Disks, base: BaseImage, folder: Path
) -> None:
    """L-G4: tries that died leave nothing, a disk that is there is never made anew."""
    path = folder / "disk"
    (folder / "disk.new.dead").write_bytes(b"half a disk")
    await make(disks, base, path, None)
    assert [p.name for p in folder.iterdir()] == ["disk"]
    before = path.stat()
    assert (await make(disks, base, path, 64 * MIB)).virtual_size_bytes == 2 * MIB
    assert path.stat().st_ino == before.st_ino


async def test_an_image_that_is_larger_is_a_permanent_error(disks: Disks, base: BaseImage, folder: Path) -> None:
    """L-C9."""
    with pytest.raises(Permanent, match="larger disk"):
        await make(disks, base, folder / "disk", MIB)
    assert list(folder.iterdir()) == []


async def test_growing_keeps_the_content_and_never_shrinks(disks: Disks, base: BaseImage, folder: Path) -> None:
    path = folder / "disk"
    await make(disks, base, path, None)

    async def grow(size: int) -> int:
        return (await disks.grow(path, size, uid=UID, gid=GID, guard=passes)).virtual_size_bytes

    assert await grow(10 * MIB + 1) == 10 * MIB + 512
    before = path.stat().st_mtime_ns
    assert await grow(10 * MIB + 1) == 10 * MIB + 512
    assert path.stat().st_mtime_ns == before
    with pytest.raises(Permanent, match="cannot shrink"):
        await grow(MIB)
    assert head(path) == b"basebase"


async def test_a_guard_that_refuses_leaves_nothing(disks: Disks, base: BaseImage, folder: Path) -> None:
    """L-G5: asked before each effect; the second time here is before the disk gets its name."""
    answers = iter([None, Fenced("newer")])

    def guard() -> None:
        if (answer := next(answers)) is not None:
            raise answer

    with pytest.raises(Fenced):
        await disks.make_overlay(base, folder / "disk", None, uid=UID, gid=GID, guard=guard)
    assert list(folder.iterdir()) == []


async def test_links_and_changed_disks_lead_nowhere(
    disks: Disks, base: BaseImage, folder: Path, tmp_path: Path
) -> None:
    """S-13: no link is followed, a header that the guest wrote decides nothing but a refusal."""
    path = folder / "disk"
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    path.symlink_to(secret)
    with pytest.raises(Unreadable):
        await make(disks, base, path, None)
    await disks.remove(path)
    assert secret.read_bytes() == b"secret"
    qemu_img("create", "-q", "-f", "qcow2", "-o", f"data_file={tmp_path}/data", path, "1M")
    with pytest.raises(Unreadable):
        await disks.find(path)
    await disks.remove(path)
    await make(disks, base, path, None)
    os.chown(path, UID + 1, GID)
    with pytest.raises(Unreadable, match="another user"):
        await disks.grow(path, 8 * MIB, uid=UID, gid=GID, guard=passes)


async def test_a_base_that_is_gone_or_renamed_does_not_matter_for_growing(
    disks: Disks, base: BaseImage, folder: Path
) -> None:
    """S-13: the name in the header is not opened."""
    path = folder / "disk"
    await make(disks, base, path, None)
    base.path.unlink()
    os.mkfifo(base.path)
    grown = await disks.grow(path, 8 * MIB, uid=UID, gid=GID, guard=passes)
    assert grown.virtual_size_bytes == 8 * MIB


async def test_a_disk_in_use_is_not_grown(disks: Disks, base: BaseImage, folder: Path) -> None:
    path = folder / "disk"
    await make(disks, base, path, None)
    image = {"driver": "qcow2", "file": {"driver": "file", "filename": str(path), "locking": "on"}, "node-name": "d"}
    holder = subprocess.Popen(  # noqa: ASYNC220
        ["qemu-storage-daemon", "--blockdev", json.dumps(image), "--export",
         f"type=vhost-user-blk,id=e,node-name=d,writable=on,addr.type=unix,addr.path={folder}/s",
         "--pidfile", f"{folder}/pid"]
    )  # fmt: skip
    try:
        while not (folder / "pid").exists():
            assert holder.poll() is None
        with pytest.raises(StepFailed, match="stop the VM first"):
            await disks.grow(path, 8 * MIB, uid=UID, gid=GID, guard=passes)
    finally:
        holder.terminate()
        holder.wait(10)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "hostler-test", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


async def test_a_full_filesystem_is_told_early(base: BaseImage, full: Path) -> None:
    """D-7, J6."""
    with pytest.raises(OutOfSpace, match="1 MiB needed"):
        await make(Disks(Space(full)), base, full / "disk", None)
    assert list(full.iterdir()) == []
