"""Volumes: made, read, grown, deleted with their own grace, and gone only when their host has confirmed it (H-V3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from model.errors import Conflict, Gone
from model.ids import new_id
from model.passes import PassType
from model.volume import volume_serial
from store.audit import Actor, write_audit
from store.change import accept, lock_vm, refuse_unless_changeable
from store.database import reading, transaction
from store.placement import lock_host_of
from store.vm_change import update_locked
from store.volume_attach import check_room, missing_volume

if TYPE_CHECKING:
    from store.database import Connection, Pool

_COLUMNS = (
    *("id", "project", "name", "size_gib", "host_id", "vm_id", "made_at", "made_bytes"),
    *("deleted", "deleted_at", "destroy_at", "destroying", "created_at", "updated_at"),
)
_SELECT = f"""select {", ".join(f"o.{name}" for name in _COLUMNS)}, h.name as host_name, v.name as vm_name,
    now() as now, coalesce(h.status = 'forgotten', false) as host_forgotten
from volumes o left join hosts h on h.id = o.host_id left join vms v on v.id = o.vm_id"""


@dataclass(frozen=True)
class StoredVolume:
    """A volume's row. `size_gib` is what is wanted, `made_bytes` what its host last said that there is."""

    id: str
    project: str
    name: str
    size_gib: int
    host_id: str | None
    host_name: str | None
    vm_id: str | None
    vm_name: str | None
    made_at: datetime | None
    made_bytes: int | None
    deleted: bool
    deleted_at: datetime | None
    destroy_at: datetime | None
    destroying: bool
    created_at: datetime
    updated_at: datetime
    host_forgotten: bool
    now: datetime

    @property
    def serial(self) -> str:
        """The serial number by which a guest tells its disk from others."""
        return volume_serial(self.id)


@dataclass(frozen=True)
class Grown:
    """A volume that was grown, and the VM whose pass makes it so, if one has it: what to poke."""

    volume: StoredVolume
    vm_id: str | None = None
    pass_type: PassType | None = None


