"""What the two files of a VM's record hold, and how they are read without believing them (L-G8, L-G11)."""

from __future__ import annotations

from datetime import datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import pydantic

from drivers.formats import CONFIG, LIMIT_BYTES, STATUS, Document, parse
from model.base import Frozen
from model.errors import Unreadable
from model.process import ProcessRecord
from model.record import Observed, Record, Setback
from model.versions import VERSION
from model.vm import LastExit, VmInput

Stored = TypeVar("Stored", "StoredConfig", "StoredStatus")


class HostAllocation(Frozen):
    """What the host gave a VM: user, tap, address of the host's own subnet, and the kind of machine (X-3)."""

    uid: int
    tap: str
    mac: str
    address: IPv4Address
    accelerator: Literal["kvm", "tcg"]
    machine_type: str | None = None


class StoredImages(Frozen):
    """The files of the image folder that a VM's disk and boot depend on, by their names there."""

    rootfs: str
    rootfs_format: str
    kernel: str | None = None
    initrd: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """Every file that must stay while the VM is there."""
        return frozenset(name for name in (self.rootfs, self.kernel, self.initrd) if name)


class StoredHostKey(Frozen):
    """The guest's SSH host key, made once; the private part never leaves the host (L-C2)."""

    private: str
    public: str


class StoredHostCertificate(Frozen):
    """The newest certificate for the guest's host key, one line (L-C2)."""

    serial: int
    text: str


class StoredConfig(Frozen):
    """config.json, 0600: it holds user-data, signed URLs and the host key, and goes with the VM (S-42)."""

    format: int = CONFIG.format
    release: str = VERSION
    vm_id: str
    input: VmInput
    allocation: HostAllocation
    host_key: StoredHostKey
    host_certificate: StoredHostCertificate | None = None


class StoredStatus(Frozen):
    """status.json: what was intended, and what was last seen with the revision that rises with each change.

    `process` is the last one that was let go for this VM, `exit_of` the last one whose end `last_exit` tells.
    `images` belong to the disk in use, `kept_images` to the one that a rebuild put aside. `turned_off` is set while a
    guest that ended by its own power-off, with nobody asking, has neither been booted again nor stopped (L-V4).
    `started_at`, `started_for`: as in Observed; without a moment the boot of the process failed. `setback` is the last
    of them, `stalled` is set while its hypervisor keeps the guest paused (L-V11).
    """

    format: int = STATUS.format
    release: str = VERSION
    vm_id: str
    record: Record
    process: ProcessRecord | None = None
    images: StoredImages | None = None
    kept_images: StoredImages | None = None
    exit_of: ProcessRecord | None = None
    last_exit: LastExit | None = None
    turned_off: bool = False
    started_at: datetime | None = None
    started_for: int = 0
    setback: Setback | None = None
    stalled: bool = False
    restart_count: int = 0
    observed: Observed | None = None
    revision: int = 0


def read_stored(path: Path, kind: type[Stored], vm_id: str) -> Stored | None:
    """Read one file of a record; None when there is none. Raises Unreadable with the file's name and the reason."""
    try:
        with path.open("rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read: {error.strerror}") from error
    return _check(path.name, parse(CONFIG if kind is StoredConfig else STATUS, path.name, data), kind, vm_id)


def _check(name: str, raw: Document, kind: type[Stored], vm_id: str) -> Stored:
    try:
        stored = kind.model_validate(raw)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:80]
        raise Unreadable(f"{name} is corrupt: {where or 'it'}: {first['type']}") from error
    unknown = _find_unknown(raw, stored.model_dump(mode="json"), "")
    if unknown:
        raise Unreadable(f"{name} has the field {unknown[:80]!r}, which this release does not know")
    if stored.vm_id != vm_id:
        raise Unreadable(f"{name} belongs to another VM than its folder")
    return stored


def _find_unknown(raw: Any, known: Any, where: str) -> str | None:
    """Name the first field of `raw` that the models dropped: they are lenient on the wire, a record is not."""
    if isinstance(raw, dict) and isinstance(known, dict):
        fields, of_model = cast("dict[str, Any]", raw), cast("dict[str, Any]", known)
        for key, value in fields.items():
            if key not in of_model:
                return where + key
            found = _find_unknown(value, of_model[key], f"{where}{key}.")
            if found:
                return found
    elif isinstance(raw, list) and isinstance(known, list):
        for one, other in zip(cast("list[Any]", raw), cast("list[Any]", known), strict=False):
            found = _find_unknown(one, other, where)
            if found:
                return found
    return None
