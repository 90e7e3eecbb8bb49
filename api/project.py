"""Projects: what they hold, and how much they may have (S-36)."""

from __future__ import annotations

from fastapi import APIRouter

from api.documents.access import HeldByProject, Limits, ProjectDocument
from api.documents.base import Page
from api.fleet_bodies import LimitsBody
from api.gate import FleetOperator, FleetViewer, PartsOf, Viewer
from api.route import GatedRoute
from model.errors import NotFound
from model.ids import Name
from store.project import OTHERS, Project

router = APIRouter(prefix="/v1/projects", tags=["access"], route_class=GatedRoute)


@router.get("")
async def projects(_caller: FleetViewer, parts: PartsOf) -> Page[ProjectDocument]:
    """List projects: whatever has a VM, a volume, an image, a token or limits."""
    return Page(items=[_view(each) for each in await parts.projects.list()], next_cursor=None)


@router.get("/{project}")
async def project(project: Name, caller: Viewer, parts: PartsOf) -> ProjectDocument:
    """Show what a project holds and may have; a project's token sees its own."""
    if caller.project not in (None, project):
        raise NotFound(f"there is no project {project}")
    return _view(await parts.projects.get(project))


@router.patch("/{project}")
async def limit(project: Name, body: LimitsBody, caller: FleetOperator, parts: PartsOf) -> ProjectDocument:
    """Set how much a project may have; what it has already stays. null: as much as hosts have room for."""
    return _view(await parts.projects.limit(project, body.model_dump(exclude_unset=True), caller.actor))


@router.patch("")
async def limit_others(body: LimitsBody, caller: FleetOperator, parts: PartsOf) -> ProjectDocument:
    """Set how much every project may have that was given no limits of its own."""
    return _view(await parts.projects.limit(OTHERS, body.model_dump(exclude_unset=True), caller.actor))


def _view(project: Project) -> ProjectDocument:
    return ProjectDocument(name=project.name, held=HeldByProject(**project.held), limits=Limits(**project.limits))
