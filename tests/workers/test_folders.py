"""The folders of a state directory: whose they are, and that nothing there is opened wider."""

import os
from pathlib import Path

import pytest

from model.errors import Conflict
from workers.folders import FOLDERS, ensure_folders
from workers.installation import Installation, derive_settings
from workers.users import ensure_users, need_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: folders belong to several users")


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    ensure_users()
    return Installation(tmp_path / "deep" / "home", derive_settings("folderstest"))


def test_each_folder_has_its_owner_and_mode(installation: Installation) -> None:
    """S-2: Temporal and Postgres run as users that can read no key."""
    ensure_folders(installation)
    ensure_folders(installation)
    for folder in FOLDERS:
        found = (installation.home / folder.name).stat()
        assert (found.st_uid, found.st_gid) == (need_user(folder.owner).uid, need_user(folder.group).gid)
        assert found.st_mode & 0o7777 == folder.mode


def test_a_narrower_mode_stays(installation: Installation) -> None:
    """S-2: modes of existing folders are never widened."""
    ensure_folders(installation)
    installation.logs.chmod(0o500)
    installation.postgres_access.chmod(0o700)
    ensure_folders(installation)
    assert installation.logs.stat().st_mode & 0o7777 == 0o500
    assert installation.postgres_access.stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("name", ["keys", "host", "run", "postgres/socket", "temporal"])
def test_a_wider_mode_is_refused(installation: Installation, name: str) -> None:
    ensure_folders(installation)
    (installation.home / name).chmod(0o755)
    with pytest.raises(Conflict, match=f"{name}/ of the state directory has mode 0755"):
        ensure_folders(installation)


def test_a_link_or_anothers_folder_is_refused(installation: Installation, tmp_path: Path) -> None:
    ensure_folders(installation)
    os.chown(installation.keys, need_user("hostler-temporal").uid, -1)
    with pytest.raises(Conflict, match="keys/ of the state directory belongs to user"):
        ensure_folders(installation)
    installation.keys.rmdir()
    installation.keys.symlink_to(tmp_path)
    with pytest.raises(Conflict, match="is not a folder"):
        ensure_folders(installation)
