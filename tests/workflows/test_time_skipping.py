"""Long waits on the time-skipping server: a grace of 72 hours passes in milliseconds (L-R3)."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from temporalio.testing import WorkflowEnvironment

from model.ids import new_id
from model.passes import ClaimRequest
from model.row import Row
from store.database import Pool
from store.passes import PassStore
from tests.workflows.conftest import running_fleet
from workers import control

HOURS = 72


class ShiftedStore(PassStore):
    """The store of a Postgres whose clock moves with the skipped time: a deadline that has passed there has passed."""

    environment: WorkflowEnvironment

    async def claim(self, request: ClaimRequest) -> Row | None:
        now = await self.environment.get_current_time()
        async with self._pool.acquire() as connection:
            await connection.execute(
                "update vms set destroy_at = now() where id = $1 and destroy_at <= $2", request.vm_id, now
            )
        return await super().claim(request)


async def test_three_days_of_grace_pass_in_milliseconds(
    time_skipping_env: WorkflowEnvironment, pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    """The run waits on one durable timer; nothing is destroyed before its time, everything after it."""
    monkeypatch.setattr(ShiftedStore, "environment", time_skipping_env, raising=False)
    monkeypatch.setattr(control, "PassStore", ShiftedStore)
    async with running_fleet(time_skipping_env.client, pool, f"h-{new_id()[-12:]}") as fleet:
        vm_id = await fleet.add_vm()
        await fleet.poke(vm_id)
        await fleet.until(vm_id, lambda row: row["phase"] == "ready" and row["due_at"] is None)
        before = await time_skipping_env.get_current_time()
        started = time.monotonic()
        await fleet.delete(vm_id, HOURS * 3600)
        await fleet.until(vm_id, lambda row: row["phase"] == "quarantined" and row["claim_until"] is None)
        await time_skipping_env.sleep(timedelta(hours=HOURS - 1))
        assert await fleet.row(vm_id) is not None, "an hour is left"
        await time_skipping_env.sleep(timedelta(hours=2))
        await fleet.until_gone(vm_id)
        skipped = await time_skipping_env.get_current_time() - before
        assert skipped >= timedelta(hours=HOURS)
        assert time.monotonic() - started < 60
