"""Named images: a project's own, and those of the operators under `public` (S-19)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import asyncpg

from model.errors import Conflict, NotFound
from model.ids import new_id
from model.specification import ImageSpec
from store.audit import Actor, write_audit
from store.database import reading, transaction
from store.sync import drop_image

if TYPE_CHECKING:
    from store.database import Pool

PUBLIC = "public"
_COLUMNS = "id, project, name, content, secrets, created_at"


@dataclass(frozen=True)
class StoredImage:
    """A named image. `secrets` are its whole URLs, sealed."""

    id: str
    project: str
    name: str
    spec: ImageSpec
    secrets: bytes
    created_at: datetime

    @property
    def full_name(self) -> str:
        """What the image is called whoever asks: `PROJECT/NAME`."""
        return f"{self.project}/{self.name}"


class ImageStore:
    """The images. project None reaches every project's."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def add(
        self, *, project: str, name: str, spec: ImageSpec, secrets: bytes, actor: Actor, image_id: str | None = None
    ) -> StoredImage:
        """Store an image under a name of its project; raise Conflict for a name that is taken."""
        async with transaction(self._pool) as connection:
            record = await connection.fetchrow(
                f"""insert into images (id, project, name, content, secrets) values ($1, $2, $3, $4, $5)
                on conflict (project, name) do nothing returning {_COLUMNS}""",
                image_id or new_id(),
                project,
                name,
                spec.model_dump(mode="json"),
                secrets,
            )
            if record is None:
                raise Conflict(f"there is an image {name} already; remove it first, or choose another name")
            await write_audit(
                connection,
                actor,
                project=project,
                action="image.add",
                subject=f"image/{record['id']}",
                after={"name": name, "spec": spec.model_dump(mode="json")},
            )
        return _to_image(record)

    async def find(self, project: str, reference: str) -> StoredImage:
        """Return the image that `reference` means to a project: its own, else the operators'; raise NotFound.

        `public/<name>` means the operators' whatever the project has.
        """
        name = reference.removeprefix(f"{PUBLIC}/")
        owners = [PUBLIC] if name != reference else [project, PUBLIC]
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                f"""select {_COLUMNS} from images where name = $1 and project = any($2)
                order by project = $3 desc limit 1""",
                name,
                owners,
                project,
            )
        if record is None:
            raise NotFound(f"there is no image {reference}; `hostler image ls` shows those there are")
        return _to_image(record)

    async def named(self, project: str, name: str) -> StoredImage:
        """Return the image of exactly this project and name; raise NotFound."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                f"select {_COLUMNS} from images where project = $1 and name = $2", project, name
            )
        if record is None:
            raise NotFound(f"there is no image {project}/{name}")
        return _to_image(record)

    async def get(self, project: str | None, image_id: str) -> StoredImage:
        """Return an image by its id, of the project or public; raise NotFound."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                f"select {_COLUMNS} from images where id = $1 and ($2::text is null or project in ($2, $3))",
                image_id,
                project,
                PUBLIC,
            )
        if record is None:
            raise NotFound(f"there is no image {image_id}")
        return _to_image(record)

    async def by_ids(self, ids: Collection[str]) -> tuple[StoredImage, ...]:
        """Return those of these images that are there, in their order."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                f"select {_COLUMNS} from images where id = any($1) order by array_position($1, id)", [*ids]
            )
        return tuple(_to_image(record) for record in records)

    async def list(self, project: str | None, *, limit: int = 100, after: str | None = None) -> tuple[StoredImage, ...]:
        """List a project's images and the public ones by id, from the one above the id `after` on."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                f"""select {_COLUMNS} from images where ($1::text is null or project in ($1, $2))
                and ($3::text is null or id > $3) order by id limit $4""",
                project,
                PUBLIC,
                after,
                limit,
            )
        return tuple(_to_image(record) for record in records)

    async def remove(self, project: str | None, image_id: str, actor: Actor) -> None:
        """Remove an image's name; VMs made from it keep what they have. Raise NotFound, also for a public one."""
        async with transaction(self._pool) as connection:
            record = await connection.fetchrow(
                "delete from images where id = $1 and ($2::text is null or project = $2) returning project, name",
                image_id,
                project,
            )
            if record is None:
                raise NotFound(f"there is no image {image_id}")
            await drop_image(connection, image_id)
            await write_audit(
                connection,
                actor,
                project=record["project"],
                action="image.remove",
                subject=f"image/{image_id}",
                before={"name": record["name"]},
            )


def _to_image(record: asyncpg.Record) -> StoredImage:
    return StoredImage(
        id=record["id"],
        project=record["project"],
        name=record["name"],
        spec=ImageSpec.model_validate(record["content"]),
        secrets=record["secrets"],
        created_at=record["created_at"],
    )
