"""Change a VM's desired state: each accepted request in one transaction with wake, operation and audit entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import asyncpg

from model.errors import Conflict, Gone, NotFound
from model.generations import Changed, VmChange, apply_change, apply_restart
from model.specification import input_digest
from model.vm import Phase, PowerState
from store.audit import Actor
from store.change import (
    BEGIN_ANEW,
    CLEAR,
    DISOWN,
    WAKE,
    Accepted,
    accept,
    lock_vm,
    refuse_if_held,
    refuse_if_protected,
    refuse_unless_changeable,
    refuse_unless_stopped,
    unchanged,
    wake_for,
    wish_of,
)
from store.database import transaction
from store.deadlines import DESTROY_TIME, LIVE_TIME, WORK_TIME
from store.image import PUBLIC
from store.operation import end_operations
from store.placement import check_increase, lock_host_of
from store.volume_attach import change_volumes, find_volume_id

if TYPE_CHECKING:
    from store.database import Connection, Pool


class VmChanges:
    """The ways in which users change a VM. project None acts on any project's VM."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def change(
        self, project: str | None, vm_id: str, change: VmChange, actor: Actor, *, generation: int | None = None
    ) -> Accepted:
        """Apply a PATCH; `generation` is that of If-Match. What is identical already moves nothing (L-N1).

        But a VM that failed is looked at: what is wanted of it may not be so, or be so by now (case B8); and a start of
        one whose guest ended by itself is one (L-V4).
        """
        async with transaction(self._pool) as connection:
            if change.sizes:
                await lock_host_of(connection, vm_id)
            record = await lock_vm(connection, project, vm_id, generation)
            refuse_unless_changeable(record)
            accepted = await change_locked(connection, record, change, actor, see_hosts=project is None)
            is_start = change.power_state is PowerState.RUNNING and record["setbacks"] != 0
            if not accepted.changed and (record["phase"] == Phase.FAILED or is_start):
                anew = f"{BEGIN_ANEW}, " if is_start else ""
                await connection.execute(f"update vms set {anew}{WAKE} where id = $1", vm_id)
            return accepted

    async def attach(
        self, project: str | None, vm_id: str, volume: str, actor: Actor, *, generation: int | None = None
    ) -> Accepted:
        """Attach a volume, by its id or its name in the VM's project; one that the VM has already moves nothing."""

        def attached(has: tuple[str, ...], volume_id: str) -> tuple[str, ...]:
            return has if volume_id in has else (*has, volume_id)

        return await self._change_volumes(project, vm_id, volume, actor, attached, generation)

    async def detach(
        self, project: str | None, vm_id: str, volume: str, actor: Actor, *, generation: int | None = None
    ) -> Accepted:
        """Detach a volume; raise NotFound for one that the VM has not."""

        def detached(has: tuple[str, ...], volume_id: str) -> tuple[str, ...]:
            if volume_id not in has:
                raise NotFound(f"the volume {volume} is not attached to the VM {vm_id}")
            return tuple(each for each in has if each != volume_id)

        return await self._change_volumes(project, vm_id, volume, actor, detached, generation)

    async def _change_volumes(
        self,
        project: str | None,
        vm_id: str,
        volume: str,
        actor: Actor,
        wanted: Callable[[tuple[str, ...], str], tuple[str, ...]],
        generation: int | None,
    ) -> Accepted:
        async with transaction(self._pool) as connection:
            await lock_host_of(connection, vm_id)
            record = await lock_vm(connection, project, vm_id, generation)
            refuse_unless_changeable(record)
            volume_id = await find_volume_id(connection, record["project"], volume)
            volumes = wanted(wish_of(record).spec.volumes, volume_id)
            return await change_locked(connection, record, VmChange(volumes=volumes), actor, see_hosts=project is None)

    async def restart(
        self, project: str | None, vm_id: str, actor: Actor, *, generation: int | None = None
    ) -> Accepted:
        """Ask for one restart; only while running is wanted (L-N3)."""
        async with transaction(self._pool) as connection:
            record = await lock_vm(connection, project, vm_id, generation)
            refuse_unless_changeable(record)
            return await restart_locked(connection, record, actor)

    async def retry(self, project: str | None, vm_id: str, actor: Actor) -> Accepted:
        """Clear count and error and look at once, also after a permanent error (L-C4) and in a pause."""
        async with transaction(self._pool) as connection:
            record = await lock_vm(connection, project, vm_id, None)
            if not record["deleted"]:
                refuse_unless_changeable(record)
            refuse_if_held(record)
            after = await update_locked(connection, vm_id, CLEAR)
            return await accept(connection, actor, after, "retry")

    async def delete(
        self,
        project: str | None,
        vm_id: str,
        actor: Actor,
        *,
        grace: timedelta,
        asked: bool = False,
        generation: int | None = None,
    ) -> Accepted:
        """Put a VM into quarantine; the deadline is fixed here, by Postgres' clock (L-R3).

        A second delete changes nothing, unless the grace was asked for: then it counts from now on (`asked`). So does
        the delete's own grace of a VM that vanished: from then on it is one that its user deleted.
        """
        async with transaction(self._pool) as connection:
            record = await lock_vm(connection, project, vm_id, generation)
            refuse_if_protected(record, "deleted")
            vanished = record["quarantine_kind"] == "vanished"
            if record["destroying"] or (record["deleted"] and not asked and not vanished):
                return unchanged(record)
            if record["deleted"]:
                after = await update_locked(
                    connection,
                    vm_id,
                    "quarantine_kind = 'tombstone', quarantine_grace = $2, destroy_at = now() + $2",
                    grace,
                    work_time=DESTROY_TIME,
                )
                return await accept(connection, actor, after, "delete", **_deadlines(record, after))
            after = await update_locked(
                connection,
                vm_id,
                f"""deleted = true, generation = generation + 1, quarantine_kind = 'tombstone',
                quarantine_since = now(), quarantine_grace = $2, destroy_at = now() + $2,
                quarantine_stopped_at = null, {DISOWN}, failures = 0, retry_at = null""",
                grace,
                work_time=DESTROY_TIME,
            )
            await end_operations(connection, vm_id, "superseded")
            return await accept(connection, actor, after, "delete", **_deadlines(record, after))

    async def undelete(self, project: str | None, vm_id: str, actor: Actor) -> Accepted:
        """Bring a VM back from quarantine; raise Gone once its destruction has begun (L-R4).

        Raise Conflict for one that vanished while nobody has said whose it is (S-5).
        """
        async with transaction(self._pool) as connection:
            record = await lock_vm(connection, project, vm_id, None)
            if not record["deleted"]:
                return unchanged(record)
            if record["quarantine_kind"] == "vanished" and record["project"] == PUBLIC:
                raise Conflict(
                    f"the VM {vm_id} has lost its row, and whose it is nobody has said: `hostler host adopt` brings it "
                    "back"
                )
            return await undelete_locked(connection, record, actor, "undelete")


