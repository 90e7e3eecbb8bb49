"""One installation of Hostler on one machine: its state directory, its names, its ports.

A state directory holds two files that decide how it is run, `settings.json` and `run/ports.json`. They are written by
the first `hostler up` and read by every later one, so that the same installation comes back whatever was said since.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from drivers.durable import write_durably
from drivers.network.joint import Joint
from model.base import Lenient
from model.errors import Invalid, Unreadable
from workers.host_place import HostPlace

DEFAULT_NAME = "hostler"
PORTS_FILE = "ports.json"
SOCKET_PATH_LIMIT = 100
"""A Unix socket's path has at most 107 bytes (unix(7)); some are left for what Postgres appends while it starts."""

_NAME = re.compile(r"[a-z][a-z0-9]{0,13}", re.ASCII)
M = TypeVar("M", bound=Lenient)
_HOME = re.compile(r"(/[A-Za-z0-9._+@-]+)+", re.ASCII)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Ports(Lenient):
    """The loopback ports of an installation. 0: not chosen yet."""

    api: int = 8460
    temporal: int = 7233
    ui: int = 8233
    gateway: int = 0
    temporal_http: int = 0
    temporal_metrics: int = 0


class InstallationSettings(HostPlace):
    """What `settings.json` holds: all that two installations on one machine must not share, and what was asked for.

    Its own names are those of its first host; further_hosts: the others on this machine (`--hosts`).
    own_database: false when DATABASE_URL was given; the URL itself is a secret and lies in the folder of keys.
    service: whether systemd keeps its supervisor (`--service`).
    environment: further HOSTLER_… settings for all processes, from `--set`.
    """

    name: str = DEFAULT_NAME
    own_database: bool = True
    service: bool = False
    environment: dict[str, str] = {}
    further_hosts: tuple[HostPlace, ...] = ()

    @property
    def hosts(self) -> tuple[HostPlace, ...]:
        """Return all hosts of the installation on this machine, by number."""
        return (self, *self.further_hosts)


def derive_settings(name: str) -> InstallationSettings:
    """Derive an installation's names from its own, so that two names meet only by a hash's accident."""
    if _NAME.fullmatch(name) is None:
        raise Invalid(f"installation name {name[:64]!r}: it must be 1 to 14 of a-z and 0-9, beginning with a letter")
    if name == DEFAULT_NAME:
        prefix, uid_base, subnet = "hst", 200_000, IPv4Network("10.84.0.0/24")
    else:
        digest = hashlib.sha256(f"installation {name}".encode()).digest()
        prefix = derive_prefix(name, digest)
        uid_base = 300_000 + 10_000 * (int.from_bytes(digest[4:7], "big") % 200_000)
        subnet = IPv4Network(f"10.{85 + digest[7] % 40}.{digest[8]}.0/24")
    return InstallationSettings(
        name=name, bridge=f"{name}0", table=name, tap_prefix=prefix, cgroup=name, uid_base=uid_base, subnet=subnet
    )


def derive_prefix(name: str, digest: bytes) -> str:
    """Choose three letters for taps that neither the default installation has nor the own bridge begins with."""
    number = int.from_bytes(digest[:4], "big")
    while True:
        prefix = "".join(_LETTERS[number // 26**place % 26] for place in range(3))
        if prefix != "hst" and not f"{name}0".startswith(prefix):
            return prefix
        number += 1


@dataclass(frozen=True)
class Installation:
    """Name every path of a state directory. Whose they are is `workers.folders`' matter."""

    home: Path
    settings: InstallationSettings
    ports: Ports = field(default_factory=Ports)

    @property
    def keys(self) -> Path:
        return self.home / "keys"

    @property
    def database_url_file(self) -> Path:
        return self.keys / "database_url"

    @property
    def postgres(self) -> Path:
        return self.home / "postgres"

    @property
    def postgres_socket(self) -> Path:
        return self.postgres / "socket"

    @property
    def postgres_access(self) -> Path:
        return self.home / "postgres-access"

    @property
    def temporal(self) -> Path:
        return self.home / "temporal"

    @property
    def host(self) -> Path:
        """Return the state directory of the first host."""
        return self.host_folder(self.settings)

    def host_folder(self, place: HostPlace) -> Path:
        """Return the state directory of one host: `host` of what its worker takes for the installation's."""
        return self.host_home(place) / "host"

    def host_home(self, place: HostPlace) -> Path:
        return self.home if place.number == 1 else self.home / "hosts" / str(place.number)

    def host_credentials(self, place: HostPlace) -> Path:
        return self.host_folder(place) / "credentials.json"

    def joint(self, place: HostPlace) -> Joint | None:
        """Return what joins a host's own namespace to the machine; None for a host that is the machine itself."""
        return place.joint((self.ports.api, self.ports.gateway))

    @property
    def images_served(self) -> Path:
        return self.home / "images-served"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def token(self) -> Path:
        return self.home / "token"

    @property
    def settings_file(self) -> Path:
        return self.home / "settings.json"

    @property
    def ports_file(self) -> Path:
        return self.run / PORTS_FILE

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports.api}"

    @property
    def ui_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.ui}"

    @property
    def temporal_address(self) -> str:
        return f"127.0.0.1:{self.ports.temporal}"

    @property
    def gateway_url(self) -> str:
        return f"127.0.0.1:{self.ports.gateway}"

    @property
    def database_url(self) -> str:
        """Return the address of our own Postgres: no secret, since the kernel says who connects (S-9)."""
        return f"postgresql://hostler@/hostler?host={self.postgres_socket}"


def read_settings(home: Path) -> InstallationSettings | None:
    """Read an earlier choice, or None. Errors: Unreadable, when there is one that cannot be understood."""
    return read_model(home / "settings.json", InstallationSettings)


def read_ports(home: Path) -> Ports | None:
    """Read the ports of an earlier run, or None."""
    return read_model(home / "run" / PORTS_FILE, Ports)


def read_installation(home: Path) -> Installation | None:
    """Read an installation that an earlier `hostler up` made, or None."""
    settings = read_settings(home)
    return None if settings is None else Installation(home, settings, read_ports(home) or Ports())


def save_installation(installation: Installation) -> None:
    """Write both files; everything that starts later reads them."""
    write_durably(installation.settings_file, to_bytes(installation.settings), mode=0o644)
    write_durably(installation.ports_file, to_bytes(installation.ports), mode=0o644)


def check_home(installation: Installation) -> None:
    """Refuse a state directory whose path has unusual characters, or makes Postgres' socket path too long."""
    if _HOME.fullmatch(str(installation.home)) is None or ".." in installation.home.parts:
        raise Invalid("the state directory's path must be absolute and made of letters, digits and . _ + @ - only")
    found = len(os.fsencode(installation.postgres_socket / ".s.PGSQL.5432"))
    if found >= SOCKET_PATH_LIMIT:
        raise Invalid(
            f"the state directory's path is {found - SOCKET_PATH_LIMIT + 1} bytes too long for Postgres' socket: "
            "choose a shorter HOSTLER_HOME"
        )


def project_root() -> Path:
    """Return the folder that our packages lie in: a checkout, or site-packages."""
    return Path(__file__).resolve().parents[1]


def python() -> str:
    """Return this installation's interpreter, as its virtual environment names it."""
    return sys.executable


def read_model(path: Path, kind: type[M]) -> M | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Unreadable(f"{path.name} of the state directory cannot be understood: repair or remove it") from error


def to_bytes(model: Lenient) -> bytes:
    return (model.model_dump_json(indent=2) + "\n").encode()
