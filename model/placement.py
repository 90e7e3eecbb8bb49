"""Where a new VM goes, and why not elsewhere: a pure function of what hosts told and what rows hold (H-P1 to H-P8).

The control plane is polite: it refuses only where a cap that the host declared would make the host refuse too (H-P2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from model.base import Frozen
from model.capacity import DIMENSIONS, Caps, Entitlement, Shortage, describe, find_shortages
from model.errors import Conflict, NoRoom, Refused, Unavailable
from model.report import Capacity, HypervisorReport
from model.versions import is_below

Strategy = Literal["balanced", "spread", "pack"]
GIB = 1 << 30
LEAST_RESERVE_MIB = 1024
_UNCAPPED = Caps()
_IN = {"maintenance": "in maintenance"}
_NOT_THERE = "its host takes no new VM now; try again later"


class Policy(Frozen):
    """How hosts are ranked (H-P8)."""

    strategy: Strategy = "balanced"
    memory_overcommit: float = 1.0


class Wish(Frozen):
    """What a VM asks of a host. `host_labels`: what its host must be labelled with.

    `group`: it is kept apart from the others of its project's group, as far as there are hosts to take them.
    `volumes_on`: the host that its volumes are on, None while it has none that was placed.
    """

    entitlement: Entitlement
    hypervisor: str = "auto"
    architecture: str = "x86_64"
    host_labels: dict[str, str] = {}
    group: str | None = None
    volumes_on: str | None = None


class HostView(Frozen):
    """A host as placement sees it.

    `heard_at`: its last report; what comes of that is None before. `live` and `leaving` are held by VMs that live, and
    by those being deleted: `leaving_vms` in number, the last of them destroyed from `leaving_until` on (H-P3).
    `placed_lately`: in the last 5 minutes. `creates_frozen`: who holds new
    VMs, and since when (H-R3). `of_group`: how many of the VM's own anti-affinity group are there.
    """

    id: str
    name: str
    status: str
    labels: dict[str, str] = {}
    silent: bool = False
    heard_at: datetime | None = None
    version: str | None = None
    floor: str | None = None
    hypervisors: tuple[HypervisorReport, ...] = ()
    architecture: str | None = None
    caps: Caps | None = None
    capacity: Capacity = Capacity()
    live: Entitlement = Entitlement()
    leaving: Entitlement = Entitlement()
    leaving_vms: int = 0
    leaving_until: datetime | None = None
    placed_lately: int = 0
    creates_frozen: str | None = None
    of_group: int = 0

    @property
    def held(self) -> Entitlement:
        return self.live + self.leaving

    @property
    def visible(self) -> bool:
        return self.heard_at is not None and not self.silent


class Reason(Frozen):
    """Why a host does not take a VM: the filter's name, and the whole of it for those who may see hosts."""

    filter: str
    words: str
    shortages: tuple[Shortage, ...] = ()


def find_reason(host: HostView, wish: Wish, *, named: bool = False) -> Reason | None:
    """Find what keeps a host from taking a VM: its state, then the filters, then its caps (H-P6); None: it takes it."""
    return _find_state(host, named=named) or _find_misfit(host, wish) or _find_shortage(host, wish)


def _find_state(host: HostView, *, named: bool) -> Reason | None:
    """A host that has not reported yet is accepted where it is named, and waited for; no strategy chooses it."""
    if host.status not in ("ready", "joining"):
        return Reason(filter=host.status, words=f"is {_IN.get(host.status, host.status)} and takes no new VM")
    if host.creates_frozen is not None:
        return Reason(filter="frozen", words=f"takes no new VM: they are frozen by {host.creates_frozen}")
    if host.heard_at is None:
        return None if named else Reason(filter="joining", words="has not reported yet")
    if host.silent:
        return Reason(filter="silent", words=f"is silent since {_at(host.heard_at)}")
    if is_below(host.version, host.floor):
        words = f"needs worker {host.floor} or newer, it runs {host.version or 'an unknown one'}: upgrade it"
        return Reason(filter="worker too old", words=words)
    return None


def _find_misfit(host: HostView, wish: Wish) -> Reason | None:
    """What it has not told of, it may have; its labels are an operator's, and known."""
    if wish.volumes_on not in (None, host.id):
        return Reason(filter="volumes elsewhere", words="is not where the VM's volumes are")
    missing = {key: value for key, value in wish.host_labels.items() if host.labels.get(key) != value}
    if missing:
        told = ", ".join(f"{key}={value}" for key, value in sorted(missing.items()))
        return Reason(filter="other labels", words=f"is not labelled {told}")
    if host.architecture not in (None, wish.architecture):
        words = f"is of architecture {host.architecture}, the image is for {wish.architecture}"
        return Reason(filter="other architecture", words=words)
    found = {each.name: each for each in host.hypervisors}
    if not found:
        return None
    if wish.hypervisor == "auto" and set(found) == {"simulated"}:
        words = "runs simulated guests only, which a VM must name (hypervisor)"
        return Reason(filter="no such hypervisor", words=words)
    if wish.hypervisor != "auto" and not (wish.hypervisor in found and found[wish.hypervisor].available):
        why = found[wish.hypervisor].why if wish.hypervisor in found else "it has no such hypervisor"
        return Reason(filter="no such hypervisor", words=f"does not run {wish.hypervisor} guests: {why}")
    return None


