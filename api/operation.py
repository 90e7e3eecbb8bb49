"""Operations: what was asked, taken up, and how it ended."""

from __future__ import annotations

from fastapi import APIRouter

from api.documents.base import OperationDocument
from api.gate import PartsOf, Viewer
from api.route import GatedRoute
from api.views import operation_view
from model.ids import VmId

router = APIRouter(prefix="/v1/operations", tags=["operations"], route_class=GatedRoute)


@router.get("/{operation_id}")
async def get(operation_id: VmId, caller: Viewer, parts: PartsOf) -> OperationDocument:
    """Show an operation."""
    operation = await parts.operations.get(caller.project, operation_id)
    return operation_view(operation, project=caller.project, runs_url=parts.runs_url(caller.project))
