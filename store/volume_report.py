"""What a host's report says of its volumes, and which of them it is told to remove (H-V3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.report import HostReport
from model.versions import is_below
from store.audit import Actor, write_audit
from store.fleet import Fleet

if TYPE_CHECKING:
    from store.database import Connection


async def store_volumes(connection: Connection, host_id: str, report: HostReport) -> None:
    """Note which volumes a host has made, and how large each is; what it leaves out says nothing.

    Those without a row that places them there are kept as foreign: a list that it sends is whole.
    """
    if report.volumes is None:
        return
    told = [each.model_dump(mode="json") for each in report.volumes]
    await connection.execute(
        """update hosts set foreign_volumes = (
            select coalesce(jsonb_agg(s.told order by s.told ->> 'volume_id'), '[]')
            from jsonb_array_elements($2) as s(told) where not exists (
                select 1 from volumes o where o.id = s.told ->> 'volume_id' and o.host_id = $1))
        where id = $1""",
        host_id,
        told,
    )
    if told:
        await connection.execute(
            """update volumes o set made_at = coalesce(o.made_at, now()), made_bytes = s.size_bytes
            from jsonb_to_recordset($2) as s(volume_id text, size_bytes bigint)
            where o.id = s.volume_id and o.host_id = $1
                and (o.made_at is null or o.made_bytes is distinct from s.size_bytes)""",
            host_id,
            told,
        )


async def release_volumes(connection: Connection, host_id: str, report: HostReport, fleet: Fleet) -> tuple[str, ...]:
    """Release the volumes that a host confirms gone, and return those that it is to remove.

    Passing the point of no return is one statement: from then on none is undeleted. Nothing is released or removed
    below the version floor (H-S5), nor while the fleet is frozen or behind; only what the host was told to remove, and
    names as gone, is.
    """
    host_frozen = await connection.fetchval("select frozen from hosts where id = $1", host_id)
    stands_still = fleet.frozen or host_frozen or fleet.behind
    if is_below(report.worker_version, fleet.min_worker_version) or stands_still:
        return ()
    gone = await connection.fetch(
        """delete from volumes where host_id = $1 and id = any($2) and destroying and vm_id is null
        returning id, project, name""",
        host_id,
        list(report.volumes_gone),
    )
    for each in gone:
        await write_audit(
            connection,
            Actor("host"),
            project=each["project"],
            action="volume.gone",
            subject=f"volume/{each['id']}",
            before={"name": each["name"]},
        )
    told = await connection.fetch(
        """update volumes set destroying = true
        where host_id = $1 and deleted and vm_id is null and (destroying or destroy_at <= now()) returning id""",
        host_id,
    )
    return tuple(sorted(each["id"] for each in told))
