"""A VM as its row keeps it: what anybody may read, apart from the secrets that only its host gets (S-33)."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr

from model.base import Frozen, Lenient
from model.firewall import OPEN, Firewall
from model.ids import Digest
from model.vm import DiskFormat, Firmware, GuestPoweroff, Image, ImageFile, PowerState, VmInput

FileRole = Literal["rootfs", "kernel", "initrd"]
FILE_ROLES: tuple[FileRole, ...] = ("rootfs", "kernel", "initrd")
# Fields that rows did not always have: left out of digests while unset, so that those of older rows stay the same.
_LATER_FIELDS = ("host_certificate", "ssh_user_cas", "volumes", "firewall")


class FileSpec(Lenient):
    """One file of an image without what its URL keeps secret.

    `url` has no user part and no query; `signed` says that it had one. `url_digest` is the keyed digest of the whole.
    """

    url: str
    signed: bool
    url_digest: str
    sha256: Digest


class ImageSpec(Lenient):
    """What a root disk is made from; `owner` is the project that gave it, or `public` (S-19)."""

    reference: str | None = None
    owner: str
    architecture: str = "x86_64"
    rootfs: FileSpec
    format: DiskFormat | None = None
    kernel: FileSpec | None = None
    initrd: FileSpec | None = None
    command_line: str | None = None
    firmware: Firmware = "bios"


class VmSpec(Lenient):
    """The specification without secrets. Of user-data it knows the size in bytes and a keyed digest.

    `volumes` are ids, in the order in which the guest gets them (L-C11).
    """

    image: ImageSpec
    cpu_millicores: int
    memory_mib: int
    disk_gib: int | None = None
    ssh_authorized_keys: tuple[str, ...] = ()
    user_data_bytes: int = 0
    user_data_digest: str | None = None
    metadata: dict[str, str] = {}
    hypervisor: str = "auto"
    on_guest_poweroff: GuestPoweroff = "start"
    stop_timeout_seconds: int = 90
    boot_priority: int = 0
    sleep_after_idle_seconds: int = 0
    host_certificate: bool = False
    ssh_user_cas: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    firewall: Firewall = OPEN


class Secrets(Frozen):
    """What a VM or an image keeps secret: user-data (base64) and whole URLs. It is stored sealed only (S-42)."""

    user_data: SecretStr | None = None
    urls: dict[FileRole, SecretStr] = {}

    def to_bytes(self) -> bytes:
        """Return the plain text that is to be sealed."""
        urls = {role: url.get_secret_value() for role, url in self.urls.items()}
        user_data = self.user_data.get_secret_value() if self.user_data else None
        return json.dumps({"user_data": user_data, "urls": urls}).encode()

    @staticmethod
    def from_bytes(opened: bytes) -> Secrets:
        """Read what `to_bytes` made, after it was opened."""
        return Secrets.model_validate_json(opened)


class NewVm(Frozen):
    """A validated request for a VM. `requested_host`: the host that the caller named; `host_id`: where it goes.

    Without a `host_id` one is chosen when the row is made.

    `secrets` are sealed. The row's MAC address and digests are computed when the row is made.
    """

    vm_id: str
    project: str
    name: str
    host_id: str | None = None
    requested_host: str | None = None
    power_state: PowerState = PowerState.RUNNING
    labels: dict[str, str] = {}
    host_labels: dict[str, str] = {}
    anti_affinity_group: str | None = None
    termination_protection: bool = False
    spec: VmSpec
    secrets: bytes


def redact_url(url: str) -> str:
    """Return `url` without user part, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def fingerprint(new: NewVm) -> str:
    """Compute the SHA-256 of a VM's first specification, signed URLs blanked (L-N4)."""
    asked: dict[str, Any] = {
        "project": new.project,
        "name": new.name,
        "host": new.requested_host,
        "power_state": new.power_state.value,
        "labels": new.labels,
        "spec": _without_urls(new.spec),
    }
    # Left out where they are not asked for: fingerprints were stored before there were such things.
    later = ("termination_protection", "host_labels", "anti_affinity_group")
    asked |= {name: getattr(new, name) for name in later if getattr(new, name)}
    return _digest(asked)


