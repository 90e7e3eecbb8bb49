"""Volumes that a host holds although no row places them there: listed, left alone, and adopted by a person (H-R1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.errors import Conflict, NotFound
from model.volume import VolumeReport
from store.audit import Actor
from store.database import reading, transaction
from store.volume import StoredVolume, audit_volume, describe_holder, read_volume

if TYPE_CHECKING:
    from store.database import Pool


async def list_foreign(pool: Pool, host_id: str) -> tuple[VolumeReport, ...]:
    """Return what a host holds of volumes although no row places them there: shown, and left alone."""
    async with reading(pool) as connection:
        found = await connection.fetchval("select foreign_volumes from hosts where id = $1", host_id)
    return tuple(VolumeReport.model_validate(each) for each in found or ())


async def adopt_foreign(
    pool: Pool, host_id: str, volume_id: str, *, project: str, name: str, actor: Actor
) -> StoredVolume:
    """Make a row of a volume that a host holds without one, as after a restore; its data is left as it is (H-R1).

    Raise NotFound for one that the host does not hold so, Conflict for a name that is taken.
    """
    async with transaction(pool) as connection:
        held = await connection.fetchval("select foreign_volumes from hosts where id = $1 for update", host_id)
        told = next((each for each in held or () if each["volume_id"] == volume_id), None)
        if told is None:
            raise NotFound(f"the host holds no volume {volume_id} without a row; it tells of all within minutes")
        if await connection.fetchval("select true from volumes where id = $1", volume_id):
            raise Conflict(f"the volume {volume_id} has a row, which says that it is on another host")
        made = await connection.fetchval(
            """insert into volumes (id, project, name, size_gib, host_id, made_at, made_bytes)
            values ($1, $2, $3, ($4 + (1::bigint << 30) - 1) >> 30, $5, now(), $4) on conflict do nothing
            returning true""",
            volume_id,
            project,
            name,
            told["size_bytes"],
            host_id,
        )
        if not made:
            raise await describe_holder(connection, project, name)
        left = [each for each in held if each["volume_id"] != volume_id]
        await connection.execute("update hosts set foreign_volumes = $2 where id = $1", host_id, left)
        await audit_volume(connection, actor, project, "adopt", volume_id, after={"name": name, "host": host_id})
        return await read_volume(connection, project, volume_id)
