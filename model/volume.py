"""Volumes: disks with a life of their own, each on one host, each attached to at most one VM (H-V1 to H-V4)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import timedelta

from model.base import Lenient

MOST_VOLUMES = 8
"""As many as one VM may have at a time: its machine has so many slots into which disks are plugged."""
VOLUME_GRACE = timedelta(days=7)
"""How long a deleted volume is kept, unless its delete says otherwise (H-V3)."""


class WantedVolume(Lenient):
    """A volume that a VM is to have. `made`: it was on its host once, so that it is never made anew (H-V2)."""

    volume_id: str
    size_gib: int
    made: bool = False


class AttachedVolume(Lenient):
    """A volume that its VM's record holds: made sure of, and plugged into the guest where one runs."""

    volume_id: str
    size_bytes: int


class VolumeReport(Lenient):
    """One volume as its host keeps it: its size, and which VM has it there."""

    volume_id: str
    size_bytes: int
    vm_id: str | None = None


def volume_serial(volume_id: str) -> str:
    """Compute the serial number by which a guest tells a volume's disk from others: 13 of a-z, 2-7.

    It is also its name within the hypervisor, which allows no more than 31 characters.
    """
    return "v" + base64.b32encode(hashlib.sha256(f"volume/{volume_id}".encode()).digest())[:12].decode().lower()


def in_order(volumes: Iterable[AttachedVolume], wanted: Sequence[WantedVolume]) -> tuple[AttachedVolume, ...]:
    """Sort volumes as they are asked for (L-C11); what is not wanted any more comes last."""
    places = {each.volume_id: place for place, each in enumerate(wanted)}
    return tuple(sorted(volumes, key=lambda each: places.get(each.volume_id, len(places))))
