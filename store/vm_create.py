"""Make a VM's row, once per id, in one transaction with its operation and its audit entry (L-N4, A-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from model.errors import Conflict
from model.ids import mac_address
from model.specification import NewVm, VmSpec, fingerprint, input_digest, same_files, same_urls
from store.audit import Actor
from store.change import CLEAR, Accepted, accept, pass_type_of, refuse_if_held, wake_for
from store.database import transaction
from store.deadlines import CREATE_TIME, WORK_TIME
from store.placement import Placing, reserve_host
from store.vm import GONE_FOR, GONE_HOW
from store.volume_attach import attach_to_new, find_for_vm

if TYPE_CHECKING:
    from store.database import Connection, Pool

MAC_DRAWS = 8
"""How many MAC addresses of one id are tried: any of these may be a VM's (L-C13)."""


async def create_vm(pool: Pool, new: NewVm, actor: Actor, placing: Placing | None = None) -> Accepted:
    """Make the row of a VM that is wanted, or return the one that the same request made before.

    Raise Conflict, with the reason, for a name or id that is taken and an id used within 30 days; then Conflict, NoRoom
    or Unavailable where no host takes it. Order: id, name, the named host's state, filters, caps (H-P6).
    """
    draw = 0
    while draw < MAC_DRAWS:
        try:
            async with transaction(pool) as connection:
                return await _create(connection, new, actor, placing or Placing(), draw)
        except _NameTaken as error:
            async with transaction(pool) as connection:
                refusal = await _describe_holder(connection, new)
            if refusal is not None:
                raise refusal from error
        except _MacTaken:
            draw += 1
    raise Conflict(f"no free MAC address was found for the id {new.vm_id}; choose another id")


class _NameTaken(Exception):
    """The unique index on names refused the row."""


class _MacTaken(Exception):
    """The unique index on MAC addresses refused the row (L-C13)."""


async def _create(connection: Connection, new: NewVm, actor: Actor, placing: Placing, draw: int) -> Accepted:
    there = await connection.fetchrow("select * from vms where id = $1 for update", new.vm_id)
    if there is None:
        await _check_gone(connection, new)
        await _check_foreign(connection, new, see_hosts=placing.see_hosts)
        await _check_name(connection, new)
        ids, see = new.spec.volumes, placing.see_hosts
        volumes = await find_for_vm(connection, new.project, ids, new.vm_id, new.host_id, see_hosts=see)
        host_id = await reserve_host(connection, new, placing, volumes)
        record = await _insert(connection, new, host_id, draw)
        if record is not None:
            await _check_gone(connection, new)
            await attach_to_new(connection, record, ids, see_hosts=see)
            shown = {"name": new.name, "host": host_id, "spec": new.spec.model_dump(mode="json")}
            return await accept(connection, actor, record, "create", after=shown)
        there = await connection.fetchrow("select * from vms where id = $1 for update", new.vm_id)
    if there is None:
        raise Conflict(f"the id {new.vm_id} was released this moment; try again")
    return await _return_existing(connection, new, actor, there)


async def _insert(connection: Connection, new: NewVm, host_id: str, draw: int) -> asyncpg.Record | None:
    """Insert the row; return None when another request made one of this id meanwhile."""
    mac = mac_address(new.vm_id, draw=draw)
    digest = input_digest(vm_id=new.vm_id, project=new.project, name=new.name, mac=mac, spec=new.spec)
    try:
        return await connection.fetchrow(
            f"""insert into vms (id, project, name, host_id, spec, secrets, input_digest, fingerprint, power_state,
                disk_gib, stop_timeout_seconds, on_guest_poweroff, mac, labels, termination_protection, host_labels,
                anti_affinity_group, expected_by)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, now() + {CREATE_TIME})
            on conflict (id) do nothing returning *""",
            new.vm_id,
            new.project,
            new.name,
            host_id,
            new.spec.model_dump(mode="json"),
            new.secrets,
            digest,
            fingerprint(new),
            new.power_state,
            new.spec.disk_gib,
            new.spec.stop_timeout_seconds,
            new.spec.on_guest_poweroff,
            mac,
            new.labels,
            new.termination_protection,
            new.host_labels,
            new.anti_affinity_group,
        )
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name == "vms_mac_key":
            raise _MacTaken from error
        raise _NameTaken from error


