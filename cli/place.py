"""Where the API is, and with which token to speak to it: environment first, then this machine's installation.

Read without the settings of the processes, which cost more time to import than a whole `hostler vm ls`.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cli.failures import NotReachable, Usage

DEFAULT_URL = "http://127.0.0.1:8460"
_TOKEN_LIMIT_BYTES = 4096


def home_directory() -> Path:
    """Return the state directory: HOSTLER_HOME, else the default of `runtime.settings`."""
    given = os.environ.get("HOSTLER_HOME")
    if given:
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/hostler")
    return Path.home() / ".local" / "share" / "hostler"


@dataclass(frozen=True)
class Place:
    """An API: its URL, and the token for it. `home` is this machine's state directory, which may not exist."""

    url: str
    token: str | None
    home: Path

    def __repr__(self) -> str:
        return f"Place(url={self.url!r}, home={self.home!r})"

    @property
    def ssh(self) -> Path:
        """Return the folder of the installation's own SSH key."""
        return self.home / "ssh"

    @property
    def identity(self) -> Path:
        """Return the file of the installation's own SSH key."""
        return self.ssh / "id_ed25519"


def find_place(home: Path | None = None) -> Place:
    """Find the API. Errors: Usage for a token file that others can read; NotReachable for one that we cannot."""
    found = home or home_directory()
    return Place(os.environ.get("HOSTLER_URL") or installed_url(found) or DEFAULT_URL, read_token(found), found)


def installed_url(home: Path) -> str | None:
    """Return the URL of this machine's installation, from the ports that `hostler up` wrote down."""
    port = read_json(home / "run" / "ports.json").get("api")
    return f"http://127.0.0.1:{port}" if isinstance(port, int) and 0 < port < 65536 else None


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, or an empty one where there is none that we can read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def read_token(home: Path) -> str | None:
    """Return HOSTLER_TOKEN, or else what the state directory's token file holds; None where there is neither."""
    given = os.environ.get("HOSTLER_TOKEN")
    return check_token(given.strip(), "HOSTLER_TOKEN") if given else read_token_file(home)


def read_token_file(home: Path) -> str | None:
    """Return the token of this machine's installation. Errors: Usage, NotReachable."""
    try:
        with (home / "token").open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_TOKEN_LIMIT_BYTES).decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise NotReachable(
            "the token file of the state directory is another user's: use sudo, or set HOSTLER_TOKEN"
        ) from error
    if mode & 0o077:
        raise Usage(f"the token file of the state directory can be read by others (mode {mode:04o}): chmod 600 it")
    return check_token(text, "the token file")


def check_token(token: str, where: str) -> str:
    """Return a token that fits into a header; its text is never repeated."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Usage(f"{where} does not hold a token: it must be one word such as hst_…")
    return token
