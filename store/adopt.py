"""Make a VM's row again from its host's record: adopted as it is, or kept in quarantine as one that vanished (L-R1).

Whatever was true when the record was asked for is looked at again under the host's lock: a row that exists by then, an
entry in `gone`, a fleet that is frozen or behind, a brake that others have reached meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import asyncpg

from model.errors import Conflict, Gone, NotFound
from model.foreign import ForeignVm, reaches_brake
from model.record import Record
from model.specification import NewVm, VmSpec, fingerprint, input_digest
from model.vm import Phase
from store.audit import Actor, write_audit
from store.change import Accepted, accept
from store.database import transaction
from store.deadlines import DESTROY_TIME, LIVE_TIME
from store.fleet import read_fleet
from store.foreign import facts_of, lately, note_vanished, read_foreign, write_foreign
from store.image import PUBLIC
from store.vm_change import undelete_locked
from store.volume_attach import attach_to_new

if TYPE_CHECKING:
    from store.database import Connection, Pool

Becomes = Literal["adopt", "quarantine", "vanish"]
"""What a foreign VM becomes: by an operator's word the first two; by the reports alone, within the brake, the last."""
_NAME_LIMIT = 63


@dataclass(frozen=True)
class Adopted:
    """A VM that was read out of its host's record. `new.power_state` is what it does now.

    Its project is `public` while nobody but its host has said whose it is, which is `told_project` (S-5).
    """

    new: NewVm
    mac: str
    record: Record
    created_at: datetime
    ssh_host_key: str | None
    told_project: str


@dataclass(frozen=True)
class Terms:
    """What a row is made under: the grace of one that vanished, that of a disk which a rebuild kept, the brake.

    `restoring`: a person settles a restore, so that the store is behind by right (H-R1).
    """

    vanish_grace: timedelta
    disk_grace: timedelta
    brake: int
    restoring: bool = False


async def take_foreign(
    pool: Pool, host_id: str, adopted: Adopted, becomes: Becomes, actor: Actor, terms: Terms
) -> Accepted | None:
    """Make the row; None when the reports alone do not carry it any more.

    Raise NotFound when the host does not hold such a VM, Conflict when there is a row, or the fleet is held.
    """
    vm_id = adopted.new.vm_id
    async with transaction(pool) as connection:
        host = await connection.fetchrow("select * from hosts where id = $1 for update", host_id)
        if host is None:
            raise NotFound(f"there is no host {host_id}")
        foreign = {vm.vm_id: vm for vm in await read_foreign(connection, host_id)}
        refusal = await _refusal(connection, host, foreign.get(vm_id), vm_id, restoring=terms.restoring)
        if becomes == "vanish" and (refusal is not None or await _braked(connection, host, foreign, vm_id, terms)):
            return None
        if refusal is not None:
            raise refusal
        record = await _insert(connection, host_id, adopted, becomes, terms)
        await write_foreign(connection, host_id, [vm for vm in foreign.values() if vm.vm_id != vm_id])
        if becomes == "vanish":
            await note_vanished(connection, host_id)
        shown = {"host": host_id, "spec": record["spec"], "from": "the host's record"}
        return await accept(connection, actor, record, "adopt" if becomes == "adopt" else "vanish", after=shown)


async def adopt_vanished(
    pool: Pool, host_id: str, vm_id: str, actor: Actor, *, project: str | None, name: str | None
) -> Accepted | None:
    """Bring back a VM that vanished and has its row of that kind, under the project that is named; None: it has none.

    Raise Conflict for another project than its own, and where nobody has said whose it is; Gone past its grace.
    """
    async with transaction(pool) as connection:
        await connection.execute("select 1 from hosts where id = $1 for update", host_id)
        record = await connection.fetchrow(
            "select * from vms where id = $1 and host_id = $2 for update", vm_id, host_id
        )
        if record is None or record["quarantine_kind"] != "vanished":
            return None
        if record["destroying"]:
            raise Gone(f"the VM {vm_id} is past its grace and being destroyed; it cannot be brought back")
        if record["project"] == PUBLIC:
            record = await _claim(connection, record, project, name)
        elif project not in (None, record["project"]) or name not in (None, record["name"]):
            raise Conflict(
                f"the VM {vm_id} is {record['name']} of the project {record['project']}, and goes back there"
            )
        return await undelete_locked(connection, record, actor, "adopt")


