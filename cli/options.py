"""Options that many commands take, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

from cyclopts import Parameter

from cli.failures import Usage
from model.duration import parse_duration

Json = Annotated[bool, Parameter(name="--json", help="Print JSON on standard output, and nothing else.")]
NoWait = Annotated[bool, Parameter(name="--no-wait", help="Return at once; the work goes on.")]
Timeout = Annotated[str | None, Parameter(name="--timeout", help="How long to wait, as 90s or 10m. Default: no limit.")]

_SIZE = re.compile(r"([0-9]{1,9})([MGT]?)i?B?", re.ASCII | re.IGNORECASE)
_CPUS = re.compile(r"([0-9]{1,6})(?:\.([0-9]{1,3}))?", re.ASCII)
_MIB = {"": 1, "M": 1, "G": 1 << 10, "T": 1 << 20}
_GIB = {"": 1, "G": 1, "T": 1 << 10}


def read_duration(text: str | None, option: str) -> timedelta | None:
    """Read an option that is a duration. Errors: Usage."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Usage(f"{option}: {error}") from None


def read_memory_mib(text: str) -> int:
    """Read memory in MiB: `512`, `512M`, `2G`; units are of 1024. Errors: Usage."""
    return _read_size(text, _MIB, "--memory: must be MiB, or a number with M or G, such as 512 or 2G")


def read_disk_gib(text: str, option: str = "--disk") -> int:
    """Read a disk's size in GiB: `10`, `10G`, `1T`; units are of 1024. Errors: Usage."""
    return _read_size(text, _GIB, f"{option}: must be GiB, or a number with G or T, such as 10 or 20G")


def read_millicores(text: str) -> int:
    """Read processors, with up to three decimals, as thousandths of one. Errors: Usage."""
    found = _CPUS.fullmatch(text)
    if found is None:
        raise Usage("--cpus: must be a number of processors such as 1, 0.5 or 2.25")
    return int(found[1]) * 1000 + int((found[2] or "").ljust(3, "0"))


def read_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Read `key=value` words; a key counts once. Errors: Usage."""
    read: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or key in read:
            raise Usage(f"{option}: must be key=value, each key once")
        read[key] = value
    return read


def _read_size(text: str, units: dict[str, int], wanted: str) -> int:
    found = _SIZE.fullmatch(text)
    unit = None if found is None else units.get(found[2].upper())
    if found is None or unit is None:
        raise Usage(wanted)
    return int(found[1]) * unit