def _find_shortage(host: HostView, wish: Wish) -> Reason | None:
    short = find_shortages(host.caps or _UNCAPPED, host.held, wish.entitlement)
    return Reason(filter="no room", words=describe_shortage(host, wish, short), shortages=short) if short else None


def describe_shortage(host: HostView, wish: Wish, short: Sequence[Shortage]) -> str:
    """Say what is short, and what helps: waiting, where those that are torn down hold it, else a decision (H-P4)."""
    told = "; ".join(each.words for each in short)
    if find_shortages(host.caps or _UNCAPPED, host.live, wish.entitlement):
        return f"{told}; its operator set that limit: ask for less, delete a VM there, or go elsewhere"
    binding = {each.dimension: getattr(host.leaving, each.dimension) for each in short}
    who = f"{host.leaving_vms} VM{' ' if host.leaving_vms == 1 else 's '}still being torn down"
    holds = "holds" if host.leaving_vms == 1 else "hold"
    until = f" until {_at(host.leaving_until)}" if host.leaving_until else ""
    return f"{told}; {who} {holds} {describe(Entitlement(**binding))}{until}: wait, it ends by itself"


def refuse_named(host: HostView, reason: Reason, *, see_hosts: bool = True) -> Refused | Unavailable:
    """Make the refusal of a host that a VM named, or lives on."""
    if reason.shortages:
        if not see_hosts:
            return NoRoom(f"its host refuses: {_wishes(reason.shortages)}")
        return NoRoom(f"host {host.name} ({host.id}) refuses: {reason.words}")
    text = f"the host {host.name} ({host.id}) {reason.words}; choose another one" if see_hosts else _NOT_THERE
    # It may be back in a moment: the only one of them that another try can cure.
    return Unavailable(text) if reason.filter == "silent" else Conflict(text)


def refuse_all(
    reasons: Sequence[tuple[HostView, Reason]], *, see_hosts: bool = True
) -> Conflict | NoRoom | Unavailable:
    """Make the refusal of a VM that no host takes: each host with its reason, or counts alone (H-P5, S-32)."""
    if not any(host.visible for host, _ in reasons):
        return Unavailable("no host is visible now, none can be asked; `hostler host ls` shows why. Try again later")
    if see_hosts:
        told = "; ".join(f"{host.name} ({host.id}) {_says(reason)}" for host, reason in reasons)
        text = f"no host takes this VM: {told}"
    else:
        counts = Counter(reason.filter for _, reason in reasons)
        told = ", ".join(f"{word}: {count}" for word, count in sorted(counts.items()))
        wishes = _wishes(each for _, reason in reasons for each in reason.shortages)
        text = f"no host takes this VM ({told})" + (f"; {wishes}" if wishes else "")
    return NoRoom(text) if any(reason.shortages for _, reason in reasons) else Conflict(text)


def _says(reason: Reason) -> str:
    return f"refuses: {reason.words}" if reason.shortages else reason.words


def _wishes(shortages: Iterable[Shortage]) -> str:
    return "; ".join(dict.fromkeys(each.wish for each in shortages))


def rank(hosts: Iterable[HostView], wish: Wish, policy: Policy) -> list[HostView]:
    """Order hosts that take a VM, the best first; equal inputs rank equally (H-P8).

    Whatever the strategy, a host with fewer of the VM's anti-affinity group comes before one with more (H-P1).
    """

    def key(host: HostView) -> tuple[bool, int, float, float, str]:
        share = _share(host, wish)
        by: dict[Strategy, tuple[float, float]] = {
            "balanced": (host.placed_lately, share),
            "spread": (share, 0.0),
            "pack": (-share, 0.0),
        }
        return (not _fits(host, wish, policy), host.of_group, *by[policy.strategy], host.name)

    return sorted(hosts, key=key)


def _fits(host: HostView, wish: Wish, policy: Policy) -> bool:
    """Say whether the machine itself has room; what was not measured is never taken for full (H-S7)."""
    measured = host.capacity
    if measured.memory_mib_total is not None:
        reserve = max(LEAST_RESERVE_MIB, measured.memory_mib_total // 20)
        room = measured.memory_mib_total * policy.memory_overcommit - reserve - host.held.memory_mib
        if wish.entitlement.memory_mib > room:
            return False
    if measured.storage_bytes_free is not None:
        room = measured.storage_bytes_free - (measured.storage_bytes_promised or 0) / 2
        return wish.entitlement.disk_gib * GIB <= room
    return True


def _share(host: HostView, wish: Wish) -> float:
    """Return the largest share of the host that would be held, in any dimension: of its cap, else of its size."""
    after, measured = host.held + wish.entitlement, host.capacity
    storage = measured.storage_bytes_total
    sizes = (measured.cpu_millicores_total, measured.memory_mib_total, storage // GIB if storage else None)
    shares = [0.0]
    for name, size in zip(DIMENSIONS, sizes, strict=True):
        limit = (host.caps or _UNCAPPED).limit(name) or size
        shares += [getattr(after, name) / limit] if limit else []
    return max(shares)


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