def input_digest(*, vm_id: str, project: str, name: str, mac: str, spec: VmSpec) -> str:
    """Compute what the row and the sealed steps call a VM's input by; a refreshed URL does not change it.

    Nor does a volume, which is no part of the input, or a firewall: both come and go while the guest runs.
    """
    plain = _without_urls(spec.model_copy(update={"volumes": (), "firewall": OPEN}))
    return _digest({"vm_id": vm_id, "project": project, "name": name, "mac": mac, "spec": plain})


def vm_input(
    *, vm_id: str, project: str, name: str, mac: str, digest: str, spec: VmSpec, secrets: Secrets, created_at: datetime
) -> VmInput:
    """Put specification and opened secrets together for the VM's own host."""
    return VmInput(
        vm_id=vm_id,
        project=project,
        digest=digest,
        name=name,
        mac=mac,
        image=image_of(spec.image, secrets),
        cpu_millicores=spec.cpu_millicores,
        memory_mib=spec.memory_mib,
        disk_gib=spec.disk_gib,
        ssh_authorized_keys=spec.ssh_authorized_keys,
        user_data=secrets.user_data.get_secret_value() if secrets.user_data else None,
        metadata=spec.metadata,
        hypervisor=spec.hypervisor,
        on_guest_poweroff=spec.on_guest_poweroff,
        stop_timeout_seconds=spec.stop_timeout_seconds,
        boot_priority=spec.boot_priority,
        ssh_user_cas=spec.ssh_user_cas,
        firewall=spec.firewall,
        created_at=created_at,
    )


def image_of(image: ImageSpec, secrets: Secrets) -> Image:
    """Put an image and its opened URLs together for a host."""
    return Image(
        reference=image.reference,
        owner=image.owner,
        architecture=image.architecture,
        rootfs=_file(image.rootfs, secrets, "rootfs"),
        format=image.format,
        kernel=_file(image.kernel, secrets, "kernel") if image.kernel else None,
        initrd=_file(image.initrd, secrets, "initrd") if image.initrd else None,
        command_line=image.command_line,
        firmware=image.firmware,
    )


def same_urls(one: VmSpec, other: VmSpec) -> bool:
    """Say whether two specifications name the same whole URLs."""
    return [file and file.url_digest for file in _files(one)] == [file and file.url_digest for file in _files(other)]


def same_files(one: ImageSpec, other: ImageSpec) -> bool:
    """Say whether two images are made of the same files, wherever they are fetched from."""
    return all(
        (mine and mine.sha256) == (theirs and theirs.sha256)
        for mine, theirs in ((getattr(one, role), getattr(other, role)) for role in FILE_ROLES)
    )


def _files(spec: VmSpec) -> tuple[FileSpec | None, ...]:
    return (spec.image.rootfs, spec.image.kernel, spec.image.initrd)


def _file(file: FileSpec, secrets: Secrets, role: FileRole) -> ImageFile:
    whole = secrets.urls.get(role)
    return ImageFile(url=whole.get_secret_value() if whole else file.url, sha256=file.sha256)


def _without_urls(spec: VmSpec) -> dict[str, Any]:
    """Leave out what a refreshed URL changes; a file is known by its SHA-256 anyway."""
    plain = spec.model_dump(mode="json")
    for name in _LATER_FIELDS:
        if getattr(spec, name) == VmSpec.model_fields[name].default:
            del plain[name]
    for role in FILE_ROLES:
        file = plain["image"][role]
        if file is not None:
            plain["image"][role] = {"url": "" if file["signed"] else file["url"], "sha256": file["sha256"]}
    return plain


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
