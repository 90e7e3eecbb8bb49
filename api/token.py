"""Tokens: who may call the API, as what, for how long (A-2, S-30)."""

from __future__ import annotations

from fastapi import APIRouter

from api.cursor import After, Limit, page
from api.documents.access import NewTokenDocument, TokenDocument
from api.documents.base import Page
from api.fleet_bodies import NewTokenBody
from api.gate import Operator, PartsOf
from api.route import GatedRoute
from model.credential import new_credential
from model.errors import FieldError, Invalid
from model.ids import Name
from store.token import StoredToken

router = APIRouter(prefix="/v1/tokens", tags=["access"], route_class=GatedRoute)


@router.post("", status_code=201)
async def add(body: NewTokenBody, caller: Operator, parts: PartsOf) -> NewTokenDocument:
    """Make a token with no more rights than the caller's own, and show it, this once."""
    project = body.project or caller.project
    caller.check_reach(body.role, project)
    if project is not None and body.role == "admin":
        why = "a project's token is operator or viewer"
        raise Invalid(f"role: {why}", errors=(FieldError("/role", why),))
    text, credential = new_credential("hst")
    made = await parts.tokens.add(
        token_id=credential.id,
        digest=credential.digest,
        role=body.role,
        project=project,
        lifetime=body.expires_in,
        actor=caller.actor,
        name=body.name,
    )
    return NewTokenDocument(**_view(made).model_dump(), token=text)


@router.get("")
async def tokens(caller: Operator, parts: PartsOf, limit: Limit = 50, after: After = None) -> Page[TokenDocument]:
    """List tokens, those that have ended too; a project's token sees its project's."""
    return page(await parts.tokens.list(caller.project, limit=limit + 1, after=after), limit, _view)


@router.delete("/{token_id}")
async def revoke(token_id: Name, caller: Operator, parts: PartsOf) -> TokenDocument:
    """End a token at once; the one that this call is made with, too."""
    known = await parts.tokens.get(caller.project, token_id)
    caller.check_reach(known.role, known.project)
    return _view(await parts.tokens.revoke(caller.project, token_id, caller.actor))


def _view(token: StoredToken) -> TokenDocument:
    return TokenDocument(**{name: getattr(token, name) for name in TokenDocument.model_fields})
