"""What passes write: ownership and status of a VM's row (L-G9), each write under the owning pass.

Every request may arrive twice, late, or from a run that was closed long ago, so each states whole values, and one of
a pass that does not own the row changes nothing and answers with `owner` false.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.passes import ClaimRequest, Finish, Finished, GiveBack, Outcome, PassRef, StepNote, TakeOver
from model.row import Row
from store.attempts import give_back, settle_attempt
from store.certificate import revoke_certificates
from store.database import changed, reading, transaction
from store.deadlines import DESTROY_TIME, EXPECT, RIGHTFUL_WORDS, WORK_TIME
from store.fleet import NOTE_START
from store.observed import Seen, store_observed
from store.operation import begin_unasked, end_operations, take_up_operations
from store.room import wake_refused
from store.rows import MAY_DESTROY, OWNED, read_row

if TYPE_CHECKING:
    from store.database import Connection, Pool

CLAIM_LASTS = "interval '2 minutes'"
DUE_AFTER = "interval '30 seconds'"
"""When the sweep looks after a run that does not say that it lives: a terminated one is found by this alone."""


class PassStore:
    """A VM's row as its passes see it. None means that there is no such row any more."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def claim(self, request: ClaimRequest) -> Row | None:
        """Take ownership: draw a pass number, settle what the predecessor left open, and return the row.

        A repeat by the same run id returns the pass that it drew, and takes nothing back from a newer one. A run that
        takes ownership anew says so by a suffix to its run id: `<run id>#1`, `#2` …
        """
        async with transaction(self._pool) as connection:
            there = await connection.fetchval("select true from vms where id = $1 for update", request.vm_id)
            if not there:
                return None
            drawn = await connection.fetchval(
                "select pass_number from claims where vm_id = $1 and claim_key = $2", request.vm_id, request.run_id
            )
            if drawn is None:
                await connection.execute(NOTE_START)
                drawn = await _draw(connection, request)
            return await read_row(connection, request.vm_id, drawn)

    async def renew(self, ref: PassRef) -> bool:
        """Keep the claim for another two minutes. A due time that a wake or a lapse has set is left to the sweep."""
        async with reading(self._pool) as connection:
            status = await connection.execute(
                f"""update vms v set claim_until = now() + {CLAIM_LASTS},
                    due_at = case when due_at <= now() then due_at else now() + {DUE_AFTER} end
                where v.id = $1 and {OWNED}""",
                ref.vm_id,
                ref.pass_number,
            )
        return changed(status) == 1

    async def read(self, ref: PassRef) -> Row | None:
        """Read the row. For its owner this renews the claim: what woke the row has now been seen."""
        async with transaction(self._pool) as connection:
            await connection.execute(
                f"""update vms v set claim_until = now() + {CLAIM_LASTS}, due_at = now() + {DUE_AFTER}
                where v.id = $1 and {OWNED}""",
                ref.vm_id,
                ref.pass_number,
            )
            return await read_row(connection, ref.vm_id, ref.pass_number)

    async def begin_step(self, note: StepNote) -> Row | None:
        """Narrate the step that begins (L-G10), and read the row as `read` does."""
        async with transaction(self._pool) as connection:
            status = await connection.execute(
                f"""update vms v set claim_until = now() + {CLAIM_LASTS}, due_at = now() + {DUE_AFTER},
                    step = greatest(v.step, $3), phase = $4, status_detail = $5,
                    waiting_for = null, waiting_since = null, {EXPECT}
                where v.id = $1 and {OWNED} and v.step <= $3 + 1""",
                note.vm_id,
                note.pass_number,
                note.step,
                note.phase,
                note.words,
            )
            if changed(status) and note.words is not None:
                await begin_unasked(connection, note.vm_id, note.phase)
            return await read_row(connection, note.vm_id, note.pass_number)

    async def take_attempt(self, ref: PassRef) -> Row | None:
        """Count this pass as an attempt, once (L-C4)."""
        return await self._write(
            ref,
            "create_attempts = create_attempts + 1, attempt_pass = $2",
            "v.attempt_pass is distinct from $2",
        )

    async def give_back(self, request: GiveBack) -> Row | None:
        """Give back what this pass took, once; a counted one uses up one of the bounded refunds (L-C5)."""
        async with transaction(self._pool) as connection:
            taken = await connection.fetchrow(
                f"select v.* from vms v where v.id = $1 and {OWNED} and v.attempt_pass = $2 for update",
                request.vm_id,
                request.pass_number,
            )
            if taken is not None:
                await give_back(connection, taken, request)
            return await read_row(connection, request.vm_id, request.pass_number)

    async def write_outcome(self, outcome: Outcome) -> Row | None:
        """Write what the pass found, and what its host saw under the guard of instance and revision.

        The step's narration is over: `status_detail` becomes `words`. Failures of 0 end the present pause, too.
        """
        async with transaction(self._pool) as connection:
            status = await connection.execute(_OUTCOME, *_outcome_values(outcome))
            if changed(status) and outcome.view is not None:
                await self._store_view(connection, outcome)
            return await read_row(connection, outcome.vm_id, outcome.pass_number)

    async def take_over(self, request: TakeOver) -> Row | None:
        """Raise what is wanted to what a record of an earlier epoch says was applied; never within an epoch (L-N5)."""
        return await self._write(
            request,
            """generation = greatest(generation, $4), spec_generation = greatest(spec_generation, $5),
            restart_generation = greatest(restart_generation, $6),
            rebuild_generation = greatest(rebuild_generation, $7), updated_at = now()""",
            "$3 < (select f.epoch from fleet f)",
            request.epoch,
            request.generation,
            request.spec_generation,
            request.restart_generation,
            request.rebuild_generation,
        )

    async def note_stopped(self, ref: PassRef) -> Row | None:
        """Note once that a quarantined guest is proven stopped, and give it its least grace from then on (L-R3)."""
        row = await self._write(
            ref,
            """quarantine_stopped_at = now(),
            destroy_at = greatest(destroy_at, now() + least(interval '1 hour', quarantine_grace))""",
            "v.quarantine_kind is not null and v.quarantine_stopped_at is null",
        )
        if row is not None:
            async with transaction(self._pool) as connection:
                await wake_refused(connection, row.host.host_id)
        return row

    async def mark_destroying(self, ref: PassRef) -> Row | None:
        """Pass the point of no return; `status.destroying` says whether it was passed (L-R4)."""
        return await self._write(
            ref,
            f"""destroying = true,
            expected_by = case when v.destroying then v.expected_by else now() + {DESTROY_TIME} end""",
            f"""v.quarantine_kind is not null and not v.held and (v.destroying or v.destroy_at <= now())
            and {MAY_DESTROY}""",
        )

    async def record_gone(self, ref: PassRef) -> bool:
        """Release row, name and address of a VM of which its host found nothing, and remember its id (L-R6)."""
        async with transaction(self._pool) as connection:
            removed = await connection.fetchrow(
                f"""delete from vms v where v.id = $1 and {OWNED} and v.destroying
                returning v.project, v.name, v.host_id""",
                ref.vm_id,
                ref.pass_number,
            )
            if removed is None:
                there = await connection.fetchval(
                    """select exists (select 1 from gone where vm_id = $1)
                        and not exists (select 1 from vms where id = $1)""",
                    ref.vm_id,
                )
                return bool(there)
            await connection.execute(
                """insert into gone (vm_id, project, name, host_id, pass_number) values ($1, $2, $3, $4, $5)
                on conflict (vm_id) do update set project = excluded.project, name = excluded.name,
                    host_id = excluded.host_id, pass_number = excluded.pass_number, at = excluded.at,
                    forgotten = null""",
                ref.vm_id,
                removed["project"],
                removed["name"],
                removed["host_id"],
                ref.pass_number,
            )
            await revoke_certificates(connection, ref.vm_id)
            await end_operations(connection, ref.vm_id, "gone")
            await wake_refused(connection, removed["host_id"])
            return True

    async def finish(self, finish: Finish) -> Finished:
        """End the pass with its next `due_at`, only if it owns the row and nobody woke it since `wake` was read."""
        keep = finish.result == "waiting"
        async with transaction(self._pool) as connection:
            error = await connection.fetchrow(
                f"""update vms v set due_at = $4, claim_until = null, ended_pass = $2,
                    status_detail = case when $5 then status_detail end,
                    expected_by = case when $6 or waiting_for in ({RIGHTFUL_WORDS})
                        then $4::timestamptz + {WORK_TIME} else expected_by end
                where v.id = $1 and v.pass_number = $2 and v.wake = $3 returning v.last_error""",
                finish.vm_id,
                finish.pass_number,
                finish.wake,
                finish.due_at,
                keep,
                finish.result == "settled",
            )
            if error is None:
                row = await read_row(connection, finish.vm_id, finish.pass_number)
                return Finished(ended=False, row=row)
            if finish.result == "waiting":
                await settle_attempt(connection, finish.vm_id)
            if finish.result in ("settled", "failed"):
                await end_operations(connection, finish.vm_id, finish.result, error=error["last_error"])
            return Finished(ended=True, row=await read_row(connection, finish.vm_id, finish.pass_number))

    async def _write(self, ref: PassRef, changes: str, condition: str, *values: object) -> Row | None:
        """Make one guarded change of the row and read it."""
        async with transaction(self._pool) as connection:
            await connection.execute(
                f"update vms v set {changes} where v.id = $1 and {OWNED} and {condition}",
                ref.vm_id,
                ref.pass_number,
                *values,
            )
            return await read_row(connection, ref.vm_id, ref.pass_number)

    async def _store_view(self, connection: Connection, outcome: Outcome) -> None:
        view = outcome.view
        place = await connection.fetchrow(
            "select h.id, h.instance_id from hosts h join vms v on v.host_id = h.id where v.id = $1", outcome.vm_id
        )
        if view is None or place is None or place["instance_id"] is None:
            return
        seen = Seen(outcome.vm_id, view.observed, view.unreadable, unrecorded=view.record is None)
        await store_observed(connection, place["id"], place["instance_id"], [seen])


