"""Images as the API shows them."""

from __future__ import annotations

from datetime import datetime

from api.documents.base import Shown
from model.vm import DiskFormat, Firmware


class FileDocument(Shown):
    """One file of an image. Its URL has no user part and no query; null: a path of the fleet."""

    url: str | None
    sha256: str


class ImageDocument(Shown):
    """A named image."""

    id: str
    project: str
    name: str
    architecture: str
    format: DiskFormat | None
    firmware: Firmware
    command_line: str | None
    rootfs: FileDocument
    kernel: FileDocument | None
    initrd: FileDocument | None
    created_at: datetime
