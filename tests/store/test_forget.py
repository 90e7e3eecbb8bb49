"""A dead host that is given up: what is refused, what is released, what its return changes (L-R10, cases L5, L6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model.credential import new_credential
from model.errors import Conflict, Gone, Invalid
from model.passes import ClaimRequest, PassRef
from store.audit import Actor, list_audit
from store.database import Pool
from store.drain import DrainStore
from store.enrolment import Enrolments
from store.foreign import list_foreign
from store.forget import forget_host, list_forgotten
from store.freeze import FreezeStore
from store.host import HostStore
from store.host_removal import remove_host
from store.host_report import store_report
from store.passes import PassStore
from store.placement import Placing
from store.sweep import prune
from store.vm import VmStore
from store.vm_create import create_vm
from tests.fixtures.rows import add_host, add_vm, new_vm
from tests.store.test_host_report import report, vm_report

ACTOR = Actor("operator")


async def hear(pool: Pool, minutes: float = 60) -> None:
    """The API hears, and has done so without a gap for so long."""
    await pool.execute("update fleet set heard_at = now(), hearing_since = now() - $1 * interval '1 minute'", minutes)


async def silence(pool: Pool, host_id: str, minutes: float) -> None:
    heard = "now() - $2 * interval '1 minute'"
    await pool.execute(f"update hosts set last_report_at = {heard} where id = $1", host_id, minutes)


@pytest.fixture
async def dead(pool: Pool) -> str:
    """A host that has been silent for 11 minutes, beside one that lives."""
    await add_host(pool, name="h2")
    host_id = await add_host(pool, name="h1", instance_id="one", machine_id="m")
    await hear(pool)
    await silence(pool, host_id, 11)
    return host_id


async def refusal(pool: Pool, host_id: str, name: str = "h1") -> str:
    with pytest.raises((Conflict, Invalid)) as refused:
        await forget_host(pool, host_id, name, ACTOR)
    return refused.value.detail


async def test_only_a_host_that_is_surely_dead_is_given_up(pool: Pool, dead: str) -> None:
    """L-R10, H-S10: its name is typed, and it was silent for ten minutes in which the control plane could hear."""
    vm_id = await add_vm(pool, dead)
    assert await refusal(pool, dead, "h2") == (
        "name: the host is called h1: give exactly this name to give it up with all VMs on it"
    )
    await silence(pool, dead, 9)
    assert "is silent since" in await refusal(pool, dead)
    assert "not long enough" in await refusal(pool, dead)
    await silence(pool, dead, 60)
    await hear(pool, 9)
    assert "not long enough" in await refusal(pool, dead)
    await pool.execute("update fleet set heard_at = now() - interval '1 minute'")
    assert "nobody hears hosts now" in await refusal(pool, dead)
    await hear(pool)
    await silence(pool, dead, 0)
    assert "is not known to be dead, it reported at" in await refusal(pool, dead)
    assert await pool.fetchval("select id from vms") == vm_id
    await silence(pool, dead, 11)
    await forget_host(pool, dead, "h1", ACTOR)
    assert "was given up at" in await refusal(pool, dead)


async def test_a_host_that_never_reported_is_given_up_too(pool: Pool) -> None:
    """L-R10: ten minutes from its enrolment on."""
    host_id = await add_host(pool, name="h1", status="joining", instance_id=None, last_report_at=None)
    await hear(pool)
    assert "one that has never reported, which is not long enough" in await refusal(pool, host_id)
    await pool.execute("update hosts set joined_at = now() - interval '11 minutes'")
    await forget_host(pool, host_id, "h1", ACTOR)


async def test_names_and_capacity_are_released_at_once(pool: Pool, dead: str) -> None:
    """L5: the host's name and its VMs', and all that they held; the rows are kept beside for 30 days."""
    doomed = await add_vm(pool, dead, name="web")
    await forget_host(pool, dead, "h1", ACTOR)
    host = await HostStore(pool).get("h1")
    assert (host.status, host.vms, host.live.memory_mib, host.forgotten_at is not None) == ("forgotten", 0, 0, True)
    new = new_vm("h1", name="web")
    with pytest.raises(Conflict, match="is forgotten and takes no new VM"):
        await create_vm(pool, new_vm(dead, name="web"), ACTOR)
    accepted = await create_vm(pool, new.model_copy(update={"host_id": None}), ACTOR, Placing())
    assert (await VmStore(pool).get(None, accepted.vm_id)).host_name == "h2"
    token = new_credential("hsj")[1]
    assert (await Enrolments(pool).add("h1", token, timedelta(hours=1), ACTOR)).name == "h1"
    assert (await HostStore(pool).get("h1")).status == "joining", "a name is that of the host that lives"
    (kept,) = await list_forgotten(pool, dead)
    assert (kept.id, kept.name, kept.power_state) == (doomed, "web", "running")
    with pytest.raises(Gone, match="was given up with what was on its host at"):
        await VmStore(pool).get("default", doomed)
    with pytest.raises(Conflict, match="belonged to a VM that was given up with what was on its host"):
        await create_vm(pool, new_vm("h2", vm_id=doomed, name="again"), ACTOR)
    actions = [entry.action for entry in await list_audit(pool, None, subject=f"vm/{doomed}")]
    assert actions == ["vm.forget"]
    await pool.execute("update gone set at = now() - interval '31 days'")
    await pool.execute("update hosts set forgotten_at = now() - interval '31 days' where id = $1", dead)
    await prune(pool)
    assert await list_forgotten(pool, dead) == ()
    assert dead not in [each.id for each in await HostStore(pool).list()]


async def test_a_pass_at_work_finds_no_row_and_ends(pool: Pool, dead: str) -> None:
    """L-R10: nothing that it still writes brings the VM back."""
    vm_id = await add_vm(pool, dead)
    passes = PassStore(pool)
    row = await passes.claim(ClaimRequest(vm_id=vm_id, run_id="run"))
    assert row is not None
    await forget_host(pool, dead, "h1", ACTOR)
    ref = PassRef(vm_id=vm_id, pass_number=row.status.pass_number)
    assert await passes.read(ref) is None
    assert await passes.mark_destroying(ref) is None


async def test_its_return_changes_nothing_of_any_vm(pool: Pool, dead: str) -> None:
    """L6: its copy of a VM that lives elsewhere by now is told of as its own matter; it hears what it is to do."""
    vm_id = await add_vm(pool, dead, name="web")
    row = await PassStore(pool).claim(ClaimRequest(vm_id=vm_id, run_id="run"))
    assert row is not None
    await forget_host(pool, dead, "h1", ACTOR)
    h2 = (await HostStore(pool).get("h2")).id
    await add_vm(pool, h2, id=vm_id, name="web", phase="ready", due_at=None, observed_power_state="running")
    before = await pool.fetchrow("select * from vms")
    for number in (1, 2):
        copy = vm_report(vm_id, 900 + number, "stopped", look=True)
        taken = await store_report(pool, dead, report(number, copy, whole=True))
        assert taken.pokes == ()
        assert taken.answer.forgotten_pass is not None
        assert taken.answer.forgotten_pass > row.status.pass_number, "above every order that it can have"
    assert await pool.fetchrow("select * from vms") == before
    (copied,) = await list_foreign(pool, dead)
    assert (copied.vm_id, copied.placed_on) == (vm_id, h2)
    assert (await HostStore(pool).get(dead)).status == "forgotten"
    assert (await store_report(pool, h2, report(1, instance_id=before_instance(h2)))).answer.forgotten_pass is None


def before_instance(host_id: str) -> Any:
    return f"instance-{host_id[-12:]}"


async def test_a_name_that_is_used_again_means_the_host_that_lives(pool: Pool) -> None:
    """L-R10: whatever an operator asks of a host by its name; who was given up is found by its id alone."""
    for number in range(8):
        await add_host(pool, name="h1", id=f"dead-{number}", status="forgotten", forgotten_at=datetime.now(UTC))
    living = await add_host(pool, name="h1")
    assert (await HostStore(pool).get("h1")).id == living
    assert (await HostStore(pool).get("dead-3")).id == "dead-3"
    assert (await DrainStore(pool).begin("h1", "stop", ACTOR)).host_id == living
    with pytest.raises(Conflict, match="it is draining"):
        await remove_host(pool, "h1", ACTOR)
    assert (await FreezeStore(pool).freeze("h1", ACTOR, creates=False)).host_id == living