async def _draw(connection: Connection, request: ClaimRequest) -> int:
    await settle_attempt(connection, request.vm_id)
    drawn: int = await connection.fetchval("select nextval('pass')")
    await connection.execute(
        "insert into claims (vm_id, claim_key, pass_number) values ($1, $2, $3)", request.vm_id, request.run_id, drawn
    )
    run_id = request.run_id.partition("#")[0]
    await connection.execute(
        f"""update vms set pass_number = $2, run_id = $3, step = 0, status_detail = null,
            claim_until = now() + {CLAIM_LASTS}, due_at = now() + {DUE_AFTER}, {EXPECT}
        where id = $1""",
        request.vm_id,
        drawn,
        run_id,
    )
    await take_up_operations(connection, request.vm_id, run_id)
    return drawn


# What the host keeps of a rebuild is told only of the last one asked for.
# A count is written only over the one that it was made from: a user's start in between begins anew.
# `step + 1`: what a pass does in the store alone is narrated under the number of the host step that follows it.
_OUTCOME = f"""
update vms v set
    step = greatest(v.step, $3),
    phase = $4,
    status_detail = $5,
    last_error = case when $6 then $7 else v.last_error end,
    failures = coalesce($8, v.failures),
    retry_at = coalesce($9, case when $8 = 0 then null else v.retry_at end),
    resting = coalesce($10, v.resting),
    unreachable_since = coalesce($11, case when $8 = 0 or $13 then null else v.unreachable_since end),
    observed_generation = greatest(v.observed_generation, coalesce($12, 0)),
    first_ready_at = coalesce(v.first_ready_at, case when $13 then now() end),
    applied_rebuild_generation = greatest(v.applied_rebuild_generation, coalesce($15, 0)),
    old_disk_until = case when $15 = v.rebuild_generation and $16::bigint is null then null
        else v.old_disk_until end,
    old_image = case when $15 = v.rebuild_generation and v.kept_by is distinct from $16 then null
        else v.old_image end,
    old_secrets = case when $15 = v.rebuild_generation and v.kept_by is distinct from $16 then null
        else v.old_secrets end,
    given_back_pass = case when $17 then v.attempt_pass else v.given_back_pass end,
    setbacks = case when $18 and v.setbacks is not distinct from $19 then $20 else v.setbacks end,
    setback = case when $18 and v.setbacks is not distinct from $19 then $21 else v.setback end,
    up_again_at = case when $18 and v.setbacks is not distinct from $19 then $22 else v.up_again_at end,
    expected_by = case when $14 in ({RIGHTFUL_WORDS}) then null else v.expected_by end,
    waiting_for = $14,
    waiting_since = case when $14 is not distinct from v.waiting_for then v.waiting_since else now() end
where v.id = $1 and {OWNED} and v.step <= $3 + 1
"""


def _outcome_values(outcome: Outcome) -> tuple[object, ...]:
    record = outcome.view.record if outcome.view else None
    whole = record is not None and record.boot_id is not None
    words = outcome.words or (outcome.view.waiting if outcome.view else None)
    count = outcome.count
    return (
        outcome.vm_id,
        outcome.pass_number,
        outcome.step,
        outcome.phase,
        words,
        outcome.write_error,
        outcome.error,
        outcome.failures,
        outcome.retry_at,
        outcome.resting,
        outcome.unreachable_since,
        outcome.observed_generation,
        outcome.completed,
        outcome.waits,
        record.applied_rebuild_generation if record and whole else None,
        record.kept.by if record and record.kept else None,
        outcome.attempt_used,
        count is not None,
        count.before if count else None,
        count.setbacks if count else None,
        count.setback.model_dump(mode="json") if count and count.setback else None,
        count.up_again_at if count else None,
    )
