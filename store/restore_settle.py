"""Settle one VM of a restore as a person chose (H-R1). Only rows change: nothing is sent before the restore ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from model.errors import Conflict, FieldError, Invalid, NotFound
from model.generations import VmChange
from model.restore import CHOICES, Choice
from store.audit import Actor, write_audit
from store.database import transaction
from store.forget import release_vms
from store.restore import Item, read_items
from store.vm_change import VmChanges
from store.vm_rebuild import VmRebuilds

if TYPE_CHECKING:
    from store.database import Pool

_REVOCABLE = (None, "leave", "row")


async def settle(
    pool: Pool,
    vm_id: str,
    choice: Choice,
    actor: Actor,
    *,
    host: str | None = None,
    grace: timedelta,
    take: Callable[[str], Awaitable[object]] | None = None,
) -> Item:
    """Do what was chosen for a VM, which is the one on `host` where several hold it; return what it was listed as.

    `grace` is that of a VM that turns out to be deleted, and of a disk that is made anew. `take` makes a row of what
    the host with this id holds, as `adopt` and `quarantine` need it. Raise NotFound for what is not listed, Invalid for
    a choice that it does not have, Conflict for one that was carried out already.
    """
    item = await _find(pool, vm_id, host)
    if choice not in CHOICES[item.kind]:
        text = f"this VM is {item.kind}: choose one of {', '.join(CHOICES[item.kind])}"
        raise Invalid(f"choice: {text}", errors=(FieldError("/choice", text),))
    if item.choice not in _REVOCABLE:
        raise Conflict(f"the VM {vm_id} is settled already: {item.choice}")
    if choice == "host":
        await _follow_host(pool, item, actor, grace)
    elif choice in ("adopt", "quarantine") and take is not None:
        await take(item.host_id)
    elif choice == "recreate":
        await VmRebuilds(pool).rebuild(None, vm_id, actor, keep=grace, discard=True)
    async with transaction(pool) as connection:
        if choice == "give_up":
            await release_vms(connection, actor, item.host_id, vm_id=vm_id)
        await connection.execute(
            """insert into restore_settled (host_id, vm_id, choice, actor) values ($1, $2, $3, $4)
            on conflict (host_id, vm_id) do update set choice = excluded.choice, actor = excluded.actor, at = now()""",
            item.host_id,
            vm_id,
            choice,
            actor.name,
        )
        await write_audit(
            connection,
            actor,
            project=item.project or "public",
            action="restore.settle",
            subject=f"vm/{vm_id}",
            after={"host": item.host_id, "was": item.kind, "choice": choice},
        )
    return item


async def _find(pool: Pool, vm_id: str, host: str | None) -> Item:
    async with transaction(pool) as connection:
        found = [each for each in await read_items(connection) if each.vm_id == vm_id]
    chosen = [each for each in found if host in (None, each.host_id, each.host_name)]
    if not chosen:
        raise NotFound(f"nothing has to be settled of a VM {vm_id}{f' on the host {host}' if host else ''}")
    if len(chosen) > 1:
        raise Conflict(f"several hosts hold a VM {vm_id}: name one of {', '.join(each.host_name for each in chosen)}")
    return chosen[0]


async def _follow_host(pool: Pool, item: Item, actor: Actor, grace: timedelta) -> None:
    """Want of a VM what its host does with it now, as its user could have asked; each part is a change of its own."""
    told, changes = item.told, VmChanges(pool)
    if told is None:
        return
    if told.quarantined_at is not None:
        await changes.delete(None, item.vm_id, actor, grace=grace)
        return
    await changes.undelete(None, item.vm_id, actor)
    if told.observed.power_state is not None:
        await changes.change(None, item.vm_id, VmChange(power_state=told.observed.power_state), actor)
