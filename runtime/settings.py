"""The settings of Hostler's processes, from the environment. The command line uses it: nothing heavy is imported."""

from __future__ import annotations

import os
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from drivers.names import HostNames
from model.capacity import Caps
from model.placement import Policy, Strategy

SimulatedGuests = Literal["none", "beside", "only"]
DEFAULT_URL = "http://127.0.0.1:8460"
DEFAULT_TEMPORAL_ADDRESS = "127.0.0.1:7233"
DEFAULT_GATEWAY_PORT = 8461
DEFAULT_GATEWAY = f"127.0.0.1:{DEFAULT_GATEWAY_PORT}"


def default_home() -> Path:
    """Return the state directory of an installation that names none: root's is the system's, another user's its own."""
    if os.geteuid() == 0:
        return Path("/var/lib/hostler")
    return Path.home() / ".local" / "share" / "hostler"


class Settings(BaseSettings):
    """What every process needs to find its state, the API, Temporal and Postgres (`HOSTLER_…`).

    `temporal_profile` names a profile of a `temporal.toml` (address, namespace, TLS) and wins over address and
    namespace; `temporal_config_file` is that file, else Temporal's own place for it. `database_url_file` holds the URL,
    with whatever password is in it, so that no environment has to (S-42). `domain` ends the names in VMs' host
    certificates, `<name>.<project>.<domain>` (S-41). `placement` and `memory_overcommit` rank the hosts that take a VM
    which names none (H-P8). `gateway_url` is where hosts are told to ask for their orders (S-7): `host:port`, or
    `https://host:port` where a certificate and its key are named. `gateway_listen`: where the gateway listens.
    """

    model_config = SettingsConfigDict(env_prefix="HOSTLER_", frozen=True, extra="ignore", populate_by_name=True)

    home: Path = Field(default_factory=default_home)
    url: str = DEFAULT_URL
    token: SecretStr | None = None
    temporal_address: str = DEFAULT_TEMPORAL_ADDRESS
    temporal_namespace: str = "default"
    temporal_profile: str | None = Field(
        default=None, validation_alias=AliasChoices("HOSTLER_TEMPORAL_PROFILE", "TEMPORAL_PROFILE", "temporal_profile")
    )
    temporal_config_file: Path | None = Field(
        default=None,
        validation_alias=AliasChoices("HOSTLER_TEMPORAL_CONFIG_FILE", "TEMPORAL_CONFIG_FILE", "temporal_config_file"),
    )
    temporal_ui_url: str | None = None
    gateway_url: str = DEFAULT_GATEWAY
    gateway_listen: str = DEFAULT_GATEWAY
    gateway_certificate_file: Path | None = None
    gateway_key_file: Path | None = None
    database_url: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("HOSTLER_DATABASE_URL", "DATABASE_URL", "database_url")
    )
    database_url_file: Path | None = None
    domain: str = Field(default="hostler.internal", pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)*$", max_length=128)
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    host_silent_after_seconds: int = Field(default=90, ge=1)
    placement: Strategy = "balanced"
    memory_overcommit: float = Field(default=1.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _read_database_url(cls, values: dict[str, Any]) -> dict[str, Any]:
        file = values.get("database_url_file")
        if not file or any(name in values for name in ("HOSTLER_DATABASE_URL", "DATABASE_URL", "database_url")):
            return values
        try:
            return {**values, "database_url": Path(file).read_text("utf-8").strip()}
        except OSError as error:
            raise ValueError("the file with the database's URL cannot be read by this user") from error

    @property
    def policy(self) -> Policy:
        """Return how hosts are ranked."""
        return Policy(strategy=self.placement, memory_overcommit=self.memory_overcommit)

    @property
    def master_key_file(self) -> Path:
        """Return the path of the fleet's master key; no backup of Postgres holds it (S-42)."""
        return self.home / "keys" / "master.key"

    @property
    def host_ca_file(self) -> Path:
        """Return the path of the private key that signs VMs' host certificates (S-41)."""
        return self.home / "keys" / "ssh_host_ca"

    @property
    def host_home(self) -> Path:
        """Return the state directory of the host worker."""
        return self.home / "host"


class HostSettings(BaseSettings):
    """What one host worker takes from its host, and how much it does at once (`HOSTLER_HOST_…`).

    0 means no limit for creates (L-C7). `image_file_root` is the only folder that `file:` images may come from.
    `image_allow`: networks besides the public ones that images may be fetched from (S-19), as a JSON list.
    `gateway_ca_file`: whose certificates the gateway may show, instead of those that the system trusts (PEM).
    `simulated_guests`: `beside` allows guests that are only told of beside real ones, `only` makes a host that runs no
    others, and needs neither a hypervisor nor root (X-4). `max_vcpus`, `max_memory_mib`, `max_disk_gib`: how much its
    VMs may take in all; 0 means no cap, None what the host took at its enrolment (H-S8, H-A5). `disk_overcommit`:
    whether disks are promised beyond what the filesystem can hold (H-A4). `alone_after_seconds`: out of reach of its
    control plane for so long, the host boots again what ran; 0: never (H-E6).
    """

    model_config = SettingsConfigDict(env_prefix="HOSTLER_HOST_", frozen=True, extra="ignore")

    bridge: str = "hostler0"
    table: str = "hostler"
    tap_prefix: str = "hst"
    cgroup: str = "hostler"
    uid_base: int = 200_000
    uid_count: int = 10_000
    subnet: IPv4Network = IPv4Network("10.84.0.0/24")
    netns: str | None = None
    max_concurrent_creates: int = Field(default=2, ge=0)
    max_concurrent_boots: int = Field(default_factory=lambda: max(2, os.cpu_count() or 2), ge=0)
    image_file_root: Path | None = None
    image_allow: tuple[str, ...] = ()
    gateway_ca_file: Path | None = None
    boot_id_path: Path = Path("/proc/sys/kernel/random/boot_id")
    machine_id_path: Path = Path("/etc/machine-id")
    allow_emulated_guests: bool = False
    simulated_guests: SimulatedGuests = "none"
    alone_after_seconds: float = Field(default=120.0, ge=0)
    max_vcpus: int | None = Field(default=None, ge=0)
    max_memory_mib: int | None = Field(default=None, ge=0)
    max_disk_gib: int | None = Field(default=None, ge=0)
    disk_overcommit: bool = True

    def caps_over(self, taken: Caps) -> Caps:
        """Return the operator's caps: what was said, else what was taken at enrolment."""
        said = {name: getattr(self, name) for name in Caps.model_fields if getattr(self, name) is not None}
        return taken.model_copy(update={name: limit or None for name, limit in said.items()})

    @property
    def names(self) -> HostNames:
        """Return the installation's names; raise Invalid where one does not fit."""
        return HostNames(
            bridge=self.bridge,
            table=self.table,
            tap_prefix=self.tap_prefix,
            cgroup=self.cgroup,
            uid_base=self.uid_base,
            uid_count=self.uid_count,
            subnet=self.subnet,
            netns=self.netns,
        )
