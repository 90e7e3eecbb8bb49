"""Hold everything destructive, or only new VMs, for the fleet or for one host, until an operator ends it (H-R3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import asyncpg

from model.errors import Conflict, NotFound
from model.ids import new_id
from model.waiting import Waiting
from store.audit import Actor, write_audit
from store.database import reading, transaction
from store.host import HOST_ID

if TYPE_CHECKING:
    from store.database import Connection, Pool

# Deadlines stood still while the freeze that ends was the first of those that reach a row; the rest of the time is
# counted by the one that ends last. $1: its host, or null; $2: its beginning.
_STILL = """greatest(interval '0', least(now(), (select min(z.since) from freezes z
    where not z.creates and (z.host_id is null or z.host_id = {row}.host_id))) - greatest($2, {since}))"""
_SHIFTS = (
    f"""update vms v set destroy_at = destroy_at + {_STILL.format(row="v", since="quarantine_since")},
        old_disk_until = old_disk_until + {_STILL.format(row="v", since="$2")},
        wake = wake + case when waiting_for = $3 then 1 else 0 end,
        due_at = case when waiting_for = $3 then now() + random() * interval '10 seconds' else due_at end
    where ($1::text is null or host_id = $1) and not (deleted and destroying and waiting_for is distinct from $3)
        and (destroy_at is not null or old_disk_until is not null)""",
    f"""update volumes o set destroy_at = destroy_at + {_STILL.format(row="o", since="deleted_at")}
    where ($1::text is null or host_id = $1) and destroy_at is not null and not destroying and $3::text is not null""",
)
_SELECT = "select z.*, h.name as host_name from freezes z left join hosts h on h.id = z.host_id"


@dataclass(frozen=True)
class Freeze:
    """What is held, where (`host_id` None: in the whole fleet), since when and by whom."""

    id: str
    creates: bool
    host_id: str | None
    host_name: str | None
    made_by: str
    since: datetime

    @property
    def sentence(self) -> str:
        """Say it as every answer does; it names no host, since projects read it."""
        held = "new VMs are refused" if self.creates else "nothing is destroyed"
        where = "the fleet is" if self.host_id is None else "some hosts are"
        return f"{held}: {where} frozen by {self.made_by} since {self.since:%Y-%m-%dT%H:%M:%SZ}"


class FreezeStore:
    """Begin, end and list freezes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self) -> tuple[Freeze, ...]:
        """List what is frozen, the oldest first."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(f"{_SELECT} order by z.since, z.id")
        return tuple(Freeze(**dict(record)) for record in records)

    async def freeze(self, host: str | None, actor: Actor, *, creates: bool) -> Freeze:
        """Hold what destroys, or new VMs; what is frozen already stays as it was, with who did it."""
        async with transaction(self._pool) as connection:
            host_id = await _lock(connection, host)
            made = await connection.fetchval(
                """insert into freezes (id, creates, host_id, made_by) values ($1, $2, $3, $4)
                on conflict do nothing returning true""",
                new_id(),
                creates,
                host_id,
                actor.name,
            )
            if made:
                await _show(connection, host_id)
                await _audit(connection, actor, "freeze", host_id, creates=creates)
            return await _find(connection, host_id, creates=creates)

    async def unfreeze(self, host: str | None, actor: Actor, *, creates: bool) -> Freeze:
        """End a freeze: deadlines move by as long as it kept them still, and what waited for its end goes on.

        Raise Conflict where there is none.
        """
        async with transaction(self._pool) as connection:
            host_id = await _lock(connection, host)
            freeze = await _find(connection, host_id, creates=creates)
            await connection.execute("delete from freezes where id = $1", freeze.id)
            await _show(connection, host_id)
            if not creates:
                for shift in _SHIFTS:
                    await connection.execute(shift, host_id, freeze.since, Waiting.FROZEN)
            await _audit(connection, actor, "unfreeze", host_id, creates=creates)
            return freeze


async def _lock(connection: Connection, host: str | None) -> str | None:
    """Lock what is frozen: the fleet's row, and that of the host."""
    await connection.execute("select 1 from fleet for no key update")
    if host is None:
        return None
    record = await connection.fetchrow(f"select id from hosts where id = {HOST_ID} and status <> 'forgotten'", host)
    if record is None:
        raise NotFound(f"there is no host {host}")
    await connection.execute("select 1 from hosts where id = $1 for no key update", record["id"])
    return record["id"]


async def _show(connection: Connection, host_id: str | None) -> None:
    """Write what passes read with their rows."""
    exists = "exists (select 1 from freezes where not creates and host_id is not distinct from $1)"
    if host_id is None:
        await connection.execute(f"update fleet set frozen = {exists}", host_id)
    else:
        await connection.execute(f"update hosts set frozen = {exists} where id = $1", host_id)


async def _find(connection: Connection, host_id: str | None, *, creates: bool) -> Freeze:
    record: asyncpg.Record | None = await connection.fetchrow(
        f"{_SELECT} where z.creates = $1 and z.host_id is not distinct from $2", creates, host_id
    )
    if record is None:
        what = "new VMs are" if creates else "what destroys is"
        where = "in this fleet" if host_id is None else "on this host"
        raise Conflict(f"{what} not frozen {where}: `hostler freeze --show` lists what is")
    return Freeze(**dict(record))


async def _audit(connection: Connection, actor: Actor, verb: str, host_id: str | None, *, creates: bool) -> None:
    subject = "fleet" if host_id is None else f"host/{host_id}"
    told = {"holds": "creates" if creates else "everything destructive"}
    action = f"fleet.{verb}" if host_id is None else f"host.{verb}"
    await write_audit(connection, actor, project="public", action=action, subject=subject, after=told)
