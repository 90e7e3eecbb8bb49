"""The audit trail: who changed what, and whether it is still what was written (S-37)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.cursor import After, Limit, page
from api.documents.access import AuditCheckDocument, AuditDocument
from api.documents.base import Page
from api.gate import FleetOperator, Operator, PartsOf
from api.route import GatedRoute
from model.errors import FieldError, Invalid
from model.ids import Digest
from store.audit import AuditEntry, check_audit, list_audit

router = APIRouter(prefix="/v1/audit", tags=["access"], route_class=GatedRoute)
_WORDS = Annotated[str | None, Query(max_length=200)]


@router.get("")
async def audit(
    caller: Operator,
    parts: PartsOf,
    limit: Limit = 50,
    after: After = None,
    object: _WORDS = None,
    actor: _WORDS = None,
) -> Page[AuditDocument]:
    """List what was changed, newest first: of an object such as `vm/ID`, or by an actor such as `token/ID`."""
    if after is not None and not after.isdecimal():
        why = "not one of this list; start again without it"
        raise Invalid(f"cursor: {why}", errors=(FieldError("query:cursor", why),))
    found = await list_audit(
        parts.pool,
        caller.project,
        subject=object,
        actor=actor,
        limit=limit + 1,
        before=None if after is None else int(after),
    )
    return page(found, limit, _view)


@router.get("/check")
async def check(_caller: FleetOperator, parts: PartsOf, head: Digest | None = None) -> AuditCheckDocument:
    """Read the whole trail and say whether it is what was written; `head`: one that an earlier check gave."""
    found = await check_audit(parts.pool, None if head is None else bytes.fromhex(head))
    return AuditCheckDocument(
        entries=found.position, head=None if found.hash is None else found.hash.hex(), broken=found.broken
    )


def _view(entry: AuditEntry) -> AuditDocument:
    return AuditDocument(**{name: getattr(entry, name) for name in AuditDocument.model_fields})
