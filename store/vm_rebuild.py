"""Rebuild a VM, and undo it: the root disk that is replaced is kept for a time that is fixed here (L-V10, L-R3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from model.errors import Conflict
from model.generations import Wish, apply_rebuild
from model.specification import ImageSpec, VmSpec, input_digest
from store.audit import Actor
from store.change import (
    CLEAR,
    Accepted,
    accept,
    lock_vm,
    refuse_if_protected,
    refuse_if_unknown,
    refuse_unless_changeable,
    wish_of,
)
from store.database import transaction
from store.operation import end_operations
from store.vm_change import update_locked

if TYPE_CHECKING:
    from store.database import Connection, Pool

_NEEDED_STEP = "ensure_disk_set_aside"


@dataclass(frozen=True)
class NewImage:
    """What to rebuild from. `reseal` makes the VM's sealed secrets of the sealed ones it has: only URLs differ."""

    spec: ImageSpec
    reseal: Callable[[bytes], bytes]


class VmRebuilds:
    """The ways in which users have a VM's root disk replaced. project None acts on any project's VM."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def rebuild(
        self,
        project: str | None,
        vm_id: str,
        actor: Actor,
        *,
        keep: timedelta,
        image: NewImage | None = None,
        discard: bool = False,
        generation: int | None = None,
    ) -> Accepted:
        """Have root disk and seed made anew, from the same or another image.

        Raise Conflict while an older disk is kept or being brought back, unless it may be discarded. A rebuild that is
        not done yet is overtaken: what it made was never used, and what it put aside stays.
        """
        async with transaction(self._pool) as connection:
            record = await _lock(connection, project, vm_id, generation)
            wish = apply_rebuild(wish_of(record), image.spec if image else None)
            undoing = _is_undoing(record)
            overtakes = _is_unfinished(record) and not undoing
            if undoing and not discard:
                raise Conflict(
                    f"the old root disk of the VM {vm_id} is being brought back: wait until that is done, or allow the "
                    "kept disk to be lost (`discard`)"
                )
            if not overtakes and not discard and await _is_kept(connection, record):
                until = f"{record['old_disk_until']:%Y-%m-%dT%H:%M:%SZ}"
                raise Conflict(
                    f"the root disk that the last rebuild put aside is kept until {until}, and only one is: undo that "
                    "rebuild first (`undo`), or allow the kept disk to be lost (`discard`)"
                )
            kept_by = record["kept_by"] if overtakes else wish.rebuild_generation
            old_image, old_secrets = record["spec"]["image"], record["secrets"]
            if overtakes:
                old_image, old_secrets = record["old_image"], record["old_secrets"]
            elif undoing or record["first_ready_at"] is None:
                # Nobody can tell which disk is put aside then, or there is none: it cannot be brought back.
                old_image, old_secrets = None, None
            secrets = image.reseal(record["secrets"]) if image else record["secrets"]
            after = await _write(connection, record, wish, keep, (kept_by, None, old_image, old_secrets, secrets))
            return await _accept(connection, actor, record, after)

    async def undo(
        self, project: str | None, vm_id: str, actor: Actor, *, keep: timedelta, generation: int | None = None
    ) -> Accepted:
        """Bring the kept root disk back, and what it was made from; the one that is in use is kept in its place.

        Raise Conflict when none is kept any more.
        """
        async with transaction(self._pool) as connection:
            record = await _lock(connection, project, vm_id, generation)
            if _is_undoing(record):
                raise Conflict(f"the old root disk of the VM {vm_id} is being brought back already")
            if record["old_image"] is None or not await _is_kept(connection, record):
                raise Conflict(f"no root disk of the VM {vm_id} is kept: there is no rebuild to undo")
            wish = apply_rebuild(wish_of(record), ImageSpec.model_validate(record["old_image"]))
            turned = (
                wish.rebuild_generation,
                record["kept_by"],
                record["spec"]["image"],
                record["secrets"],
                record["old_secrets"],
            )
            after = await _write(connection, record, wish, keep, turned)
            return await _accept(connection, actor, record, after)


async def _lock(connection: Connection, project: str | None, vm_id: str, generation: int | None) -> asyncpg.Record:
    record = await lock_vm(connection, project, vm_id, generation)
    refuse_unless_changeable(record)
    refuse_if_protected(record, "rebuilt")
    await refuse_if_unknown(connection, record["host_id"], _NEEDED_STEP, "a rebuild")
    return record


def _is_unfinished(record: asyncpg.Record) -> bool:
    return record["applied_rebuild_generation"] < record["rebuild_generation"]


def _is_undoing(record: asyncpg.Record) -> bool:
    return _is_unfinished(record) and record["undo_of"] is not None


async def _is_kept(connection: Connection, record: asyncpg.Record) -> bool:
    """By Postgres' clock: from that moment on a pass may remove it."""
    return bool(await connection.fetchval("select $1::timestamptz > now()", record["old_disk_until"]))


async def _write(
    connection: Connection, record: asyncpg.Record, wish: Wish, keep: timedelta, turned: tuple[Any, ...]
) -> asyncpg.Record:
    """Write the wish; errors, counts and pauses of before are over (L-C4)."""
    digest = input_digest(
        vm_id=record["id"], project=record["project"], name=record["name"], mac=record["mac"], spec=wish.spec
    )
    await end_operations(connection, record["id"], "superseded", kinds=("rebuild",))
    return await update_locked(
        connection,
        record["id"],
        f"""spec = $2, generation = $3, spec_generation = $4, rebuild_generation = $5, input_digest = $6,
        old_disk_until = now() + $7, kept_by = $8, undo_of = $9, old_image = $10, old_secrets = $11, secrets = $12,
        {CLEAR}""",
        wish.spec.model_dump(mode="json"),
        wish.generation,
        wish.spec_generation,
        wish.rebuild_generation,
        digest,
        keep,
        *turned,
    )


async def _accept(connection: Connection, actor: Actor, before: asyncpg.Record, after: asyncpg.Record) -> Accepted:
    def shown(record: asyncpg.Record) -> dict[str, Any]:
        image = VmSpec.model_validate(record["spec"]).image
        until = record["old_disk_until"]
        return {
            "rebuild_generation": record["rebuild_generation"],
            "undo_of": record["undo_of"],
            "image": image.reference or image.rootfs.url,
            "old_disk_until": until.isoformat() if until else None,
        }

    return await accept(connection, actor, after, "rebuild", before=shown(before), after=shown(after))