async def _check_gone(connection: Connection, new: NewVm) -> None:
    """Asked before a host is, and again after the insert: a teardown that ended this moment has its entry by then."""
    gone = await connection.fetchrow(
        f"select project, {GONE_HOW} as how, at from gone where vm_id = $1 and at > now() - {GONE_FOR}", new.vm_id
    )
    if gone is None:
        return
    if gone["project"] != new.project:
        raise Conflict(f"the id {new.vm_id} is not available")
    raise Conflict(
        f"the id {new.vm_id} belonged to a VM that was {gone['how']} at {gone['at']:%Y-%m-%dT%H:%M:%SZ}; an id is free "
        "again after 30 days: choose another one"
    )


async def _check_foreign(connection: Connection, new: NewVm, *, see_hosts: bool) -> None:
    """Raise Conflict where a host holds a VM of this id without a row: a create would make its disk anew (case I5)."""
    holder = await connection.fetchval(
        """select name from hosts where status <> 'forgotten'
            and foreign_vms @> jsonb_build_array(jsonb_build_object('vm_id', $1::text)) limit 1""",
        new.vm_id,
    )
    if holder is None:
        return
    if not see_hosts:
        raise Conflict(f"the id {new.vm_id} is not available")
    raise Conflict(
        f"the host {holder} holds a VM {new.vm_id} without a row: take that over (`hostler host adopt {holder} "
        f"{new.vm_id}`), or choose another id"
    )


async def _check_name(connection: Connection, new: NewVm) -> None:
    """Ask before a host is asked; the index decides (H-P6)."""
    taken = await connection.fetchval(
        "select true from vms where project = $1 and name = $2 and id <> $3", new.project, new.name, new.vm_id
    )
    if taken:
        raise _NameTaken


async def _return_existing(connection: Connection, new: NewVm, actor: Actor, there: asyncpg.Record) -> Accepted:
    """L-N4: the same request gets its VM again, with fresh URLs; any other is told why not."""
    if there["project"] != new.project:
        raise Conflict(f"the id {new.vm_id} is not available")
    if there["deleted"]:
        raise Conflict(f"the id {new.vm_id} belongs to a VM that is being destroyed; choose another one")
    if there["fingerprint"] != fingerprint(new):
        raise Conflict(f"the id {new.vm_id} belongs to a VM that was asked for with another specification")
    spec = VmSpec.model_validate(there["spec"])
    # A VM that was rebuilt from another image has no use for the URLs of its first one.
    if same_urls(spec, new.spec) or not same_files(spec.image, new.spec.image):
        return Accepted(new.vm_id, pass_type_of(there), None, False)
    refuse_if_held(there)
    # Later changes stay; only where the image's files are fetched from is new.
    image = spec.image.model_copy(
        update={role: getattr(new.spec.image, role) for role in ("rootfs", "kernel", "initrd")}
    )
    clear = f", {CLEAR}" if there["first_ready_at"] is None else ""
    record = await connection.fetchrow(
        f"""update vms set spec = $2, secrets = $3, updated_at = now(), {wake_for(WORK_TIME)}{clear}
        where id = $1 returning *""",
        new.vm_id,
        spec.model_copy(update={"image": image}).model_dump(mode="json"),
        new.secrets,
    )
    assert record is not None, "the row is locked"  # noqa: S101
    return await accept(connection, actor, record, "refresh")


async def _describe_holder(connection: Connection, new: NewVm) -> Conflict | None:
    """Say who holds the name, and until when (A-7); None when the same request made the VM this moment."""
    holder = await connection.fetchrow(
        "select id, deleted, destroying, destroy_at from vms where project = $1 and name = $2", new.project, new.name
    )
    if holder is None:
        return Conflict(f"the name {new.name} was released this moment; try again")
    if holder["id"] == new.vm_id:
        return None
    if holder["destroying"]:
        return Conflict(
            f"the name {new.name} is held by the VM {holder['id']}, which is being torn down; try again soon"
        )
    if holder["deleted"]:
        return Conflict(
            f"the name {new.name} is held by the quarantined VM {holder['id']}, which will be destroyed at "
            f"{holder['destroy_at']:%Y-%m-%dT%H:%M:%SZ}; undelete it, or wait until then"
        )
    return Conflict(f"the name {new.name} is held by the live VM {holder['id']}; choose another one")
