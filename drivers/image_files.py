"""What an image is to a host: a URL with a digest, and a base file named by owner and digest."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from drivers.durable import open_regular, open_regular_at
from drivers.headers import SECTOR, DiskFormat, read_header
from model.errors import Permanent, Unreadable

Kind = Literal["rootfs", "kernel", "initrd"]

PART = ".part"
VALIDATOR = ".part.json"
UNPACKED = ".unpacked.part"
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{64}-(?P<kind>rootfs|kernel|initrd)\.(?P<ending>qcow2|raw|part)", re.ASCII)
_ANY_SIZE = 1 << 62


@dataclass(frozen=True)
class ImageFile:
    """A file to fetch. The URL may hold credentials and is never shown: use `redacted_url` (S-33).

    format: as the user states it; None: our own reader settles it. Only a rootfs is unpacked, and has a header.
    """

    url: str = field(repr=False)
    sha256: str
    format: DiskFormat | None
    kind: Kind


@dataclass(frozen=True)
class BaseImage:
    """A checked file that nothing changes any more."""

    path: Path
    format: DiskFormat
    virtual_size_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class FetchProgress:
    """How much of a file's download has come; total_bytes: None when the server does not say."""

    done_bytes: int
    total_bytes: int | None


@dataclass(frozen=True)
class StoredFile:
    """One file of the image folder; is_partial: a download that is not finished."""

    name: str
    kind: Kind
    is_partial: bool
    size_bytes: int
    allocated_bytes: int
    modified_at: float


def redacted_url(url: str) -> str:
    """Write a URL for people: without user part, query and fragment; of a file only its name."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "(an address that cannot be read)"
    if parts.scheme == "file":
        return escape(f"file:…/{Path(parts.path).name}", 200)
    host = f"[{host}]" if ":" in host else host
    return escape(f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}", 200)


def escape(text: str, limit: int = 4096) -> str:
    """Cut foreign text and escape what is no printable character (S-17)."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def check_file(file: ImageFile) -> None:
    """Refuse a file that can never be fetched."""
    if not _DIGEST.fullmatch(file.sha256):
        raise Permanent("the image's sha256 must be 64 hexadecimal digits in lower case")
    try:
        scheme = urlsplit(file.url).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("http", "https", "file"):
        raise Permanent(f"the image {redacted_url(file.url)} is no http, https or file address")


def stem(owner: str, file: ImageFile) -> str:
    """Name a base file, but for its ending; the owner is hashed, since a name must hold no foreign text (S-20)."""
    hashed = hashlib.sha256(b"image owner\0" + owner.encode()).hexdigest()[:32]
    return f"{hashed}-{file.sha256}-{file.kind}"


def find_base(folder: Path, owner: str, file: ImageFile) -> BaseImage | None:
    """Find a published file. Raises Permanent when its format is not the one that is stated."""
    for ending in ("raw", "qcow2"):
        path = folder / f"{stem(owner, file)}.{ending}"
        try:
            descriptor = open_regular(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Unreadable("a base image on the host is not a regular file any more; remove it there") from error
        try:
            found = describe(descriptor, path, ending)
        finally:
            os.close(descriptor)
        if file.format is not None and file.kind == "rootfs" and file.format != found.format:
            raise Permanent(f"the image is stated to be {file.format}, but it is {found.format}; state what it is")
        return found
    return None


def describe(descriptor: int, path: Path, ending: DiskFormat) -> BaseImage:
    """Describe a base file, whose format its name settles for ever: a raw one is not even looked at."""
    size = os.fstat(descriptor).st_size
    if ending == "raw":
        return BaseImage(path, "raw", -(-size // SECTOR) * SECTOR, size)
    header = read_header(descriptor, max_virtual_size_bytes=_ANY_SIZE, stated_format="qcow2")
    return BaseImage(path, "qcow2", header.virtual_size_bytes, size)


def list_stored(folder: Path) -> Iterator[StoredFile]:
    """List base files and partial ones; what has another name is none of ours and left out."""
    for entry in os.scandir(folder):
        match = _NAME.fullmatch(entry.name.replace(UNPACKED, PART))
        if match is None or not entry.is_file(follow_symlinks=False):
            continue
        found = entry.stat(follow_symlinks=False)
        kind: Kind = match["kind"]  # type: ignore[assignment]
        partial = match["ending"] == "part"
        yield StoredFile(entry.name, kind, partial, found.st_size, found.st_blocks * 512, found.st_mtime)


def open_below(root: Path, url: str) -> int:
    """Open the regular file that a `file:` URL names, if it lies below `root`; no link is followed on the way."""
    path = Path(os.path.normpath(unquote(urlsplit(url).path)))
    refused = Permanent(f"the image {redacted_url(url)} is not a file below the folder that the operator opened")
    try:
        names = path.relative_to(os.path.normpath(root)).parts
    except ValueError as error:
        raise refused from error
    if not names:
        raise refused
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(name, flags, dir_fd=here)
            os.close(here)
            here = below
        return open_regular_at(here, names[-1])
    except OSError as error:
        raise refused from error
    finally:
        os.close(here)