async def leave_foreign(pool: Pool, host_id: str, vm_id: str, actor: Actor) -> ForeignVm:
    """Leave a foreign VM as it is from now on, whatever reports say; raise NotFound when the host holds no such one."""
    return await _choose(pool, host_id, vm_id, {"choice": "left", "stop_pass": None}, "host.leave", actor)


async def stop_misplaced(pool: Pool, host_id: str, vm_id: str, actor: Actor) -> ForeignVm | None:
    """Have a VM stopped and kept whose row names another host; None where no row does (L-R1)."""
    async with transaction(pool) as connection:
        elsewhere = await connection.fetchval("select host_id from vms where id = $1 and host_id <> $2", vm_id, host_id)
        if elsewhere is None:
            return None
        stop_pass = await connection.fetchval("select nextval('pass')")
    return await _choose(pool, host_id, vm_id, {"choice": "stopped", "stop_pass": stop_pass}, "host.quarantine", actor)


async def _choose(pool: Pool, host_id: str, vm_id: str, chosen: dict[str, Any], action: str, actor: Actor) -> ForeignVm:
    async with transaction(pool) as connection:
        await connection.execute("select 1 from hosts where id = $1 for update", host_id)
        foreign = {vm.vm_id: vm for vm in await read_foreign(connection, host_id)}
        if vm_id not in foreign:
            raise not_held(vm_id)
        found = foreign[vm_id] = foreign[vm_id].model_copy(update=chosen)
        await write_foreign(connection, host_id, foreign.values())
        await write_audit(
            connection, actor, project=PUBLIC, action=action, subject=f"host/{host_id}", after={"vm": vm_id}
        )
        return found


def not_held(vm_id: str) -> NotFound:
    """Say that a host holds no such VM without a row."""
    return NotFound(f"the host holds no VM {vm_id} without a row; `hostler host foreign` lists those it holds")


async def _refusal(
    connection: Connection, host: asyncpg.Record, foreign: ForeignVm | None, vm_id: str, *, restoring: bool
) -> Conflict | NotFound | None:
    """Say what keeps a row from being made now."""
    if foreign is None:
        return not_held(vm_id)
    if host["status"] == "forgotten":
        return Conflict("the host was given up: what it still holds is stopped and quarantined there")
    row = await connection.fetchval("select host_id from vms where id = $1", vm_id)
    if row is not None:
        return Conflict(f"the VM {vm_id} has a row, on the host {row}: it is looked after there")
    fleet = await read_fleet(connection)
    if fleet.behind and not restoring:
        return Conflict("the fleet's database is behind its hosts: settle that by `hostler restore`")
    if (fleet.frozen or host["frozen"]) and not restoring:
        return Conflict("the fleet is frozen: nothing is taken over until `hostler unfreeze`")
    return None


async def _braked(
    connection: Connection, host: asyncpg.Record, foreign: Mapping[str, ForeignVm], vm_id: str, terms: Terms
) -> bool:
    """Say whether an operator has to choose: others may have vanished since the report that named this VM."""
    if not foreign[vm_id].counts or foreign[vm_id].choice is not None:
        return True
    facts = facts_of(await read_fleet(connection), host)
    now: datetime = await connection.fetchval("select now()")
    rows: int = await connection.fetchval("select count(*) from vms where host_id = $1", host["id"])
    return facts.held or reaches_brake(len(lately(host, now)) + 1, rows + len(foreign), terms.brake)


async def _claim(
    connection: Connection, record: asyncpg.Record, project: str | None, name: str | None
) -> asyncpg.Record:
    """Give a VM that vanished to the project that an operator says it belongs to, with its volumes."""
    check_project(record["id"], record["told_project"], project)
    spec, called = VmSpec.model_validate(record["spec"]), name or record["name"]
    digest = input_digest(vm_id=record["id"], project=record["told_project"], name=called, mac=record["mac"], spec=spec)
    try:
        claimed = await connection.fetchrow(
            """update vms set project = $2, name = $3, input_digest = $4, told_project = null where id = $1
            returning *""",
            record["id"],
            project,
            called,
            digest,
        )
    except asyncpg.UniqueViolationError as error:
        raise _name_taken(record["id"], called, record["told_project"]) from error
    assert claimed is not None, "the row is locked"  # noqa: S101
    await attach_to_new(connection, claimed, spec.volumes, see_hosts=True)
    return claimed


