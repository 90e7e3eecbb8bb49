"""The formats of the files that a host keeps (L-G11): which files there are, which number each carries now.

A file whose fields change gets a patch of the next number, in `drivers/patches/`; its format is the number of the last
patch that touches it. A worker reads only the format that it knows: older files were patched at its start, a newer one
is refused by its release's name (L-G8).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from drivers.patches import patch_0002
from model.errors import Unreadable

LIMIT_BYTES = 4 << 20

Document = dict[str, Any]
Patch = Callable[[Document], Document]

PATCHES: Mapping[int, Mapping[str, Patch]] = {2: patch_0002.PATCHES}
"""By number, then by the name of the kind of file: from the format below to this one."""


@dataclass(frozen=True)
class Kind:
    """A kind of file. pattern: where it is below the state directory. numbered: whether its format 1 had a number."""

    name: str
    pattern: str
    numbered: bool = True

    @property
    def format(self) -> int:
        """Return the format that this release reads and writes."""
        return max((number for number, patches in PATCHES.items() if self.name in patches), default=1)


CONFIG = Kind("config", "machines/*/config.json")
STATUS = Kind("status", "machines/*/status.json")
HOST = Kind("host", "host.json")
FENCE = Kind("fence", "fences/*.json")
CREDENTIALS = Kind("credentials", "credentials.json", numbered=False)
DHCP = Kind("dhcp", "dnsmasq/process.json", numbered=False)
DOWNLOAD = Kind("download", "images/*.part.json")
VOLUME = Kind("volume", "volumes/*/volume.json")
SYNC_FENCE = Kind(FENCE.name, "sync/*.json")
SETS = Kind("sets", "sets.json")

KINDS = (CONFIG, STATUS, HOST, FENCE, CREDENTIALS, DHCP, DOWNLOAD, VOLUME, SYNC_FENCE, SETS)
"""Every file of Hostler's own that a host keeps; disks, seeds, images and leases have formats of others."""


def parse(kind: Kind, name: str, data: bytes) -> Document:
    """Read a file of the format that this release knows. Raises Unreadable with the file's name and the reason."""
    document = parse_any(kind, name, data)
    version = document["format"]
    if version > kind.format:
        release = str(document.get("release"))[:32]
        raise Unreadable(
            f"{name} has format {version}, written by release {release!r}: this worker knows {kind.format}"
        )
    if version < kind.format:
        raise Unreadable(
            f"{name} has format {version} and could not be patched to {kind.format}: the host worker's log says why; "
            "start the worker again once that is mended"
        )
    return document


def parse_any(kind: Kind, name: str, data: bytes) -> Document:
    """Read a file of whatever format; its number is there afterwards. Raises Unreadable."""
    if len(data) > LIMIT_BYTES:
        raise Unreadable(f"{name} is over {LIMIT_BYTES} bytes")
    try:
        raw: object = json.loads(data)
    except ValueError as error:
        raise Unreadable(f"{name} is cut or corrupt: it is no JSON") from error
    if not isinstance(raw, dict):
        raise Unreadable(f"{name} is corrupt: it is no object")
    document = cast("Document", raw)
    if not kind.numbered:
        document.setdefault("format", 1)
    version = document.get("format")
    if type(version) is not int or version < 1:
        raise Unreadable(f"{name} has no format version")
    return document
