"""What VMs take of a host, what its operator lets them take, and the words of a refusal (H-S8, H-A2).

The host's ledger and the control plane's placement both judge by `find_shortages`, so that neither is stricter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from model.base import Frozen, Lenient
from model.errors import NoRoom


class Entitlement(Lenient):
    """What one VM, or several, may take. Of a root disk as large as its image nothing is known until it is made: 0."""

    cpu_millicores: int = 0
    memory_mib: int = 0
    disk_gib: int = 0

    def __add__(self, other: Entitlement) -> Entitlement:
        return Entitlement(**{name: getattr(self, name) + getattr(other, name) for name in DIMENSIONS})

    def __or__(self, other: Entitlement) -> Entitlement:
        """Take the larger of both in each dimension."""
        return Entitlement(**{name: max(getattr(self, name), getattr(other, name)) for name in DIMENSIONS})


DIMENSIONS = ("cpu_millicores", "memory_mib", "disk_gib")
_WORDS = {"cpu_millicores": ("cpu", "vCPUs", 1000), "memory_mib": ("memory", "MiB", 1), "disk_gib": ("disk", "GiB", 1)}


class Caps(Lenient):
    """How much the operator of a host lets VMs take in all. None: as much as is asked for (H-A3)."""

    max_vcpus: int | None = None
    max_memory_mib: int | None = None
    max_disk_gib: int | None = None

    def limit(self, dimension: str) -> int | None:
        """Return the cap in the dimension's own unit: n vCPUs are n × 1000 millicores (H-S8)."""
        if dimension == "cpu_millicores":
            return None if self.max_vcpus is None else self.max_vcpus * 1000
        return self.max_memory_mib if dimension == "memory_mib" else self.max_disk_gib

    def with_disk(self, gib: int | None) -> Caps:
        """Return them with a cap on disk that is no higher than `gib`; None changes nothing."""
        lowest = min((each for each in (self.max_disk_gib, gib) if each is not None), default=None)
        return self.model_copy(update={"max_disk_gib": lowest})


def propose_caps(memory_mib: int | None, disk_bytes: int | None) -> Caps:
    """Propose the caps of a machine of this size: what its host itself needs is left (H-A5). Unknown: no cap on it.

    memory_mib: its memory, of which 1 GiB, or 5 % where that is more, is left. disk_bytes: the size of the filesystem
    of its state directory, of which 10 % is left.
    """
    return Caps(
        max_memory_mib=memory_mib and max(1, memory_mib - max(1024, memory_mib // 20)),
        max_disk_gib=disk_bytes and max(1, (disk_bytes - disk_bytes // 10) >> 30),
    )


def describe_caps(caps: Caps) -> str:
    """Write caps for people."""
    limits = {name: caps.limit(name) for name in DIMENSIONS}
    told = [f"{amount(name, limit, True)} of {_WORDS[name][0]}" for name, limit in limits.items() if limit is not None]
    return ", ".join(told) or "as much as is asked for"


class Shortage(Frozen):
    """A dimension in which a wish does not fit beside what the others hold."""

    dimension: str
    needs: int
    holds: int
    limit: int

    @property
    def words(self) -> str:
        """Say it with the host's numbers."""
        return f"{self.wish}, holds {amount(self.dimension, self.holds)} of {amount(self.dimension, self.limit, True)}"

    @property
    def wish(self) -> str:
        """Say dimension and wish alone: what a project may read (S-32)."""
        return f"{_WORDS[self.dimension][0]}: needs {amount(self.dimension, self.needs, True)}"


def amount(dimension: str, value: int, unit: bool = False) -> str:
    """Write an amount of a dimension, as `2048` or `2048 MiB`; processors are written as vCPUs."""
    _, name, size = _WORDS[dimension]
    return f"{value / size:.15g}" + (f" {name}" if unit else "")


def describe(held: Entitlement) -> str:
    """Write what is held in every dimension in which anything is."""
    told = [
        f"{amount(name, getattr(held, name), True)} of {_WORDS[name][0]}" for name in DIMENSIONS if getattr(held, name)
    ]
    return ", ".join(told) or "nothing"


def find_shortages(
    caps: Caps, others: Entitlement, wish: Entitlement, own: Entitlement | None = None
) -> tuple[Shortage, ...]:
    """Name every dimension in which a wish goes over a cap; none: it is admitted. Exactly full fits (H-A2).

    others: what all other VMs hold. own: what this one holds already; what does not rise beyond it is not judged.
    """
    before = own or Entitlement()
    found: list[Shortage] = []
    for name in DIMENSIONS:
        needs, holds, limit = getattr(wish, name), getattr(others, name), caps.limit(name)
        if limit is not None and needs > getattr(before, name) and holds + needs > limit:
            found.append(Shortage(dimension=name, needs=needs, holds=holds, limit=limit))
    return tuple(found)


def find_excess(caps: Caps, held: Entitlement) -> Entitlement | None:
    """Say by how much what is held goes over the caps, a normal state (H-P7); None: by nothing."""
    limits = {name: caps.limit(name) for name in DIMENSIONS}
    over = {name: getattr(held, name) - limit for name, limit in limits.items() if limit is not None}
    found = {name: value for name, value in over.items() if value > 0}
    return Entitlement(**found) if found else None


def refuse(host: str, shortages: Iterable[Shortage]) -> NoRoom:
    """Make a host's refusal (H-A2)."""
    return NoRoom(f"host {host} refuses: {'; '.join(each.words for each in shortages)}")


_HOST = re.compile(r"\bhost \S+ refuses: ")
_HOLDS = re.compile(r", holds [0-9.e+]+ of [0-9.e+]+ (?:vCPUs|MiB|GiB)")


def without_host(refusal: str) -> str:
    """Take out of a host's refusal what is not a project's to read: its name, and what others hold (S-32)."""
    return _HOLDS.sub("", _HOST.sub("its host refuses: ", refusal))
