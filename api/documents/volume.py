"""Volumes as the API shows them."""

from __future__ import annotations

from datetime import datetime

from api.documents.base import HostName, Shown, VmName


class VolumeDocument(Shown):
    """A volume. `made_bytes` is how large its host says that it is: null while it was not made, and less than
    `size_gib` until a VM that has it has been given the rest. A deleted one can be undeleted until `destroy_at`.
    """

    id: str
    project: str
    name: str
    size_gib: int
    made_bytes: int | None
    serial: str
    host: HostName | None
    vm: VmName | None
    deleted: bool
    destroy_at: datetime | None
    destroying: bool
    created_at: datetime
    updated_at: datetime


class ForeignVolume(Shown):
    """A volume that a host holds although no row places it there; `vm_id`: the VM that had it last."""

    volume_id: str
    size_bytes: int
    vm_id: str | None
