"""VMs as users change and read them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from model.errors import Conflict, GenerationMoved, Gone, NotFound
from model.generations import VmChange
from model.passes import ClaimRequest, Outcome, PassRef
from model.row import Row
from model.specification import FileSpec, ImageSpec
from model.vm import Phase, PowerState
from store.audit import Actor, list_audit
from store.database import Pool
from store.operation import OperationStore
from store.passes import PassStore
from store.vm import StoredVm, VmFilter, VmStore
from store.vm_change import VmChanges
from store.vm_create import create_vm
from tests.fixtures.rows import add_host, add_vm, new_vm, vm_spec

ACTOR = Actor("tester", "127.0.0.1")
DAY = timedelta(days=1)


@pytest.fixture
async def host_id(pool: Pool) -> str:
    return await add_host(pool)


@pytest.fixture
def changes(pool: Pool) -> VmChanges:
    return VmChanges(pool)


@pytest.fixture
def vms(pool: Pool) -> VmStore:
    return VmStore(pool)


async def create(pool: Pool, host_id: str, **fields: Any) -> str:
    return (await create_vm(pool, new_vm(host_id, **fields), ACTOR)).vm_id


async def wakes(pool: Pool, vm_id: str) -> tuple[int, bool]:
    record = await pool.fetchrow("select wake, due_at <= now() as due from vms where id = $1", vm_id)
    assert record is not None
    return record["wake"], record["due"]


async def own(pool: Pool, vm_id: str) -> PassRef:
    row = await PassStore(pool).claim(ClaimRequest(vm_id=vm_id, run_id="run"))
    assert row is not None
    return PassRef(vm_id=vm_id, pass_number=row.status.pass_number)


async def test_a_create_is_due_at_once_with_operation_and_audit(pool: Pool, host_id: str, vms: VmStore) -> None:
    made = await create_vm(pool, new_vm(host_id, name="web"), ACTOR)
    assert made.pass_type == "CreateVm"
    stored = await vms.get("default", made.vm_id)
    assert (stored.phase, stored.generation, stored.settled) == (Phase.CREATING, 1, False)
    assert await wakes(pool, made.vm_id) == (1, True)
    (operation,) = await OperationStore(pool).list_of("default", made.vm_id)
    assert (operation.id, operation.kind, operation.result) == (made.operation_id, "create", None)
    (entry,) = await list_audit(pool, "default")
    assert (entry.actor, entry.action, entry.object) == ("tester", "vm.create", f"vm/{made.vm_id}")


async def test_the_same_request_gets_the_same_vm(pool: Pool, host_id: str) -> None:
    """L-N4."""
    new = new_vm(host_id)
    first = await create_vm(pool, new, ACTOR)
    again = await create_vm(pool, new, ACTOR)
    assert (again.vm_id, again.changed, again.operation_id) == (first.vm_id, False, None)
    assert await pool.fetchval("select count(*) from operations") == 1


async def test_many_at_once_make_one_vm(pool: Pool, host_id: str) -> None:
    new = new_vm(host_id)
    answers = await asyncio.gather(*(create_vm(pool, new, ACTOR) for _ in range(8)))
    assert sorted(answer.changed for answer in answers) == [False] * 7 + [True]


async def test_a_refreshed_url_is_kept_and_takes_the_create_up_again(pool: Pool, host_id: str, vms: VmStore) -> None:
    """L-N4, L-C4."""

    def image(url_digest: str) -> ImageSpec:
        return ImageSpec(
            owner="p", rootfs=FileSpec(url="https://a/x", signed=True, url_digest=url_digest, sha256="a" * 64)
        )

    vm_id = await create(pool, host_id, vm_id="v", name="n", spec=vm_spec(image=image("1")))
    await pool.execute("update vms set resting = true, create_attempts = 5, last_error = 'x', due_at = null")
    again = new_vm(host_id, vm_id="v", name="n", spec=vm_spec(image=image("2")), secrets=b"fresh")
    assert (await create_vm(pool, again, ACTOR)).changed
    stored = await vms.get("default", vm_id)
    assert (stored.resting, stored.create_attempts, stored.last_error, stored.generation) == (False, 0, None, 1)
    assert (await vms.input_for_host(host_id, vm_id)).secrets == b"fresh"
    assert await wakes(pool, vm_id) == (2, True)


async def test_an_id_that_is_taken_says_by_what(pool: Pool, host_id: str, changes: VmChanges) -> None:
    """L-N4: another specification, being destroyed, used within 30 days; of another project it says nothing more."""
    vm_id = await create(pool, host_id)
    with pytest.raises(Conflict, match="another specification"):
        await create_vm(pool, new_vm(host_id, vm_id=vm_id, spec=vm_spec(memory_mib=600)), ACTOR)
    with pytest.raises(Conflict) as refused:
        await create_vm(pool, new_vm(host_id, vm_id=vm_id, project="other"), ACTOR)
    assert refused.value.detail == f"the id {vm_id} is not available"
    await changes.delete("default", vm_id, ACTOR, grace=DAY)
    with pytest.raises(Conflict, match="being destroyed"):
        await create_vm(pool, new_vm(host_id, vm_id=vm_id), ACTOR)
    await make_gone(pool, vm_id)
    with pytest.raises(Conflict, match="30 days"):
        await create_vm(pool, new_vm(host_id, vm_id=vm_id), ACTOR)
    with pytest.raises(Conflict) as refused:
        await create_vm(pool, new_vm(host_id, vm_id=vm_id, project="other"), ACTOR)
    assert refused.value.detail == f"the id {vm_id} is not available"
    assert await pool.fetchval("select count(*) from vms") == 0
    await pool.execute("update gone set at = now() - interval '31 days'")
    assert (await create_vm(pool, new_vm(host_id, vm_id=vm_id), ACTOR)).changed


async def make_gone(pool: Pool, vm_id: str) -> None:
    ref = await own(pool, vm_id)
    await pool.execute("update vms set destroying = true where id = $1", vm_id)
    assert await PassStore(pool).record_gone(ref)


async def test_case_d9_a_name_that_is_taken_says_by_whom_and_until_when(
    pool: Pool, host_id: str, changes: VmChanges
) -> None:
    """Case D9, A-7: and once the VM is gone the same name is taken again."""
    vm_id = await create(pool, host_id, name="web")
    other = new_vm(host_id, name="web")
    with pytest.raises(Conflict, match=f"live VM {vm_id}"):
        await create_vm(pool, other, ACTOR)
    await changes.delete("default", vm_id, ACTOR, grace=DAY)
    until = await pool.fetchval("select to_char(destroy_at, 'YYYY-MM-DD') from vms")
    with pytest.raises(Conflict, match=f"quarantined VM {vm_id}.*{until}"):
        await create_vm(pool, other, ACTOR)
    await pool.execute("update vms set destroying = true")
    with pytest.raises(Conflict, match="torn down"):
        await create_vm(pool, other, ACTOR)
    await make_gone(pool, vm_id)
    assert (await create_vm(pool, other, ACTOR)).changed
    assert (await create_vm(pool, new_vm(host_id, name="web", project="other"), ACTOR)).changed


async def test_a_mac_clash_draws_another(pool: Pool, host_id: str, vms: VmStore) -> None:
    """L-C13."""
    from model.ids import mac_address

    await add_vm(pool, host_id, mac=mac_address("second"))
    vm_id = await create(pool, host_id, vm_id="second")
    assert (await vms.get("default", vm_id)).mac == mac_address("second", draw=1)


@pytest.mark.parametrize("status", ["cordoned", "draining", "drained", "maintenance", "forgotten"])
async def test_a_host_that_takes_nothing_new_refuses(pool: Pool, host_id: str, status: str) -> None:
    """H-P1: and leaves nothing behind (H-P4)."""
    await pool.execute("update hosts set status = $1, maintenance_until = now() + interval '1 hour'", status)
    with pytest.raises(Conflict, match=status):
        await create_vm(pool, new_vm(host_id), ACTOR)
    with pytest.raises(Conflict, match="no host nowhere"):
        await create_vm(pool, new_vm("nowhere"), ACTOR)
    assert await pool.fetchval("select count(*) from vms") == 0
    assert await pool.fetchval("select count(*) from audit") == 0


async def test_another_projects_vm_is_not_there(pool: Pool, host_id: str, changes: VmChanges, vms: VmStore) -> None:
    """S-31: every query carries the project."""
    vm_id = await create(pool, host_id)
    await create(pool, host_id, project="other")
    for call in (
        vms.get("other", vm_id),
        changes.change("other", vm_id, VmChange(labels={"a": "b"}), ACTOR),
        changes.restart("other", vm_id, ACTOR),
        changes.retry("other", vm_id, ACTOR),
        changes.delete("other", vm_id, ACTOR, grace=DAY),
        changes.undelete("other", vm_id, ACTOR),
    ):
        with pytest.raises(NotFound) as refused:
            await call
        assert refused.value.detail == f"there is no VM {vm_id}"
    assert [vm.project for vm in await vms.list("other")] == ["other"]
    assert await OperationStore(pool).list_of("other", vm_id) == ()
    await make_gone(pool, vm_id)
    with pytest.raises(NotFound):
        await vms.get("other", vm_id)
    with pytest.raises(Gone):
        await vms.get("default", vm_id)


async def test_an_input_goes_to_the_rows_host_alone(pool: Pool, host_id: str, vms: VmStore) -> None:
    """S-5."""
    vm_id = await create(pool, host_id)
    assert (await vms.input_for_host(host_id, vm_id)).secrets == b"sealed"
    with pytest.raises(NotFound):
        await vms.input_for_host(await add_host(pool), vm_id)


async def test_a_change_wakes_and_raises_what_it_must(
    pool: Pool, host_id: str, changes: VmChanges, vms: VmStore
) -> None:
    """L-N1, L-N2."""
    vm_id = await create(pool, host_id)
    before = await vms.get("default", vm_id)
    change = VmChange(power_state=PowerState.STOPPED, disk_gib=4)
    assert (await changes.change("default", vm_id, change, ACTOR, generation=1)).changed
    after = await vms.get("default", vm_id)
    assert (after.generation, after.spec_generation, after.desired_power_state) == (2, 2, PowerState.STOPPED)
    assert after.spec.disk_gib == 4
    assert after.input_digest != before.input_digest
    assert await wakes(pool, vm_id) == (2, True)
    assert not (await changes.change("default", vm_id, change, ACTOR)).changed
    assert await wakes(pool, vm_id) == (2, True)
    with pytest.raises(GenerationMoved):
        await changes.change("default", vm_id, VmChange(disk_gib=5), ACTOR, generation=1)
    with pytest.raises(Conflict, match="only grows"):
        await changes.change("default", vm_id, VmChange(disk_gib=3), ACTOR)
    entry = (await list_audit(pool, "default", subject=f"vm/{vm_id}"))[0]
    assert entry.before == {"power_state": "running", "disk_gib": None}
    assert entry.after == {"power_state": "stopped", "disk_gib": 4}


async def test_a_restart_raises_its_counter(pool: Pool, host_id: str, changes: VmChanges, vms: VmStore) -> None:
    """L-N3."""
    vm_id = await create(pool, host_id)
    await changes.restart("default", vm_id, ACTOR)
    stored = await vms.get("default", vm_id)
    assert (stored.restart_generation, stored.generation) == (1, 1)
    await changes.change("default", vm_id, VmChange(power_state=PowerState.PAUSED), ACTOR)
    with pytest.raises(Conflict, match="paused"):
        await changes.restart("default", vm_id, ACTOR)


@pytest.mark.parametrize("way", ["retry", "keys"])
async def test_what_clears_count_and_error_is_not_written_back(
    pool: Pool, host_id: str, changes: VmChanges, vms: VmStore, way: str
) -> None:
    """L-C4, L-C5: a pass that still ends with the old count has lost the row."""
    vm_id = await create(pool, host_id)
    ref = await own(pool, vm_id)
    await PassStore(pool).take_attempt(ref)
    await pool.execute("update vms set last_error = 'x', refunds = 3, step_refunds = '{\"boot\": 3}', resting = true")
    if way == "retry":
        await changes.retry("default", vm_id, ACTOR)
    else:
        await changes.change("default", vm_id, VmChange(ssh_authorized_keys=("k",)), ACTOR)
    late = await PassStore(pool).write_outcome(
        Outcome(**ref.model_dump(), step=1, phase=Phase.FAILED, resting=True, write_error=True, error="late")
    )
    assert late is not None
    assert not late.owner
    stored = await vms.get("default", vm_id)
    assert (stored.resting, stored.create_attempts, stored.last_error) == (False, 0, None)
    assert await pool.fetchval("select refunds = 0 and step_refunds = '{}' from vms")
    assert await wakes(pool, vm_id) == (2, True)


@pytest.mark.parametrize("way", ["start", "same", "restart", "retry", "undelete"])
async def test_a_users_start_begins_the_count_of_setbacks_anew(
    pool: Pool, host_id: str, changes: VmChanges, way: str
) -> None:
    """L-V4: also one that moves nothing, since a guest that pauses is wanted running all the time."""
    vm_id = await create(pool, host_id)
    await pool.execute("update vms set setbacks = 3, up_again_at = now(), first_ready_at = now()")
    run = VmChange(power_state=PowerState.RUNNING)
    if way == "start":
        await changes.change("default", vm_id, VmChange(power_state=PowerState.STOPPED), ACTOR)
        assert await pool.fetchval("select setbacks from vms") == 3
        await changes.change("default", vm_id, run, ACTOR)
    elif way == "same":
        assert not (await changes.change("default", vm_id, run, ACTOR)).changed
    elif way == "undelete":
        await changes.delete("default", vm_id, ACTOR, grace=DAY)
        await changes.undelete("default", vm_id, ACTOR)
    else:
        await getattr(changes, way)("default", vm_id, ACTOR)
    row = await pool.fetchrow("select setbacks, up_again_at, due_at <= now() as due from vms")
    assert row is not None
    assert tuple(row) == (None, None, True)


async def test_a_change_of_a_created_vm_keeps_its_error(
    pool: Pool, host_id: str, changes: VmChanges, vms: VmStore
) -> None:
    """L-V6: last_error is emptied by a boot or a retry and else stays."""
    vm_id = await create(pool, host_id)
    await pool.execute("update vms set last_error = 'x', first_ready_at = now()")
    await changes.change("default", vm_id, VmChange(disk_gib=3), ACTOR)
    assert (await vms.get("default", vm_id)).last_error == "x"


async def test_delete_and_undelete(pool: Pool, host_id: str, changes: VmChanges, vms: VmStore) -> None:
    """L-R1, L-R3, L-R4: a tombstone, whose deadline is fixed in the delete; the same VM comes back."""
    vm_id = await create(pool, host_id)
    before = await vms.get("default", vm_id)
    deleted = await changes.delete("default", vm_id, ACTOR, grace=DAY)
    assert deleted.pass_type == "ReapVm"
    stored = await vms.get("default", vm_id)
    assert (stored.phase, stored.deleted, stored.generation) == (Phase.QUARANTINED, True, 2)
    assert stored.quarantine is not None
    assert stored.quarantine.destroy_at == stored.quarantine.since + DAY
    assert stored.quarantine.kind == "tombstone"
    second = await changes.delete("default", vm_id, ACTOR, grace=timedelta(0))
    assert not second.changed, "a second delete works, and moves no deadline by itself (L-R8)"
    assert (await vms.get("default", vm_id)).quarantine == stored.quarantine
    assert (await changes.delete("default", vm_id, ACTOR, grace=timedelta(0), asked=True)).changed
    for refused in (
        changes.change("default", vm_id, VmChange(disk_gib=9), ACTOR),
        changes.restart("default", vm_id, ACTOR),
    ):
        with pytest.raises(Conflict, match="undelete it first"):
            await refused
    assert (await changes.undelete("default", vm_id, ACTOR)).pass_type == "CreateVm"
    assert not (await changes.undelete("default", vm_id, ACTOR)).changed
    back = await vms.get("default", vm_id)
    assert (back.phase, back.quarantine, back.deleted) == (Phase.CREATING, None, False)
    assert back.desired_power_state == before.desired_power_state
    operations = await OperationStore(pool).list_of("default", vm_id)
    assert [(one.kind, one.result) for one in operations] == [
        ("undelete", None),
        ("delete", "superseded"),
        ("delete", "superseded"),
        ("create", "superseded"),
    ]


async def test_exactly_one_of_undelete_and_destroy_wins(pool: Pool, host_id: str, changes: VmChanges) -> None:
    """L-R4: the point of no return is one statement, whoever comes first."""
    passes, won = PassStore(pool), set[bool]()
    for turn in range(10):
        vm_id = await create(pool, host_id)
        await changes.delete("default", vm_id, ACTOR, grace=timedelta(0))
        ref = await own(pool, vm_id)
        undeleting = changes.undelete("default", vm_id, ACTOR)
        racing = [passes.mark_destroying(ref), undeleting] if turn % 2 else [undeleting, passes.mark_destroying(ref)]
        answers = await asyncio.gather(*racing, return_exceptions=True)
        destroying = await pool.fetchval("select destroying from vms where id = $1", vm_id)
        assert destroying is any(isinstance(answer, Gone) for answer in answers)
        (row,) = [answer for answer in answers if isinstance(answer, Row)]
        assert row.status.destroying is destroying
        won.add(destroying)
    assert won == {True, False}, "each must have won once"


async def test_past_the_point_of_no_return(pool: Pool, host_id: str, changes: VmChanges, vms: VmStore) -> None:
    """L-R4: from then on 410; a delete is acknowledged."""
    vm_id = await create(pool, host_id)
    await changes.delete("default", vm_id, ACTOR, grace=DAY)
    await pool.execute("update vms set destroying = true")
    with pytest.raises(Gone):
        await changes.undelete("default", vm_id, ACTOR)
    assert not (await changes.delete("default", vm_id, ACTOR, grace=DAY, asked=True)).changed
    assert (await vms.get("default", vm_id)).phase is Phase.DESTROYING


async def test_a_held_vm_refuses_changes_and_takes_a_delete(pool: Pool, host_id: str, changes: VmChanges) -> None:
    """L-G12."""
    vm_id = await create(pool, host_id)
    await pool.execute("update vms set held = true, held_by = 'a drain'")
    with pytest.raises(Conflict, match="a drain"):
        await changes.restart("default", vm_id, ACTOR)
    assert (await changes.delete("default", vm_id, ACTOR, grace=DAY)).changed


async def test_lists_are_stable_and_filtered(pool: Pool, host_id: str, vms: VmStore) -> None:
    """A-5: a cursor whose item is gone still works."""
    ids = [await create(pool, host_id, vm_id=f"vm-{n}", labels={"n": str(n)}) for n in range(5)]
    first = await vms.list("default", limit=2)
    assert [vm.id for vm in first] == ids[:2]
    await make_gone(pool, ids[1])
    assert [vm.id for vm in await vms.list("default", after=ids[1])] == ids[2:]

    async def found(**narrowed: Any) -> list[str]:
        return [vm.id for vm in await vms.list("default", VmFilter(**narrowed))]

    await pool.execute("update vms set observed_power_state = 'running', phase = 'ready' where id = 'vm-2'")
    assert await found(label=("n", "3")) == ["vm-3"]
    assert await found(name=f"vm-{ids[4][-12:]}") == ["vm-4"]
    assert await found(phase=Phase.READY) == ["vm-2"]
    assert await found(power_state=PowerState.RUNNING) == ["vm-2"]
    assert await found(host_id="elsewhere") == []
    assert await found(image="demo") == []


async def test_a_silent_hosts_vms_are_unknown_with_what_was_seen(pool: Pool, host_id: str, vms: VmStore) -> None:
    """H-S10: computed when read; no row is written."""
    vm_id = await create(pool, host_id)
    await pool.execute(
        "update vms set phase = 'ready', observed_power_state = 'running', observed_at = now(), observed_revision = 1"
    )
    await pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 h'")
    before = await vms.get("default", vm_id)
    assert (before.phase, before.power_state) == (Phase.READY, PowerState.RUNNING)
    await pool.execute("update hosts set last_report_at = now() - interval '91 s'")
    after = await vms.get("default", vm_id)
    assert (after.phase, after.power_state) == (Phase.UNKNOWN, None)
    assert (after.last_phase, after.last_power_state) == (Phase.READY, PowerState.RUNNING)


async def test_the_audit_trail_is_append_only(pool: Pool, host_id: str) -> None:
    await create(pool, host_id)
    for statement in ("delete from audit", "update audit set actor = 'nobody'", "truncate audit"):
        with pytest.raises(asyncpg.RaiseError, match="append-only"):
            await pool.execute(statement)


async def test_nothing_of_a_read_prints_secrets(pool: Pool, host_id: str, vms: VmStore) -> None:
    """S-33."""
    vm_id = await create(pool, host_id, secrets=b"canary")
    assert isinstance(stored := await vms.get("default", vm_id), StoredVm)
    assert "canary" not in repr(stored)
