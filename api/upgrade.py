"""What is in the way of an upgrade: schema, control workers, open runs, hosts, floor (H-D4)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.documents.upgrade import HostReleaseDocument, ObstacleDocument, UpgradeDocument
from api.gate import FleetViewer, PartsOf
from api.parts import Parts
from api.route import GatedRoute
from model.errors import Unavailable
from model.upgrade import HostRelease, Installed, find_obstacles
from model.versions import VERSION
from runtime.deployment import Builds, find_builds
from store.fleet import get_fleet
from store.migrate import count_migrations

router = APIRouter(prefix="/v1/upgrade", tags=["fleet"], route_class=GatedRoute)


@router.get("")
async def check(
    _caller: FleetViewer, parts: PartsOf, to: Annotated[str | None, Query(max_length=64)] = None
) -> UpgradeDocument:
    """Name what is in the way of release `to`, or of having all of it on the API's own release."""
    there = await _look(parts)
    return UpgradeDocument(
        release=there.release,
        migrations=there.migrations[0],
        floor=there.floor,
        build=there.build,
        runs=there.runs,
        hosts=[HostReleaseDocument(**each.model_dump()) for each in there.hosts],
        obstacles=[ObstacleDocument(**each.model_dump()) for each in find_obstacles(there, to)],
    )


async def _look(parts: Parts) -> Installed:
    fleet = await get_fleet(parts.pool)
    builds = await _find_builds(parts)
    return Installed(
        release=VERSION,
        migrations=await count_migrations(parts.pool),
        floor=fleet.min_worker_version,
        told=builds is not None,
        build=builds.current if builds else None,
        runs=builds.open_runs if builds else {},
        hosts=tuple(await _list_hosts(parts)),
        behind=fleet.behind_why if fleet.behind else None,
    )


async def _find_builds(parts: Parts) -> Builds | None:
    if parts.client is None:
        return None
    try:
        return await find_builds(parts.client)
    except Unavailable:
        return None


async def _list_hosts(parts: Parts) -> list[HostRelease]:
    found: list[HostRelease] = []
    after: str | None = None
    while hosts := await parts.hosts.list(limit=100, after=after):
        after = hosts[-1].id
        found += [
            HostRelease(name=host.name, version=host.worker_version, silent=host.silent)
            for host in hosts
            if host.status != "forgotten"
        ]
    return sorted(found, key=lambda host: host.name)
