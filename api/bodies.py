"""What callers may send, with every limit in the schema (A-8). Unknown fields are refused by name (A-1)."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    StringConstraints,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from model.base import Frozen
from model.errors import Invalid
from model.firewall import MOST_PREFIXES, Protocol, read_ports, read_prefix
from model.ids import Digest, HostId, Name
from model.ssh import parse_ssh_key
from model.vm import LONGEST_STOP_SECONDS, DiskFormat, Firmware, GuestPoweroff, PowerState
from model.volume import MOST_VOLUMES

USER_DATA_LIMIT = 64 << 10
METADATA_LIMIT = 48 << 10
KEY_LIMIT = 8 << 10
_NO_URL = "must be an http, https or file URL with a host and, if any, a port that is a number"
_REFERENCE = re.compile(r"(?:[a-z0-9-]+/)?[a-z0-9][a-z0-9._-]{0,62}(?::[a-z0-9][a-z0-9._-]{0,62})?", re.ASCII)
_LABEL_KEY = re.compile(r"[a-z0-9](?:[a-z0-9._/-]{0,61}[a-z0-9])?", re.ASCII)
_METADATA_KEY = re.compile(r"[\x20-\x7e]{1,128}", re.ASCII)
_PRINTABLE = re.compile(r"[\x20-\x7e]{0,256}", re.ASCII)


def _check_reference(value: str) -> str:
    if not _REFERENCE.fullmatch(value):
        raise ValueError("must be an image's name such as 'demo' or 'public/debian:12'")
    return value


def _check_url(value: str) -> str:
    # Before it is taken apart: what the parser says of a bad one holds parts of it.
    if not value.isascii() or any(c <= " " or c == "\x7f" for c in value):
        raise ValueError("must hold no spaces, control or non-ASCII characters; percent-encode them")
    try:
        parts = urlsplit(value)
        named = parts.scheme == "file" or bool(parts.hostname and parts.port != 0)
    except ValueError:
        raise ValueError(_NO_URL) from None
    if parts.scheme not in ("http", "https", "file") or not named:
        raise ValueError(_NO_URL)
    return value


def _check_label_map(value: dict[str, str]) -> dict[str, str]:
    for key, text in value.items():
        check_label_pair(key, text)
    return value


def check_label_pair(key: str, text: str) -> None:
    """Raise ValueError for what cannot be a label."""
    if not _LABEL_KEY.fullmatch(key):
        raise ValueError("a label's key is 1 to 63 of a-z, 0-9, '.', '_', '/', '-'")
    if not _PRINTABLE.fullmatch(text):
        raise ValueError("a label's value is at most 256 printable ASCII characters")


def _check_metadata(value: dict[str, str]) -> dict[str, str]:
    if sum(len(k.encode()) + len(v.encode()) for k, v in value.items()) > METADATA_LIMIT:
        raise ValueError("must be at most 48 KiB (49152 bytes) in all, keys and values")
    if any(not _METADATA_KEY.fullmatch(key) for key in value):
        raise ValueError("a key is 1 to 128 printable ASCII characters")
    if any("\0" in text for text in value.values()):
        raise ValueError("a value holds no NUL")
    return value


def _check_user_data(value: str) -> str:
    size = len(value.encode())
    if size > USER_DATA_LIMIT:
        raise ValueError(f"must be at most 64 KiB (65536 bytes) of UTF-8 before any encoding; it is {size} bytes")
    return value


def _check_command_line(value: str) -> str:
    if not re.fullmatch(r"[\x20-\x7e]{0,1024}", value):
        raise ValueError("must be at most 1024 printable ASCII characters")
    return value


def _check_key(value: str) -> str:
    if len(value.encode()) > KEY_LIMIT:
        raise ValueError("must be at most 8 KiB (8192 bytes)")
    try:
        return parse_ssh_key(value)
    except Invalid as error:
        # So that the answer names the field.
        raise ValueError(error.detail) from None


def _check_once(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(value)) < len(value):
        raise ValueError("a volume is named twice; name each once")
    return value


def _check_prefix(value: str) -> str:
    read_prefix(value)
    return value


def _check_ports(value: str) -> str:
    read_ports(value)
    return value


def _image_kind(value: object) -> str:
    return "name" if isinstance(value, str) else "file"


Reference = Annotated[str, AfterValidator(_check_reference)]
Url = Annotated[str, StringConstraints(max_length=8192), AfterValidator(_check_url)]
CommandLine = Annotated[str, AfterValidator(_check_command_line)]
# The limits in bytes are the checks' own; the schema states them for readers (A-8).
SshKey = Annotated[str, Field(json_schema_extra={"maxLength": KEY_LIMIT}), AfterValidator(_check_key)]
Labels = Annotated[dict[str, str], Field(max_length=32), AfterValidator(_check_label_map)]
Metadata = Annotated[dict[str, str], Field(max_length=16), AfterValidator(_check_metadata)]
UserData = Annotated[
    str,
    Field(json_schema_extra={"maxLength": USER_DATA_LIMIT}, description="At most 64 KiB of UTF-8"),
    AfterValidator(_check_user_data),
]
Millicores = Annotated[int, Strict(), Field(ge=100, le=32_000)]
MemoryMib = Annotated[int, Strict(), Field(ge=64, le=4 << 20)]
StopTimeout = Annotated[int, Strict(), Field(ge=1, le=LONGEST_STOP_SECONDS)]
BootPriority = Annotated[int, Strict(), Field(ge=-100, le=100)]
DiskGib = Annotated[int, Strict(), Field(ge=1, le=64 << 10)]
VolumeList = Annotated[
    tuple[Name, ...],
    Field(max_length=MOST_VOLUMES, description="Names or ids of volumes, in the order in which the guest gets them"),
    AfterValidator(_check_once),
]
Prefix = Annotated[str, StringConstraints(max_length=43), AfterValidator(_check_prefix)]
Ports = Annotated[str, StringConstraints(max_length=11), AfterValidator(_check_ports)]
Keys = Annotated[tuple[SshKey, ...], Field(max_length=16)]


class Body(Frozen):
    """A request's body. Its input never shows in an error, since it may hold secrets (S-33)."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class FileBody(Body):
    """One file by URL and digest."""

    url: Url
    sha256: Digest


