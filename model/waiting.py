"""What a VM may wait for: one word for each state in which a pass can do nothing now (`hostler vm why`)."""

from __future__ import annotations

from enum import StrEnum


class Waiting(StrEnum):
    """Why nothing is being done for a VM. Each has its sentence and its advice in `api.why`."""

    HOLD = "hold"
    """Another operation, such as a migration, owns the VM (L-G12)."""
    ATTEMPT_PAUSE = "attempt_pause"
    """A pause between two attempts of a create (L-C4)."""
    CREATE_RESTS = "create_rests"
    """Creating ended with an error that trying again does not cure (L-C4, L-C6)."""
    STEP_PAUSE = "step_pause"
    """A pause after a failed step (L-V5)."""
    SILENT_GUEST = "silent_guest"
    """The guest's process lives but does not answer (L-V3)."""
    UNREADABLE_RECORD = "unreadable_record"
    """The host cannot read the VM's record (L-G8)."""
    LOST_RECORD = "lost_record"
    """The host has no record of a VM that once lived (L-V9)."""
    CORRUPT_COUNTERS = "corrupt_counters"
    """The host's record says that more was applied than was ever asked for (L-N5)."""
    REFUSED_CHANGE = "refused_change"
    """The host cannot give the VM what was asked for; it keeps what it has (L-V8)."""
    FROZEN = "frozen"
    """The fleet is frozen: nothing is destroyed (H-R2)."""
    GRACE = "grace"
    """A deleted VM can still be undeleted (L-R2)."""
    REMAINS = "remains"
    """Something of the VM is still on its host after it was destroyed (L-R6)."""
    HOST_AWAY = "host_away"
    """The host does not report, or nobody there takes up work (L-G7)."""
    HOST_BELOW_FLOOR = "host_below_floor"
    """The host's worker is older than the fleet allows (H-S5)."""
    HOST_BUSY = "host_busy"
    """The host could not begin the step, through no fault of the VM."""
    HOST_CERTIFICATE = "host_certificate"
    """The VM's host certificate is not there yet (L-C2)."""
    HOST_QUEUE = "host_queue"
    """The VM keeps its place in a queue of the host, or its image is still being fetched (L-C7)."""
