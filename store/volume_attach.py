"""Attach volumes to VMs: whose each is, where it lies, and what that takes of a host (H-V1, H-P1).

A volume is attached to at most one VM by its row, which is locked after the host's and the VM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncpg

from model.capacity import Entitlement, Shortage, find_shortages
from model.errors import Conflict, NotFound
from model.placement import HostView, Reason, Wish, describe_shortage, refuse_named
from model.volume import MOST_VOLUMES
from store.change import refuse_if_unknown
from store.placement import Placed, view_hosts
from store.room import MADE_GIB

if TYPE_CHECKING:
    from store.database import Connection

_NEEDED_STEP = "ensure_volume"
_READ = f"""
select o.*, {MADE_GIB} as made_gib, h.name as host_name, v.deleted as vm_deleted, v.destroy_at as vm_destroy_at
from volumes o left join hosts h on h.id = o.host_id left join vms v on v.id = o.vm_id
where o.id = any($1) and o.project = $2 order by o.id"""


def missing_volume(volume: str) -> NotFound:
    """Say that there is no such volume."""
    return NotFound(f"there is no volume {volume}; `hostler volume ls` lists those that are there")


async def find_volume_id(connection: Connection, project: str, volume: str) -> str:
    """Return the id of a project's volume by its id or its name; raise NotFound."""
    found: str | None = await connection.fetchval(
        "select id from volumes where project = $1 and (id = $2 or name = $2) order by id = $2 desc limit 1",
        project,
        volume,
    )
    if found is None:
        raise missing_volume(volume)
    return found


async def find_for_vm(
    connection: Connection, project: str, ids: Sequence[str], vm_id: str, named: str | None, *, see_hosts: bool
) -> Placed:
    """Say where a new VM's volumes want it; raise Conflict for those on two hosts, or another host named (H-V1)."""
    volumes = await _read(connection, project, ids, vm_id, lock=False)
    hosts = {each["host_id"]: each for each in volumes if each["host_id"] is not None}
    if named is not None and set(hosts) - {named}:
        elsewhere = next(each for host_id, each in hosts.items() if host_id != named)
        raise Conflict(
            f"the volume {elsewhere['name']} is on {_host(elsewhere, see_hosts)}, the VM is to be on another: a VM "
            "goes where its volumes are; leave the host out"
        )
    if len(hosts) > 1:
        told = " and ".join(f"{each['name']} on {_host(each, see_hosts)}" for each in hosts.values())
        raise Conflict(f"the volumes are on different hosts ({told}): a VM goes where its volumes are, to one of them")
    to_make = sum(max(0, each["size_gib"] - each["made_gib"]) for each in volumes)
    return Placed(next(iter(hosts), None), to_make)


async def attach_to_new(connection: Connection, record: asyncpg.Record, ids: Sequence[str], *, see_hosts: bool) -> None:
    """Attach volumes to a VM whose row was just made, on a host that has room for them."""
    if ids:
        await _attach(connection, record, await _read(connection, record["project"], ids, record["id"]), see_hosts)


async def change_volumes(
    connection: Connection, record: asyncpg.Record, before: Sequence[str], after: Sequence[str], *, see_hosts: bool
) -> None:
    """Attach and detach volumes of a VM that lives; its host's row and its own are locked.

    Raises Conflict where one is another VM's, deleted, or on another host, or where there are too many; NoRoom.
    """
    if len(after) > MOST_VOLUMES:
        raise Conflict(f"a VM has at most {MOST_VOLUMES} volumes at a time: detach one first")
    await connection.execute(
        "update volumes set vm_id = null, updated_at = now() where id = any($1) and vm_id = $2",
        [each for each in before if each not in after],
        record["id"],
    )
    added = [each for each in after if each not in before]
    if not added:
        return
    await refuse_if_unknown(connection, record["host_id"], _NEEDED_STEP, "volumes")
    volumes = await _read(connection, record["project"], added, record["id"])
    growth = sum(max(0, each["size_gib"] - each["made_gib"]) for each in volumes)
    made = sum(each["made_gib"] for each in volumes)
    await check_room(connection, record["host_id"], made_gib=made, more_gib=growth, see_hosts=see_hosts)
    await _attach(connection, record, volumes, see_hosts)


async def check_room(connection: Connection, host_id: str, *, made_gib: int, more_gib: int, see_hosts: bool) -> None:
    """Raise NoRoom where a host would refuse that volumes which hold so much take so much more (H-P2)."""
    for host in await view_hosts(connection, host_id) if more_gib else ():
        own, wish = Entitlement(disk_gib=made_gib), Entitlement(disk_gib=made_gib + more_gib)
        others = host.held.model_copy(update={"disk_gib": max(0, host.held.disk_gib - made_gib)})
        short = find_shortages(host.caps, others, wish, own) if host.caps else ()
        if short:
            raise refuse_named(host, _reason(host, wish, short), see_hosts=see_hosts)


def _reason(host: HostView, wish: Entitlement, short: tuple[Shortage, ...]) -> Reason:
    words = describe_shortage(host, Wish(entitlement=wish), short)
    return Reason(filter="no room", words=words, shortages=short)


async def _read(
    connection: Connection, project: str, ids: Sequence[str], vm_id: str, *, lock: bool = True
) -> list[asyncpg.Record]:
    """Read volumes that a VM is to have; raise what keeps it from having one.

    They are locked after their host's row alone: who has yet to find the host looks without a lock, and again then.
    """
    if not ids:
        return []
    if lock:
        await connection.execute("select 1 from volumes where id = any($1) order by id for update", list(ids))
    found = await connection.fetch(_READ, list(ids), project)
    for volume_id in ids:
        if volume_id not in {each["id"] for each in found}:
            raise missing_volume(volume_id)
    for each in found:
        if each["deleted"]:
            raise Conflict(f"the volume {each['name']} was deleted; undelete it first")
        if each["vm_id"] not in (None, vm_id):
            raise Conflict(_taken(each))
    return list(found)


def _taken(volume: asyncpg.Record) -> str:
    told = f"the volume {volume['name']} is attached to the VM {volume['vm_id']}"
    if volume["vm_deleted"]:
        until = f"{volume['vm_destroy_at']:%Y-%m-%dT%H:%M:%SZ}"
        return f"{told}, which was deleted and will be destroyed at {until}: undelete that one, or wait until then"
    return f"{told}, and to one VM at a time only: detach it there first"


async def _attach(
    connection: Connection, record: asyncpg.Record, volumes: Sequence[asyncpg.Record], see_hosts: bool
) -> None:
    for each in volumes:
        if each["host_id"] not in (None, record["host_id"]):
            raise Conflict(
                f"the volume {each['name']} is on {_host(each, see_hosts)}, the VM {record['name']} is on another: "
                "a volume is attached on its own host only"
            )
    await connection.execute(
        "update volumes set vm_id = $2, host_id = $3, updated_at = now() where id = any($1)",
        [each["id"] for each in volumes],
        record["id"],
        record["host_id"],
    )


def _host(volume: asyncpg.Record, see_hosts: bool) -> str:
    return f"the host {volume['host_name']}" if see_hosts else "a host"
