"""The demo guest as an image of the fleet: its files are copied to where `file:` URLs may point (D-2)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

from model.errors import StepFailed
from workers.installation import Installation, project_root

_PARTS = ("rootfs", "kernel", "initrd")


def find_guest(given: Path | None) -> Path | None:
    """Find the folder of the demo guest: the one that was named, or the newest of the checkout's cache."""
    if given is not None:
        return given
    cache = project_root() / os.environ.get("HOSTLER_CACHE", ".cache/guest")
    built = sorted(cache.glob("*/image.json"), key=lambda path: path.stat().st_mtime)
    return built[-1].parent if built else None


def publish_guest(guest: Path, installation: Installation) -> dict[str, Any]:
    """Copy the guest's files below the folder that is served; return the image's document for the API. Blocks."""
    try:
        described = cast("dict[str, Any]", json.loads((guest / "image.json").read_bytes()))
    except (FileNotFoundError, ValueError) as error:
        raise StepFailed("the demo guest has no image.json that can be read: build it again") from error
    image: dict[str, Any] = {"name": described["name"], "architecture": described["architecture"]}
    for part in _PARTS:
        if part in described:
            image[part] = publish_file(guest, cast("dict[str, str]", described[part]), installation.images_served)
    image["command_line"] = described["command_line"]
    return image


def publish_file(guest: Path, described: dict[str, str], served: Path) -> dict[str, str]:
    """Copy one file under its digest and check what was copied."""
    digest = described["sha256"]
    place = served / f"{digest[:16]}-{Path(described['file']).name}"
    if not place.exists():
        new = place.with_name(f"{place.name}.new")
        shutil.copyfile(guest / described["file"], new)
        with new.open("rb") as copied:
            if hashlib.file_digest(copied, "sha256").hexdigest() != digest:
                raise StepFailed(f"{described['file']} of the demo guest is not what image.json says: build it again")
            os.fsync(copied.fileno())
        new.chmod(0o644)
        new.rename(place)
    file = {"url": place.as_uri(), "sha256": digest}
    return file | ({"format": described["format"]} if "format" in described else {})
