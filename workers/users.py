"""The users that Hostler's processes run as: one for each border, none of them shared with anything else (S-2)."""

from __future__ import annotations

import pwd
import subprocess
import time
from dataclasses import dataclass

from model.errors import StepFailed

HOSTLER = "hostler"
POSTGRES = "hostler-postgres"
TEMPORAL = "hostler-temporal"
IMAGE = "hostler-image"
DNS = "hostler-dns"
ROOT = "root"
ALL = (HOSTLER, POSTGRES, TEMPORAL, IMAGE, DNS)

_TRIES = 50


@dataclass(frozen=True)
class User:
    name: str
    uid: int
    gid: int


def find_user(name: str) -> User | None:
    """Find a user of this machine by name."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return User(name, found.pw_uid, found.pw_gid)


def need_user(name: str) -> User:
    """Find a user that `ensure_users` has made."""
    user = find_user(name)
    if user is None:
        raise StepFailed(f"user {name} is not on this machine: run `hostler up` as root once")
    return user


def ensure_users() -> tuple[str, ...]:
    """Make the users that are missing, without home, shell or password; return their names. Blocks; needs root."""
    missing = tuple(name for name in ALL if find_user(name) is None)
    for name in missing:
        make_user(name)
    return missing


def make_user(name: str) -> None:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    status = 0
    for _ in range(_TRIES):
        made = subprocess.run([*command, "--shell", "/usr/sbin/nologin", name], capture_output=True, check=False)
        if find_user(name) is not None:
            return
        status = made.returncode
        if status != 1:  # 1: another program holds the lock of the password file (useradd(8))
            break
        time.sleep(0.1)
    raise StepFailed(f"user {name} could not be made: useradd ended with {status}")