def check_project(vm_id: str, told: str, project: str | None) -> None:
    """Raise Conflict unless an operator says of whom a VM is, and says as its host's record does (S-5)."""
    if project is None:
        raise Conflict(
            f"the host's record of the VM {vm_id} says that it belongs to the project {told}; nobody has signed that: "
            "name its project"
        )
    if project != told:
        raise Conflict(f"the host's record of the VM {vm_id} belongs to the project {told}, not to {project}")


def _name_taken(vm_id: str, name: str, project: str) -> Conflict:
    return Conflict(
        f"the VM {vm_id} cannot be called {name}: another VM of the project {project} is; give it another name"
    )


async def _insert(
    connection: Connection, host_id: str, adopted: Adopted, becomes: Becomes, terms: Terms
) -> asyncpg.Record:
    """Insert the row with the record's own counters, so that neither is ahead of the other (L-N5)."""
    new, name = adopted.new, adopted.new.name
    if new.project == PUBLIC and await connection.fetchval(
        "select true from vms where project = $1 and name = $2", PUBLIC, name
    ):
        end = f"-{new.vm_id[-12:]}"
        name = name[: _NAME_LIMIT - len(end)] + end
    new = new.model_copy(update={"name": name})
    await connection.execute("delete from gone where vm_id = $1", new.vm_id)
    try:
        record = await connection.fetchrow(_INSERT, *_values(new, host_id, adopted, becomes, terms))
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name == "vms_mac_key":
            raise Conflict(f"the VM {new.vm_id} cannot have a row: its MAC address belongs to another VM") from error
        raise _name_taken(new.vm_id, name, new.project) from error
    assert record is not None, "an insert returns its row"  # noqa: S101
    work_time = LIVE_TIME if becomes == "adopt" else DESTROY_TIME
    await connection.execute(f"update vms set expected_by = now() + {work_time} where id = $1", new.vm_id)
    if new.project != PUBLIC:
        await attach_to_new(connection, record, new.spec.volumes, see_hosts=True)
    return record


_INSERT = """
insert into vms (id, project, name, host_id, spec, secrets, input_digest, fingerprint, power_state, disk_gib,
    stop_timeout_seconds, on_guest_poweroff, mac, created_at, ssh_host_key, deleted, generation, spec_generation,
    restart_generation, rebuild_generation, applied_rebuild_generation, observed_generation, phase, first_ready_at,
    setbacks, quarantine_kind, quarantine_since, quarantine_grace, destroy_at, kept_by, old_disk_until, told_project)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16::boolean, $17::bigint, $18, $19,
    $20::bigint, $20::bigint, $17::bigint, $21, case when $22::boolean then now() end,
    case when $22::boolean then null else 0 end, case when $16 then 'vanished' end, case when $16 then now() end,
    case when $16 then $23::interval end, case when $16 then now() + $23::interval end, $24::bigint,
    case when $24::bigint > 0 then now() + $25::interval end, $26)
returning *"""


def _values(new: NewVm, host_id: str, adopted: Adopted, becomes: Becomes, terms: Terms) -> tuple[object, ...]:
    told, was_made = adopted.record, adopted.record.boot_id is not None
    digest = input_digest(vm_id=new.vm_id, project=new.project, name=new.name, mac=adopted.mac, spec=new.spec)
    lives = Phase.READY if was_made else Phase.CREATING
    return (
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
        adopted.mac,
        adopted.created_at,
        adopted.ssh_host_key,
        becomes != "adopt",
        max(told.applied_generation, 1),
        max(told.applied_spec_generation, 1),
        told.applied_restart_generation,
        told.applied_rebuild_generation,
        lives if becomes == "adopt" else Phase.QUARANTINED,
        was_made,
        terms.vanish_grace,
        told.kept.by if told.kept else 0,
        terms.disk_grace,
        adopted.told_project if new.project == PUBLIC else None,
    )
