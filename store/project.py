"""Projects: what they hold, and how much they may (S-36). The database judges; here it is told and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from store.audit import Actor, write_audit
from store.database import reading, transaction

if TYPE_CHECKING:
    from store.database import Connection, Pool

LIMITS = ("max_vms", "max_vcpus", "max_memory_mib", "max_disk_gib", "max_images")
OTHERS = "*"
"""Stands for every project that was given no limits of its own."""
_VIEW = """select p.project, row_to_json(l)::jsonb as limits, row_to_json(h)::jsonb as held
    from {projects} p, limits_of_project(p.project) l, held_by_project(p.project) h order by p.project"""
_KNOWN = """(select project from vms union select project from volumes union select project from images
    union select project from tokens where project is not null
    union select project from project_limits where project not in ('*', 'public'))"""


@dataclass(frozen=True)
class Project:
    """What a project holds: `vms`, `cpu_millicores`, `memory_mib`, `disk_gib`, `images`; and its limits, None: none."""

    name: str
    held: dict[str, int]
    limits: dict[str, int | None]


class ProjectStore:
    """The projects, known by what they have."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self) -> tuple[Project, ...]:
        """List every project that has anything, by name."""
        async with reading(self._pool) as connection:
            return tuple(_project(each) for each in await connection.fetch(_VIEW.format(projects=_KNOWN)))

    async def get(self, name: str) -> Project:
        """Return a project; one that has nothing yet is no other than that."""
        async with reading(self._pool) as connection:
            return await _read(connection, name)

    async def limit(self, name: str, limits: Mapping[str, int | None], actor: Actor) -> Project:
        """Set the limits that are named, None for none; what a project has already stays, whatever they are."""
        async with transaction(self._pool) as connection:
            await connection.execute(
                """insert into project_limits select $1, max_vms, max_vcpus, max_memory_mib, max_disk_gib, max_images
                from project_limits where project = '*' on conflict (project) do nothing""",
                name,
            )
            before = await connection.fetchrow("select * from project_limits where project = $1 for update", name)
            assert before is not None, "it was inserted"  # noqa: S101
            changed = {key: limits[key] for key in LIMITS if key in limits and limits[key] != before[key]}
            for key, value in changed.items():
                await connection.execute(f"update project_limits set {key} = $2 where project = $1", name, value)
            if changed:
                was = {key: before[key] for key in changed}
                subject = f"project/{name}"
                await write_audit(
                    connection, actor, project=name, action="project.limit", subject=subject, before=was, after=changed
                )
            return await _read(connection, name)


async def _read(connection: Connection, name: str) -> Project:
    record = await connection.fetchrow(_VIEW.format(projects="(select $1::text as project)"), name)
    assert record is not None, "it is made of the name"  # noqa: S101
    return _project(record)


def _project(record: asyncpg.Record) -> Project:
    return Project(record["project"], record["held"], {key: record["limits"][key] for key in LIMITS})
