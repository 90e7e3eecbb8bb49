"""The attempts of a create: what cut one off gives it back, once, and within bounds (L-C5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from model.decide.refund import count_refund, why_no_more
from model.passes import GiveBack

if TYPE_CHECKING:
    from store.database import Connection


async def give_back(connection: Connection, record: asyncpg.Record, request: GiveBack) -> None:
    """Give an attempt back that has not come to an end of its own, nor was given back."""
    if record["given_back_pass"] == record["attempt_pass"]:
        return
    refunds, step_refunds = record["refunds"], record["step_refunds"]
    if request.counted:
        refunds, step_refunds = count_refund(refunds, step_refunds, request.step, host_died=request.host_died)
    await connection.execute(
        """update vms set create_attempts = greatest(create_attempts - $4, 0), given_back_pass = attempt_pass,
            refunds = $2, step_refunds = $3 where id = $1""",
        request.vm_id,
        refunds,
        step_refunds,
        int(why_no_more(refunds, step_refunds) is None),
    )


async def settle_attempt(connection: Connection, vm_id: str) -> None:
    """Give back what a pass took that was cut off: by a cancel, a fence, a hold, or a termination (L-C5)."""
    record = await connection.fetchrow(
        "select * from vms where id = $1 and attempt_pass is not null and first_ready_at is null", vm_id
    )
    if record is not None:
        await give_back(connection, record, GiveBack(vm_id=vm_id, pass_number=record["attempt_pass"], counted=True))
