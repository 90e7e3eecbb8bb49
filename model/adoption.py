"""A VM as its host's record keeps it: what a row is made of again when the store has none (L-R1, H-E5)."""

from __future__ import annotations

from model.base import Lenient
from model.record import Record
from model.vm import PowerState, VmInput

RECORD_LIMIT_BYTES = 1 << 20


class HostRecord(Lenient):
    """What a host answers when it is asked for a VM's record. `power_state`: what the guest does now, None: unknown."""

    input: VmInput
    record: Record
    power_state: PowerState | None
    ssh_host_key: str | None = None
    has_host_certificate: bool = False
