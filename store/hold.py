"""Hold a whole VM for an operation that owns it for a time, such as a migration or a drain (L-G12).

The row's `held` is the guard. The VM's own life reads it with the row and knows nobody who takes one: changes are
refused by its name, passes look and do nothing, a delete is accepted and waits. Nothing here ends a hold by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from model.errors import Conflict, Gone
from model.waiting import Waiting
from store.change import DISOWN, WAKE, wake_for
from store.database import reading, transaction
from store.deadlines import WORK_TIME
from store.vm import missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.database import Connection, Pool

# Its holder may want the guest stopped (`hold_stops`): then what failed before counts for nothing, and delays nothing.
_TAKE = f"""update vms set held = true, held_by = $2, hold_token = $3, held_since = now(), hold_stops = $4,
    failures = case when $4 then 0 else failures end, retry_at = case when $4 then null else retry_at end,
    {DISOWN}, {WAKE}"""
_RELEASE = f"""update vms set held = false, held_by = null, hold_token = null, held_since = null, hold_stops = false,
    {wake_for(WORK_TIME)}
where held and hold_token = $1"""


@dataclass(frozen=True)
class Hold:
    """A hold. `at_rest`: a pass has looked since, so no step that was begun before it still runs."""

    vm_id: str
    by: str
    since: datetime
    at_rest: bool


class HoldStore:
    """Take and release holds. A token is its holder's own: with it the same hold is taken again, and released."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def take(self, vm_id: str, *, by: str, token: str) -> None:
        """Hold a VM under the name of the operation; raise Conflict that names another holder, Gone or NotFound.

        `by` is shown to the VM's project, so it names no host. Whatever pass is at work loses the row, and the next one
        ends its step by looking. To take a hold that the token has is as good.
        """
        async with transaction(self._pool) as connection:
            if await hold_vms(connection, [vm_id], by=by, token=token):
                return
            there = await connection.fetchrow("select held_by, hold_token, destroying from vms where id = $1", vm_id)
            if there is None:
                raise await missing(connection, None, vm_id)
            if there["destroying"]:
                raise Gone(f"the VM {vm_id} is being destroyed")
            if there["hold_token"] != token:
                raise Conflict(f"the VM {vm_id} is held by {there['held_by'] or 'another operation'}")

    async def release(self, vm_id: str, *, token: str) -> bool:
        """End the hold of this token and wake the VM; False, and nothing, where the token holds none."""
        async with reading(self._pool) as connection:
            return bool(await release_vms(connection, token, [vm_id]))

    async def list(self) -> tuple[Hold, ...]:
        """List all holds, the oldest first."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                "select id, held_by, held_since, waiting_for from vms where held order by held_since, id"
            )
        return tuple(
            Hold(record["id"], record["held_by"], record["held_since"], record["waiting_for"] == Waiting.HOLD)
            for record in records
        )


async def hold_vms(
    connection: Connection, vm_ids: Sequence[str], *, by: str, token: str, stops: bool = False
) -> tuple[str, ...]:
    """Hold each of these VMs that nobody holds and nobody destroys; return whom. `stops`: their guests are stopped."""
    taken = await connection.fetch(
        f"{_TAKE} where id = any($1) and not held and not destroying returning id", list(vm_ids), by, token, stops
    )
    return tuple(sorted(record["id"] for record in taken))


async def release_vms(connection: Connection, token: str, vm_ids: Sequence[str] | None = None) -> tuple[str, ...]:
    """End the holds of this token, or of them only those on `vm_ids`, and wake their VMs; return whose ended."""
    ended = await connection.fetch(
        f"{_RELEASE} and ($2::text[] is null or id = any($2)) returning id",
        token,
        None if vm_ids is None else list(vm_ids),
    )
    return tuple(sorted(record["id"] for record in ended))