class VolumeStore:
    """The volumes. project None acts on any project's."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def create(
        self, *, project: str, name: str, size_gib: int, host_id: str | None, actor: Actor
    ) -> StoredVolume:
        """Make a volume's row; raise Conflict for a name that is taken.

        Without a host it goes to that of the first VM that has it. Its file is made before that VM boots.
        """
        volume_id = new_id()
        async with transaction(self._pool) as connection:
            made = await connection.fetchval(
                """insert into volumes (id, project, name, size_gib, host_id) values ($1, $2, $3, $4, $5)
                on conflict (project, name) do nothing returning true""",
                volume_id,
                project,
                name,
                size_gib,
                host_id,
            )
            if not made:
                raise await describe_holder(connection, project, name)
            shown = {"name": name, "size_gib": size_gib, "host": host_id}
            await audit_volume(connection, actor, project, "create", volume_id, after=shown)
            return await read_volume(connection, project, volume_id)

    async def get(self, project: str | None, volume: str) -> StoredVolume:
        """Return a volume by its id, or by its name in a project; raise NotFound."""
        async with reading(self._pool) as connection:
            return await read_volume(connection, project, volume)

    async def list(
        self,
        project: str | None,
        *,
        host_id: str | None = None,
        vm_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> tuple[StoredVolume, ...]:
        """List volumes by id, from the one above the id `after` on (A-5)."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                f"""{_SELECT} where ($1::text is null or o.project = $1) and ($2::text is null or o.host_id = $2)
                    and ($3::text is null or o.vm_id = $3) and ($4::text is null or o.name = $4)
                    and ($5::text is null or o.id > $5)
                order by o.id limit $6""",
                project,
                host_id,
                vm_id,
                name,
                after,
                limit,
            )
        return tuple(_to_volume(record) for record in records)

    async def grow(self, project: str | None, volume_id: str, size_gib: int, actor: Actor) -> Grown:
        """Have a volume larger: at once where a VM has it, else when one does; raise Conflict to shrink it (H-V4)."""
        async with transaction(self._pool) as connection:
            vm_id = (await read_volume(connection, project, volume_id)).vm_id
            vm = None
            if vm_id is not None:
                await lock_host_of(connection, vm_id)
                vm = await lock_vm(connection, project, vm_id, None)
            before = await _lock(connection, project, volume_id)
            if before.vm_id != vm_id:
                raise Conflict(f"the volume {before.name} was attached or detached this moment; try again")
            if before.deleted:
                raise Conflict(f"the volume {before.name} was deleted; undelete it first")
            if size_gib < before.size_gib:
                raise Conflict(
                    f"a volume only grows: {before.name} has {before.size_gib} GiB, {size_gib} GiB was asked for"
                )
            if size_gib == before.size_gib:
                return Grown(before)
            pass_type = None
            if vm is not None:
                pass_type = await _grow_at_vm(connection, vm, before, size_gib, actor, see_hosts=project is None)
            await connection.execute(
                "update volumes set size_gib = $2, updated_at = now() where id = $1", before.id, size_gib
            )
            sizes = {"before": {"size_gib": before.size_gib}, "after": {"size_gib": size_gib}}
            await audit_volume(connection, actor, before.project, "grow", before.id, **sizes)
            return Grown(await read_volume(connection, project, before.id), vm_id, pass_type)

    async def delete(
        self, project: str | None, volume_id: str, actor: Actor, *, grace: timedelta, asked: bool = False
    ) -> StoredVolume:
        """Keep a volume for its grace, then have its host remove it; raise Conflict while it is attached (H-V3).

        A second delete changes nothing, unless the grace was asked for. One that no host was ever told of has nothing
        to be removed, and of one whose host was given up nobody will ever tell: it is gone at once.
        """
        async with transaction(self._pool) as connection:
            before = await _lock(connection, project, volume_id)
            if before.vm_id is not None:
                raise Conflict(
                    f"the volume {before.name} is attached to the VM {before.vm_name} ({before.vm_id}): detach it "
                    "first, or wait until that VM is gone"
                )
            if before.destroying or (before.deleted and not asked):
                return before
            if before.host_id is None or before.host_forgotten:
                await connection.execute("delete from volumes where id = $1", before.id)
                await audit_volume(connection, actor, before.project, "delete", before.id, before={"name": before.name})
                return replace(before, deleted=True, destroying=True, destroy_at=before.now)
            at = await connection.fetchval(
                """update volumes set deleted = true, deleted_at = coalesce(deleted_at, now()),
                    destroy_at = now() + $2, updated_at = now()
                where id = $1 returning destroy_at""",
                before.id,
                grace,
            )
            shown = {"name": before.name, "destroy_at": at.isoformat()}
            await audit_volume(connection, actor, before.project, "delete", before.id, after=shown)
            return await read_volume(connection, project, before.id)

    async def undelete(self, project: str | None, volume_id: str, actor: Actor) -> StoredVolume:
        """Bring a deleted volume back; raise Gone once its host was told to remove it."""
        async with transaction(self._pool) as connection:
            before = await _lock(connection, project, volume_id)
            if not before.deleted:
                return before
            if before.destroying:
                raise Gone(f"the volume {before.name} is past its grace and being removed; it cannot be brought back")
            await connection.execute(
                """update volumes set deleted = false, deleted_at = null, destroy_at = null, updated_at = now()
                where id = $1""",
                before.id,
            )
            await audit_volume(connection, actor, before.project, "undelete", before.id)
            return await read_volume(connection, project, before.id)


async def _grow_at_vm(
    connection: Connection, vm: asyncpg.Record, volume: StoredVolume, size_gib: int, actor: Actor, *, see_hosts: bool
) -> PassType:
    """What a VM has becomes larger: a change of that VM, which its pass applies."""
    refuse_unless_changeable(vm)
    more = size_gib - volume.size_gib
    await check_room(connection, vm["host_id"], made_gib=volume.size_gib, more_gib=more, see_hosts=see_hosts)
    after = await update_locked(
        connection, vm["id"], "generation = generation + 1, spec_generation = spec_generation + 1"
    )
    sizes = {"before": {volume.name: volume.size_gib}, "after": {volume.name: size_gib}}
    return (await accept(connection, actor, after, "change", **sizes)).pass_type


async def _lock(connection: Connection, project: str | None, volume: str) -> StoredVolume:
    found = await read_volume(connection, project, volume)
    await connection.execute("select 1 from volumes where id = $1 for update", found.id)
    return await read_volume(connection, project, found.id)


async def read_volume(connection: Connection, project: str | None, volume: str) -> StoredVolume:
    """Return a volume by its id, or by its name in a project; raise NotFound."""
    record = await connection.fetchrow(
        f"""{_SELECT} where ($1::text is null or o.project = $1)
            and (o.id = $2 or (o.name = $2 and o.project = coalesce($1, 'default'))) order by o.id = $2 desc limit 1""",
        project,
        volume,
    )
    if record is None:
        raise missing_volume(volume)
    return _to_volume(record)


async def describe_holder(connection: Connection, project: str, name: str) -> Conflict:
    """Say who holds a volume's name, and until when (A-7)."""
    holder = await connection.fetchrow(
        "select id, deleted, destroy_at from volumes where project = $1 and name = $2", project, name
    )
    if holder is None:
        return Conflict(f"the name {name} was released this moment; try again")
    if holder["deleted"]:
        until = f"{holder['destroy_at']:%Y-%m-%dT%H:%M:%SZ}"
        return Conflict(
            f"the name {name} is held by the deleted volume {holder['id']}, which is kept until {until}; undelete it, "
            "or choose another name"
        )
    return Conflict(f"the name {name} is held by the volume {holder['id']}; choose another one")


async def audit_volume(
    connection: Connection,
    actor: Actor,
    project: str,
    action: str,
    volume_id: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Write what was done to a volume into the audit trail (S-37)."""
    await write_audit(
        connection,
        actor,
        project=project,
        action=f"volume.{action}",
        subject=f"volume/{volume_id}",
        before=before,
        after=after,
    )


def _to_volume(record: asyncpg.Record) -> StoredVolume:
    plain = {name: record[name] for name in _COLUMNS}
    return StoredVolume(
        **plain,
        host_name=record["host_name"],
        vm_name=record["vm_name"],
        host_forgotten=record["host_forgotten"],
        now=record["now"],
    )
