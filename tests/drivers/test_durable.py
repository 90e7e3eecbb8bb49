"""Files that are whole or absent."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest

from drivers.durable import make_folder, remove_durably, remove_leftovers, write_durably
from model.errors import OutOfSpace, StepFailed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changes owners of files, so it needs root")


def test_a_file_gets_content_mode_and_owner(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_durably(path, b"one", mode=0o640, uid=4242, gid=4243)
    write_durably(path, b"two", mode=0o600)
    found = path.stat()
    assert path.read_bytes() == b"two"
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o600)
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_a_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    """S-13."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "disk").symlink_to(victim)
    write_durably(tmp_path / "disk", b"mine")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "disk").is_symlink()
    (tmp_path / "other").symlink_to(victim)
    remove_durably(tmp_path / "other")
    assert victim.exists()
    assert not (tmp_path / "other").is_symlink()


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """S-13."""
    (tmp_path / "real").mkdir()
    (tmp_path / "machines").symlink_to(tmp_path / "real")
    with pytest.raises(StepFailed):
        write_durably(tmp_path / "machines" / "x", b"")
    with pytest.raises(StepFailed):
        make_folder(tmp_path / "machines")
    assert list((tmp_path / "real").iterdir()) == []


def test_absence_is_accepted_by_removal(tmp_path: Path) -> None:
    remove_durably(tmp_path / "nothing")
    remove_durably(tmp_path / "no folder" / "nothing")


def test_a_missing_folder_is_named_and_not_called_a_full_disk(tmp_path: Path) -> None:
    """J6 (3)."""
    with pytest.raises(StepFailed, match="'machines' is missing") as caught:
        write_durably(tmp_path / "machines" / "config.json", b"")
    assert str(tmp_path) not in caught.value.detail


def test_a_folder_of_the_wrong_owner_is_taken_back(tmp_path: Path) -> None:
    """C7."""
    folder = tmp_path / "vm"
    folder.mkdir(mode=0o777)
    os.chown(folder, 4242, 4242)
    make_folder(folder)
    make_folder(folder)
    assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (0, 0o700)


def test_leftovers_of_dead_writers_go(tmp_path: Path) -> None:
    for name in ("disk.new.1234", "seed.iso.new.99", "disk"):
        (tmp_path / name).write_bytes(b"")
    remove_leftovers(tmp_path, of="disk")
    assert {p.name for p in tmp_path.iterdir()} == {"disk", "seed.iso.new.99"}
    remove_leftovers(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"disk"}


def test_a_full_filesystem_keeps_the_old_content(tmp_path: Path) -> None:
    """D-7: the step fails and cleans up its own part."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "hostler-test", tmp_path], check=True)
    try:
        write_durably(tmp_path / "status.json", b"old")
        with pytest.raises(OutOfSpace) as caught:
            write_durably(tmp_path / "status.json", b"x" * 200_000)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.ENOSPC
        assert (tmp_path / "status.json").read_bytes() == b"old"
        assert len(list(tmp_path.iterdir())) == 1
    finally:
        subprocess.run(["umount", tmp_path], check=True)
