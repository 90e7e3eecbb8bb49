"""The folders of a state directory and whose they are. What is there already is checked, and never opened wider (S-2).

| folder | owner, group | mode | holds |
| --- | --- | --- | --- |
| keys/ | hostler | 0700 | master key, DATABASE_URL, the SSH CA's key |
| postgres/ | hostler-postgres, hostler | 0710 | data/ (0700), socket/ (0710: hostler may enter) |
| postgres-access/ | root | 0755 | who may connect as whom |
| temporal/ | hostler-temporal | 0700 | the dev server's SQLite file |
| api/ | hostler | 0700 | what API and control worker keep |
| host/ | root | 0700 | records, disks, images, the host's credential |
| hosts/N/host/ | root | 0700 | the same of this machine's host N, from the second on |
| images-served/ | root | 0755 | image files that operators may name by file: URL |
| logs/, run/ | root | 0700 | logs; process records, ports |
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from model.errors import Conflict
from workers import users
from workers.installation import Installation
from workers.users import User, need_user


@dataclass(frozen=True)
class Folder:
    name: str
    owner: str
    group: str
    mode: int


FOLDERS = (
    Folder(".", users.ROOT, users.ROOT, 0o755),
    Folder("keys", users.HOSTLER, users.HOSTLER, 0o700),
    Folder("postgres", users.POSTGRES, users.HOSTLER, 0o710),
    Folder("postgres/socket", users.POSTGRES, users.HOSTLER, 0o710),
    Folder("postgres-access", users.ROOT, users.ROOT, 0o755),
    Folder("temporal", users.TEMPORAL, users.TEMPORAL, 0o700),
    Folder("api", users.HOSTLER, users.HOSTLER, 0o700),
    Folder("host", users.ROOT, users.ROOT, 0o700),
    Folder("images-served", users.ROOT, users.ROOT, 0o755),
    Folder("logs", users.ROOT, users.ROOT, 0o700),
    Folder("run", users.ROOT, users.ROOT, 0o700),
)


def ensure_folders(installation: Installation) -> None:
    """Make what is missing and check the rest. Blocks; needs root.

    Errors: Conflict, when a folder is a link, another's, or open to more than the table allows.
    """
    installation.home.parent.mkdir(parents=True, exist_ok=True)
    numbers = [place.number for place in installation.settings.further_hosts]
    further = ("hosts", *(name for number in numbers for name in (f"hosts/{number}", f"hosts/{number}/host")))
    for folder in (*FOLDERS, *(Folder(name, users.ROOT, users.ROOT, 0o700) for name in further if numbers)):
        ensure_folder(installation, folder)


def ensure_folder(installation: Installation, folder: Folder) -> None:
    path = installation.home / folder.name
    owner, group = need_user(folder.owner), need_user(folder.group)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        check_folder(folder, os.lstat(path), owner, group)
        return
    os.chown(path, owner.uid, group.gid)
    path.chmod(folder.mode)


def check_folder(folder: Folder, found: os.stat_result, owner: User, group: User) -> None:
    what = "the state directory" if folder.name == "." else f"{folder.name}/ of the state directory"
    if not stat.S_ISDIR(found.st_mode):
        raise Conflict(f"{what} is not a folder: move it away")
    if found.st_uid != owner.uid:
        raise Conflict(f"{what} belongs to user {found.st_uid}, not to {folder.owner}: another's, or copied; move it")
    shared = found.st_gid != group.gid and found.st_mode & 0o070
    if folder.name != "." and (shared or stat.S_IMODE(found.st_mode) & ~folder.mode):
        mode = stat.S_IMODE(found.st_mode)
        raise Conflict(f"{what} has mode {mode:04o}; it must not be wider than {folder.mode:04o} {folder.group}")