async def undelete_locked(
    connection: Connection, record: asyncpg.Record, actor: Actor, kind: Literal["undelete", "adopt"]
) -> Accepted:
    """Bring a VM back whose row is locked and in quarantine; raise Gone once its destruction has begun."""
    after = await connection.fetchrow(
        f"""update vms set deleted = false, quarantine_kind = null, quarantine_since = null,
            quarantine_grace = null, quarantine_stopped_at = null, destroy_at = null,
            generation = generation + 1, updated_at = now(),
            {wake_for(LIVE_TIME)}, {DISOWN}, {BEGIN_ANEW}, failures = 0, retry_at = null
        where id = $1 and not destroying returning *""",
        record["id"],
    )
    if after is None:
        raise Gone(f"the VM {record['id']} is past its grace and being destroyed; it cannot be brought back")
    await end_operations(connection, record["id"], "superseded", kinds=("delete", "vanish"))
    return await accept(connection, actor, after, kind, **_deadlines(record, after))


async def restart_locked(connection: Connection, record: asyncpg.Record, actor: Actor) -> Accepted:
    """Ask for one restart of a row that is locked (L-N3)."""
    wish = apply_restart(wish_of(record))
    changes = f"restart_generation = $2, {BEGIN_ANEW}"
    after = await update_locked(connection, record["id"], changes, wish.restart_generation)
    return await accept(connection, actor, after, "restart")


