"""Why a VM is not settled, in one sentence; what its pass says it is doing is `status_detail` (L-G10, H-S10)."""

from __future__ import annotations

from datetime import timedelta

from store.vm import StoredVm

_OVERLOOKED = timedelta(minutes=1)


def why(vm: StoredVm, *, project: str | None) -> str | None:
    """Say what a VM waits for; None when nothing is left to do, or nothing keeps it."""
    if vm.settled:
        return "creating it rests: change what it is given, or ask for a retry" if vm.resting else None
    if vm.host_last_report_at is None:
        return f"{_host(vm, project)} has not reported yet: its worker has to run"
    if vm.host_silent:
        return (
            f"{_host(vm, project)} is silent since {vm.host_last_report_at:%Y-%m-%dT%H:%M:%SZ}: it goes on from there"
        )
    if vm.held:
        return f"it is held by {vm.held_by or 'another operation'}: its end is waited for"
    if vm.frozen:
        return "the fleet is frozen: nothing is destroyed until it is unfrozen"
    if vm.retry_at is not None and vm.retry_at > vm.now:
        return f"the next try is at {vm.retry_at:%Y-%m-%dT%H:%M:%SZ}"
    if vm.due_at is not None and vm.due_at < vm.now - _OVERLOOKED:
        since = f"{vm.due_at:%Y-%m-%dT%H:%M:%SZ}"
        return f"it is due since {since} and nobody took it up: control worker and Temporal have to run"
    return None


def _host(vm: StoredVm, project: str | None) -> str:
    return "its host" if project is not None else f"its host {vm.host_name}"
