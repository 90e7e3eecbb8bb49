"""The sets of each host: what is wanted, what its host acknowledged, and when a sync is due (H-S1 to H-S5).

The number of a sync is drawn from the sequence of all passes, so that it is above every one that a host may have seen,
also after a restore (H-R1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import asyncpg

from model.errors import NotFound
from model.report import HostReport
from model.sync import HostSets, SetName, SyncDone, Synced, SyncRef, SyncRow, WhyUnsynced
from model.versions import floor_for, is_below
from store.audit import Actor, write_audit
from store.database import reading, transaction
from store.fleet import NOTE_START, Fleet
from store.rows import BEHIND

if TYPE_CHECKING:
    from store.database import Connection, Pool

STEP = "ensure_sets"
# A reason to sync (design: Wake): a run that has read the number of wakes before looks again.
WAKE = "wake = wake + 1, due_at = now()"
# First contact after an outage, and a new epoch, wake all hosts: over this time (H-S12).
_SPREAD_SECONDS = 30
_RETRY = "now() + interval '60 seconds' * (0.8 + 0.4 * random())"


@dataclass(frozen=True)
class StoredSets:
    """A host's sets as they are wanted. `due`: a sync of them is under way, or to come."""

    wanted: HostSets
    revision: int
    synced: Synced
    due: bool


class SyncStore:
    """The syncs of hosts."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def get(self, host_id: str) -> StoredSets:
        """Return a host's sets, and how far the host has taken them over; raise NotFound."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                """select h.sets, h.sets_revision, h.synced, h.due_at, h.instance_id, h.status, f.epoch
                from hosts h cross join fleet f where h.id = $1""",
                host_id,
            )
        if record is None:
            raise NotFound(f"there is no host {host_id}")
        synced = Synced.model_validate(record["synced"])
        behind = synced.is_behind(
            revision=record["sets_revision"], instance_id=record["instance_id"], epoch=record["epoch"]
        )
        due = record["status"] != "forgotten" and (behind or record["due_at"] is not None)
        return StoredSets(HostSets.model_validate(record["sets"]), record["sets_revision"], synced, due)

    async def replace(self, host_id: str, name: SetName, items: Sequence[Any], actor: Actor) -> bool:
        """Replace one set, whole; say whether that changed it. Raise NotFound. `items` are as in HostSets."""
        async with transaction(self._pool) as connection:
            record = await connection.fetchrow("select sets from hosts where id = $1 for no key update", host_id)
            if record is None:
                raise NotFound(f"there is no host {host_id}")
            before = HostSets.model_validate(record["sets"])
            after = HostSets.model_validate({**before.model_dump(), name: items})
            if after == before:
                return False
            await _write(connection, host_id, after)
            told = {"before": {name: before.model_dump(mode="json")[name]}}
            told["after"] = {name: after.model_dump(mode="json")[name]}
            action = f"host.sets.{name}"
            await write_audit(connection, actor, project="public", action=action, subject=f"host/{host_id}", **told)
            return True

    async def begin(self, ref: SyncRef) -> SyncRow | None:
        """Draw a number for a run, the same again for a repeat, and have the sweep look after it in two minutes."""
        async with transaction(self._pool) as connection:
            await connection.execute(NOTE_START)
            record = await connection.fetchrow(
                f"""update hosts h set due_at = now() + interval '2 minutes', sync_run = $2,
                    sync_number = case when sync_run is distinct from $2 then nextval('pass') else sync_number end
                from fleet f where h.id = $1 and h.status <> 'forgotten'
                returning h.id, f.id as fleet_id, h.instance_id, host_is_silent(h) as silent, f.epoch, h.sync_number,
                    h.sets_revision, h.wake, h.activity_names, h.worker_version, f.min_worker_version,
                    {BEHIND} as behind""",
                ref.host_id,
                ref.run_key,
            )
        return _to_row(record) if record else None

    async def finish(self, done: SyncDone) -> bool:
        """Write what came of a sync, under its number alone; False when the host was woken since.

        A fenced, failed or missing answer acknowledges nothing (H-S4). What was not applied is tried again in a
        minute; a host that is away or outdated is woken by its report.
        """
        async with transaction(self._pool) as connection:
            host = await connection.fetchrow(
                "select synced, sync_number, wake, now() from hosts where id = $1 for no key update", done.row.host_id
            )
            if host is None or host["sync_number"] != done.row.number:
                return True
            at: datetime = host["now"]
            told = Synced.model_validate(host["synced"]).after(done, at).model_dump(mode="json")
            await connection.execute("update hosts set synced = $2 where id = $1", done.row.host_id, told)
            if host["wake"] != done.row.wake:
                return False
            waits = done.result == "applied" or done.why not in (None, "no_answer")
            again = "null" if waits else _RETRY
            await connection.execute(f"update hosts set due_at = {again} where id = $1", done.row.host_id)
            return True


async def drop_image(connection: Connection, image_id: str) -> None:
    """Take an image whose name is removed out of every host's policies."""
    hosts = await connection.fetch(
        "select id, sets from hosts where sets -> 'image_policies' ? $1 order by id for no key update", image_id
    )
    for host in hosts:
        sets = HostSets.model_validate(host["sets"])
        kept = tuple(each for each in sets.image_policies if each != image_id)
        await _write(connection, host["id"], sets.model_copy(update={"image_policies": kept}))


async def wake_for_sync(connection: Connection, host: asyncpg.Record, report: HostReport, fleet: Fleet) -> bool:
    """Have a host synced if its report shows that this is called for; say whether it is to be poked at once.

    `host` is its row from before the report. One that was silent is told everything again.
    """
    if host["due_at"] is not None or host["status"] == "forgotten" or fleet.behind:
        return False
    known = report.activity_names if report.activity_names is not None else host["activity_names"]
    if STEP not in known or is_below(report.worker_version, fleet.min_worker_version):
        return False
    synced, revision = Synced.model_validate(host["synced"]), host["sets_revision"]
    returned = bool(host["silent"] or host["unheard"]) and revision > 0
    if not returned and not synced.is_behind(revision=revision, instance_id=report.instance_id, epoch=fleet.epoch):
        return False
    many = returned or synced.epoch not in (None, fleet.epoch)
    await connection.execute(
        "update hosts set wake = wake + 1, due_at = now() + random() * make_interval(secs => $2) where id = $1",
        host["id"],
        _SPREAD_SECONDS if many else 0,
    )
    return not many


async def _write(connection: Connection, host_id: str, sets: HostSets) -> None:
    await connection.execute(
        f"update hosts set sets = $2, sets_revision = sets_revision + 1, {WAKE} where id = $1",
        host_id,
        sets.model_dump(mode="json"),
    )


def _to_row(record: asyncpg.Record) -> SyncRow:
    floor = floor_for(record["worker_version"], record["min_worker_version"])
    why: WhyUnsynced | None = None
    if record["instance_id"] is None or record["silent"]:
        why = "host_away"
    elif record["behind"]:
        why = "behind"
    elif is_below(record["worker_version"], floor):
        why = "host_below_floor"
    elif STEP not in record["activity_names"]:
        why = "host_outdated"
    return SyncRow(
        host_id=record["id"],
        fleet_id=record["fleet_id"],
        instance_id=record["instance_id"] or "",
        epoch=record["epoch"],
        number=record["sync_number"],
        revision=record["sets_revision"],
        wake=record["wake"],
        min_worker_version=floor,
        why=why,
    )
