"""How things are called in Temporal: workflow ids, queues, search attributes. Never literals elsewhere."""

from __future__ import annotations

CONTROL_QUEUE = "control"
LOOK_AGAIN = "look_again"
SEARCH_HOST = "HostlerHost"
SEARCH_VM = "HostlerVm"
SEARCH_PHASE = "HostlerPhase"


def vm_workflow_id(vm_id: str) -> str:
    """Name the one workflow id under which every pass of a VM runs."""
    return f"vm/{vm_id}"


def host_workflow_id(host_id: str) -> str:
    """Name the one workflow id under which every sync of a host runs."""
    return f"host/{host_id}"


def host_queue(host_id: str, instance_id: str) -> str:
    """Name the queue of a host's prompt steps; another instance of the host never sees this one's work (H-E4)."""
    return f"host/{host_id}/{instance_id}"


def bulk_queue(host_id: str, instance_id: str) -> str:
    """Name the queue of a host's heavy steps, so that a stop never waits behind a copy (H-E4)."""
    return f"host/{host_id}/{instance_id}/bulk"


def is_host_queue(queue: str) -> bool:
    """Say whether what travels on `queue` is sealed with a host's key (S-3)."""
    return queue.startswith("host/")


def host_of_queue(queue: str) -> tuple[str, str]:
    """Return the host id and the instance id of a host's queue."""
    parts = queue.split("/")
    return parts[1], parts[2]