class ImageBody(FileBody):
    """An image given with the VM."""

    format: DiskFormat | None = None


AnyImage = Annotated[Annotated[Reference, Tag("name")] | Annotated[ImageBody, Tag("file")], Discriminator(_image_kind)]


class FirewallRuleBody(Body):
    """One rule of a firewall: what is let through. `ports` are the destination's, `prefixes` the other side's."""

    protocol: Protocol = "any"
    ports: Annotated[Ports | None, Field(description="Of tcp and udp, as '22' or '8000-8080'; null: all")] = None
    prefixes: Annotated[tuple[Prefix, ...], Field(min_length=1, max_length=MOST_PREFIXES)]

    @field_validator("ports")
    @classmethod
    def _ports_of_protocol(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("protocol") in ("any", "icmp"):
            raise ValueError("only tcp and udp have ports; name one of them as the protocol")
        return value


class FirewallBody(Body):
    """A VM's firewall. Enabled, it drops all that belongs to no connection and that no rule lets through."""

    enabled: Annotated[bool, Strict()]
    inbound: tuple[FirewallRuleBody, ...] = ()
    outbound: tuple[FirewallRuleBody, ...] = ()

    @model_validator(mode="after")
    def _few_prefixes(self) -> FirewallBody:
        found = sum(len(rule.prefixes) for rule in (*self.inbound, *self.outbound))
        if found > MOST_PREFIXES:
            raise ValueError(f"holds at most {MOST_PREFIXES} prefixes in all its rules; these are {found}")
        return self


class NewImageBody(Body):
    """A named image (D-1)."""

    name: Reference
    architecture: Literal["x86_64"] = "x86_64"
    rootfs: ImageBody
    kernel: FileBody | None = None
    initrd: FileBody | None = None
    command_line: CommandLine | None = None
    firmware: Firmware = "bios"

    @model_validator(mode="after")
    def _kernel_with_initrd(self) -> NewImageBody:
        if self.initrd is not None and self.kernel is None:
            raise ValueError("an initrd needs a kernel")
        return self


class NewVmBody(Body):
    """A VM as it is wanted. What is left out takes the default."""

    name: Name
    image: AnyImage
    host: HostId | None = None
    cpu_millicores: Millicores = 1000
    memory_mib: MemoryMib = 512
    disk_gib: DiskGib | None = None
    power_state: PowerState = PowerState.RUNNING
    ssh_authorized_keys: Keys = ()
    ssh_user_cas: Keys = ()
    host_certificate: Annotated[bool, Strict()] = False
    user_data: UserData | None = None
    hypervisor: Literal["auto", "qemu", "simulated"] = "auto"
    on_guest_poweroff: GuestPoweroff = "start"
    stop_timeout_seconds: StopTimeout = 90
    boot_priority: BootPriority = 0
    termination_protection: Annotated[bool, Strict()] = False
    volumes: VolumeList = ()
    firewall: FirewallBody | None = None
    labels: Labels = {}
    metadata: Metadata = {}
    host_labels: Annotated[Labels, Field(description="What its host must be labelled with")] = {}
    anti_affinity_group: Annotated[
        Name | None, Field(description="Keep it apart from the others of this group of its project, where hosts allow")
    ] = None


class ChangeVmBody(Body):
    """What of a VM may be changed. Only the fields that are there are changed; null is no value of any."""

    power_state: PowerState = Field(default=None)  # type: ignore[assignment]
    cpu_millicores: Millicores = Field(default=None)  # type: ignore[assignment]
    memory_mib: MemoryMib = Field(default=None)  # type: ignore[assignment]
    disk_gib: DiskGib = Field(default=None)  # type: ignore[assignment]
    ssh_authorized_keys: Keys = Field(default=None)  # type: ignore[assignment]
    metadata: Metadata = Field(default=None)  # type: ignore[assignment]
    on_guest_poweroff: GuestPoweroff = Field(default=None)  # type: ignore[assignment]
    stop_timeout_seconds: StopTimeout = Field(default=None)  # type: ignore[assignment]
    boot_priority: BootPriority = Field(default=None)  # type: ignore[assignment]
    volumes: VolumeList = Field(default=None)  # type: ignore[assignment]
    firewall: FirewallBody = Field(default=None)  # type: ignore[assignment]
    labels: Labels = Field(default=None)  # type: ignore[assignment]
    termination_protection: Annotated[bool, Strict()] = Field(default=None)  # type: ignore[assignment]


class RebuildBody(Body):
    """What to rebuild a VM from: its own image, or another; or `undo`, which brings the kept root disk back."""

    image: AnyImage = Field(default=None)  # type: ignore[assignment]
    undo: Annotated[bool, Strict()] = False
    discard: Annotated[bool, Strict(), Field(description="Whether the disk that is kept already may be lost")] = False

    @model_validator(mode="after")
    def _undo_alone(self) -> RebuildBody:
        if self.undo and (self.discard or "image" in self.model_fields_set):
            raise ValueError("undo takes neither image nor discard")
        return self


class NewVolumeBody(Body):
    """A volume as it is wanted. Without a host it goes to that of the first VM that has it."""

    name: Name
    size_gib: DiskGib
    host: HostId | None = None


class GrowVolumeBody(Body):
    """How large a volume is to be; it never shrinks."""

    size_gib: DiskGib