async def change_locked(
    connection: Connection, record: asyncpg.Record, change: VmChange, actor: Actor, *, see_hosts: bool = True
) -> Accepted:
    """Apply a change to a row that is locked, as a user does, or the guest by its own power-off (L-V4).

    One of `sizes` takes the lock of the VM's host before.
    """
    before = wish_of(record)
    changed = apply_change(before, change)
    if not changed.fields:
        return unchanged(record)
    if changed.needs_stopped:
        await refuse_unless_stopped(connection, record)
    wish = changed.wish
    if change.sizes:
        await check_increase(connection, record, wish.spec, see_hosts=see_hosts)
    if "volumes" in changed.fields:
        await change_volumes(connection, record, before.spec.volumes, wish.spec.volumes, see_hosts=see_hosts)
    digest = input_digest(
        vm_id=record["id"], project=record["project"], name=record["name"], mac=record["mac"], spec=wish.spec
    )
    # A new power state overtakes one that no pass has reached yet.
    if "power_state" in changed.fields:
        await end_operations(connection, record["id"], "superseded", kinds=("power", "restart"))
    clear = f", {CLEAR}" if changed.given and record["first_ready_at"] is None else ""
    if not clear and "power_state" in changed.fields and wish.power_state is not PowerState.STOPPED:
        clear = f", {BEGIN_ANEW}"
    after = await update_locked(
        connection,
        record["id"],
        f"""power_state = $2, labels = $3, spec = $4, generation = $5, spec_generation = $6, input_digest = $7,
        disk_gib = $8, stop_timeout_seconds = $9, on_guest_poweroff = $10, termination_protection = $11{clear}""",
        wish.power_state,
        wish.labels,
        wish.spec.model_dump(mode="json"),
        wish.generation,
        wish.spec_generation,
        digest,
        wish.spec.disk_gib,
        wish.spec.stop_timeout_seconds,
        wish.spec.on_guest_poweroff,
        wish.termination_protection,
    )
    shown = {"before": _shown(changed, before), "after": _shown(changed, wish)}
    accepted = await accept(connection, actor, after, changed.kind, **shown)
    return replace(accepted, at_next_boot=changed.at_next_boot)


async def update_locked(
    connection: Connection, vm_id: str, changes: str, *values: object, work_time: str = WORK_TIME
) -> asyncpg.Record:
    """Change a locked row as a user asked, and wake it; `work_time` is how long that should take, in SQL."""
    record = await connection.fetchrow(
        f"update vms set {changes}, updated_at = now(), {wake_for(work_time)} where id = $1 returning *",
        vm_id,
        *values,
    )
    assert record is not None, "the row is locked"  # noqa: S101
    return record


def _shown(changed: Changed, wish: Any) -> dict[str, Any]:
    plain = wish.model_dump(mode="json")
    return {name: plain[name] if name in plain else plain["spec"][name] for name in changed.fields}


def _deadlines(before: asyncpg.Record, after: asyncpg.Record) -> dict[str, Any]:
    def deadline(record: asyncpg.Record) -> dict[str, Any]:
        at = record["destroy_at"]
        return {"deleted": record["deleted"], "destroy_at": at.isoformat() if at else None}

    return {"before": deadline(before), "after": deadline(after)}
