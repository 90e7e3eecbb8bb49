"""Bring the files that a host keeps to this release's formats, before its worker reads them (L-G11).

One file at a time: the old content is kept beside, then the file is replaced whole. A worker that is killed at any
instant leaves old or new files, and the next one goes on. A kept file goes when a later release starts.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from drivers.durable import open_regular, remove_durably, write_durably
from drivers.formats import KINDS, LIMIT_BYTES, PATCHES, Document, Kind, parse_any
from model.errors import HostlerError, Unreadable
from model.versions import VERSION, release_order

_KEPT = ".before-"
_log = logging.getLogger("hostler.patching")


def patch_files(home: Path) -> int:
    """Patch every file below a state directory; return how many. A file that cannot be patched stays as it is.

    Its reader then refuses it by its name (L-G8), and no other file is kept waiting for it.
    """
    patched = 0
    for kind in KINDS:
        for path in sorted(home.glob(kind.pattern)):
            try:
                patched += _patch_file(kind, path)
            except (HostlerError, OSError) as error:
                why = error.detail if isinstance(error, HostlerError) else error.strerror
                _log.warning("%s is not patched: %s", path.relative_to(home), why)
        for path in sorted(home.glob(f"{kind.pattern}{_KEPT}*")):
            if release_order(path.name.rpartition(_KEPT)[2]) < release_order(VERSION):
                remove_durably(path)
    return patched


def patch(kind: Kind, document: Document) -> Document:
    """Return a document in this release's format, by every patch that is missing, in order."""
    for number in range(document["format"] + 1, kind.format + 1):
        step = PATCHES[number].get(kind.name)
        if step is not None:
            document = {**step(document), "format": number, "release": VERSION}
    return document


def _patch_file(kind: Kind, path: Path) -> bool:
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(LIMIT_BYTES + 1)
    try:
        document = parse_any(kind, path.name, data)
    except Unreadable:
        return False  # its reader says so
    if document["format"] >= kind.format:
        return False
    try:
        new = patch(kind, document)
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"its content is not what its format says ({type(error).__name__})") from error
    # First the old content: once the file itself is new, the only old one is that beside it.
    write_durably(path.with_name(f"{path.name}{_KEPT}{VERSION}"), data)
    write_durably(path, json.dumps(new, separators=(",", ":")).encode())
    return True
