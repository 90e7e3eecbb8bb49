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
    from store.database import Pool


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
            taken = await connection.fetchval(
                f"""update vms set held = true, held_by = $2, hold_token = $3, held_since = now(), {DISOWN}, {WAKE}
                where id = $1 and not held and not destroying returning true""",
                vm_id,
                by,
                token,
            )
            if taken:
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
            released = await connection.fetchval(
                f"""update vms set held = false, held_by = null, hold_token = null, held_since = null,
                    {wake_for(WORK_TIME)}
                where id = $1 and held and hold_token = $2 returning true""",
                vm_id,
                token,
            )
        return bool(released)

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
