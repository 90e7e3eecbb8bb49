"""The host's ledger: what its VMs hold, and the one decision at a time about more (H-A1 to H-A4)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from drivers.stored import StoredConfig, StoredStatus
from model.capacity import Caps, Entitlement, find_shortages, refuse
from model.vm import VmInput

GIB = 1 << 30


class Ledger:
    """VM id to entitlement. What is committed is what the records say, so a restart changes nothing (case G4).

    read: the entitlements of the records, noted as they are and never judged. What was admitted counts from that
    instant on, also while its record is not written yet.
    """

    def __init__(
        self,
        caps: Caps,
        read: Callable[[], Iterable[tuple[str, Entitlement]]],
        host: str,
        *,
        find_disk_room: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.caps = caps
        self.find_disk_room = find_disk_room
        """Says how many GiB all disks may take in all where nothing is promised beyond that (H-A4), else None."""
        self.host = host
        """The host's name in a refusal."""
        self._read = read
        self._admitted: dict[object, tuple[str, Entitlement]] = {}

    def holdings(self) -> dict[str, Entitlement]:
        """Return what each VM holds."""
        found = dict(self._read())
        for vm_id, wish in self._admitted.values():
            found[vm_id] = found[vm_id] | wish if vm_id in found else wish
        return found

    def held(self) -> Entitlement:
        """Return what all VMs hold."""
        return total(self.holdings().values())

    @contextmanager
    def admitted(self, vm_id: str, wish: Entitlement) -> Generator[None]:
        """Commit a VM's wish while the block writes its record; raise NoRoom with every cap that it goes over.

        Nothing comes between the decision and its commitment. A block that fails leaves what the records say.
        """
        holdings = self.holdings()
        own = holdings.pop(vm_id, None)
        limits = self.caps.with_disk(self.find_disk_room())
        shortages = find_shortages(limits, total(holdings.values()), wish, own)
        if shortages:
            raise refuse(self.host, shortages)
        entry = object()
        self._admitted[entry] = (vm_id, wish)
        try:
            yield
        finally:
            del self._admitted[entry]


def total(entitlements: Iterable[Entitlement]) -> Entitlement:
    """Add entitlements up."""
    return sum(entitlements, start=Entitlement())


def wish_of(wanted: VmInput) -> Entitlement:
    """Say what a VM's input asks of its host."""
    return Entitlement(
        cpu_millicores=wanted.cpu_millicores, memory_mib=wanted.memory_mib, disk_gib=wanted.disk_gib or 0
    )


def entitlement_of(config: StoredConfig, status: StoredStatus) -> Entitlement:
    """Say what a VM holds by its record: compute until it is proven stopped in quarantine, disk until it is gone."""
    held = wish_of(config.input)
    made = Entitlement(disk_gib=-(-(status.record.disk_bytes or 0) // GIB))
    if _is_stopped_for_good(status):
        held = Entitlement(disk_gib=held.disk_gib)
    return held | made


def _is_stopped_for_good(status: StoredStatus) -> bool:
    """A process that was recorded, but not seen since, may live: what holds it is not released (L-R2)."""
    if "destroy_process" in status.record.destroyed:
        return True
    ended = status.process is None or status.process == status.exit_of
    seen = status.observed.process if status.observed is not None else None
    return status.record.quarantined_at is not None and ended and seen is None
