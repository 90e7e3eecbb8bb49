"""Operations: what was asked, taken up, and how it ended."""

from __future__ import annotations

from fastapi import APIRouter

from api.gate import PartsOf, Viewer
from api.views import Document, operation_view
from model.ids import VmId

router = APIRouter(prefix="/v1/operations", tags=["operations"])


@router.get("/{operation_id}")
async def get(operation_id: VmId, caller: Viewer, parts: PartsOf) -> Document:
    """Show an operation."""
    operation = await parts.operations.get(caller.project, operation_id)
    return operation_view(operation, ui_url=parts.ui_url if caller.project is None else None)
