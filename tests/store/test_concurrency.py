"""Everybody at once: passes, reports, changes and creates on the same host never block each other for good."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from model.generations import VmChange
from model.passes import ClaimRequest, Outcome, PassRef
from model.record import Observed, Record, View
from model.report import HostReport, VmReport
from model.vm import Phase, PowerState
from store.audit import Actor
from store.database import Pool
from store.host_report import store_report
from store.passes import PassStore
from store.vm_change import VmChanges
from store.vm_create import create_vm
from tests.fixtures.rows import add_host, add_vm, new_vm

ACTOR = Actor("tester")
ROUNDS = 30
NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def test_every_run_draws_a_pass_of_its_own_and_one_owns_the_row(pool: Pool) -> None:
    """L-G5: no pass number is used twice."""
    vm_id = await add_vm(pool, await add_host(pool))
    passes = PassStore(pool)
    claims = (passes.claim(ClaimRequest(vm_id=vm_id, run_id=f"run-{n % 20}")) for n in range(40))
    rows = [row for row in await asyncio.gather(*claims) if row is not None]
    drawn = await pool.fetch("select distinct pass_number from claims order by 1")
    assert len(drawn) == 20
    latest = drawn[-1]["pass_number"]
    refs = [PassRef(vm_id=vm_id, pass_number=record["pass_number"]) for record in drawn]
    assert [await passes.renew(ref) for ref in refs] == [False] * 19 + [True]
    assert max(row.status.pass_number for row in rows) == latest


async def test_nobody_waits_for_another_for_good(pool: Pool) -> None:
    """L-G2, H-P6: no deadlock between reports, passes, changes and creates."""
    host_id = await add_host(pool, instance_id="one")
    ids = [await add_vm(pool, host_id) for _ in range(6)]
    passes, changes = PassStore(pool), VmChanges(pool)

    async def work(vm_id: str) -> None:
        for done in range(ROUNDS):
            row = await passes.claim(ClaimRequest(vm_id=vm_id, run_id=f"run-{done}"))
            assert row is not None
            seen = Observed(
                boot_id="b", power_state=PowerState.RUNNING, revision=done, seen_at=NOW, address=f"10.0.0.{done % 3}"
            )
            outcome = Outcome(
                vm_id=vm_id,
                pass_number=row.status.pass_number,
                step=1,
                phase=Phase.READY,
                view=View(record=Record(input_digest="d"), observed=seen),
            )
            await passes.write_outcome(outcome)

    async def change(vm_id: str) -> None:
        for done in range(ROUNDS):
            await changes.change(None, vm_id, VmChange(labels={"n": str(done)}), ACTOR)

    async def create() -> None:
        for _ in range(ROUNDS):
            await create_vm(pool, new_vm(host_id), ACTOR)

    async def tell() -> None:
        for done in range(1, ROUNDS + 1):
            power = PowerState.STOPPED if done % 2 else PowerState.RUNNING
            vms = tuple(
                VmReport(
                    vm_id=vm_id,
                    observed=Observed(
                        boot_id="b", power_state=power, revision=1000 + done, seen_at=NOW, address=f"10.0.0.{done % 4}"
                    ),
                )
                for vm_id in reversed(ids)
            )
            report = HostReport(
                number=done,
                instance_id="one",
                machine_id="m",
                boot_id="b",
                worker_version="1.0.0",
                clock=NOW,
                whole=False,
                vms=vms,
            )
            await store_report(pool, host_id, report)

    async with asyncio.timeout(100):
        await asyncio.gather(tell(), create(), *(work(vm_id) for vm_id in ids), change(ids[0]), change(ids[1]))
    stored = await pool.fetchval("select count(*) from vms")
    assert stored == len(ids) + ROUNDS
