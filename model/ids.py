"""Ids and names: one spelling each, so that paths, taps and chains may be built from them (S-20, A-7)."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
import uuid
from typing import Annotated

from pydantic import AfterValidator

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def check_label(value: str) -> str:
    """Return `value` if it is 1 to 63 of [a-z0-9-], first and last alphanumeric; raise ValueError otherwise."""
    if not _LABEL.fullmatch(value):
        raise ValueError("must be 1 to 63 characters of a-z, 0-9 and '-', starting and ending with a letter or digit")
    return value


def check_digest(value: str) -> str:
    """Return `value` if it is a SHA-256 in lower-case hexadecimal; raise ValueError otherwise."""
    if not _DIGEST.fullmatch(value):
        raise ValueError("must be a SHA-256 digest: 64 hexadecimal digits in lower case")
    return value


VmId = Annotated[str, AfterValidator(check_label)]
HostId = Annotated[str, AfterValidator(check_label)]
Name = Annotated[str, AfterValidator(check_label)]
Digest = Annotated[str, AfterValidator(check_digest)]


def new_id() -> str:
    """Make a UUID version 7 (RFC 9562): ids sort by the time of their making."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & (1 << 48) - 1) << 80 | random
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def is_uuid(value: str) -> bool:
    """Say whether `value` is a UUID in its one canonical spelling."""
    try:
        return str(uuid.UUID(value)) == value
    except ValueError:
        return False


def mac_address(vm_id: str, *, interface: int = 0, draw: int = 0) -> str:
    """Compute a locally administered MAC address from the VM and its interface (L-C13).

    40 bits of a SHA-256. `draw` counts up where the unique index saw a clash.
    """
    digest = hashlib.sha256(f"mac/{vm_id}/{interface}/{draw}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in b"\x02" + digest[:5])


def tap_name(prefix: str, vm_id: str, *, interface: int = 0) -> str:
    """Compute the tap's name: `prefix` (at most 3 bytes) and 60 bits of a SHA-256, within the kernel's 15 bytes."""
    digest = hashlib.sha256(f"tap/{vm_id}/{interface}".encode()).digest()
    return prefix + base64.b32encode(digest)[:12].decode().lower()
