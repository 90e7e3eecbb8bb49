"""What follows every accepted change: the VM's run is woken, and the row shown with its operation (A-6)."""

from __future__ import annotations

from datetime import timedelta

from fastapi import Response

from api.documents.vm import VmDocument
from api.gate import Caller
from api.parts import Parts
from api.views import operation_view, vm_view
from api.waiting import settled
from store.change import Accepted


async def accepted_view(
    parts: Parts, caller: Caller, accepted: Accepted, response: Response, wait: timedelta | None
) -> VmDocument:
    """Wake, wait if asked to, and return the row; what was wanted already wakes nobody."""
    vm = await parts.vms.get(caller.project, accepted.vm_id)
    if accepted.changed:
        parts.poke(accepted.vm_id, accepted.pass_type, vm.host_id)
    vm = await settled(parts, caller.project, vm, wait)
    response.headers["ETag"] = f'"{vm.generation}"'
    if accepted.operation_id is None:
        return vm_view(vm, project=caller.project)
    operation = await parts.operations.get(caller.project, accepted.operation_id)
    return vm_view(
        vm,
        project=caller.project,
        at_next_boot=accepted.at_next_boot,
        operation=operation_view(operation, project=caller.project, runs_url=parts.runs_url(caller.project)),
    )
