"""Ownership and status of a row: every write under the owning pass, every request safe to repeat."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model.errors import Unavailable
from model.passes import ClaimRequest, Count, Finish, GiveBack, Outcome, PassRef, StepNote, TakeOver
from model.process import ProcessRecord
from model.record import Observed, Record, Setback, View
from model.row import Row
from model.vm import Phase, PowerState
from store.change import BEGIN_ANEW
from store.database import Pool, open_pool
from store.passes import PassStore
from tests.fixtures.rows import add_host, add_vm

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def passes(pool: Pool) -> PassStore:
    return PassStore(pool)


@pytest.fixture
async def vm_id(pool: Pool) -> str:
    return await add_vm(pool, await add_host(pool))


async def claim(passes: PassStore, vm_id: str, run_id: str) -> tuple[Row, PassRef]:
    row = await passes.claim(ClaimRequest(vm_id=vm_id, run_id=run_id))
    assert row is not None
    return row, PassRef(vm_id=vm_id, pass_number=row.status.pass_number)


async def columns(pool: Pool, vm_id: str) -> dict[str, Any]:
    record = await pool.fetchrow("select *, now() as now, host(address) as ip from vms where id = $1", vm_id)
    assert record is not None
    return dict(record)


def view(revision: int, **changes: Any) -> View:
    fields = {"boot_id": "b", "power_state": PowerState.RUNNING, "revision": revision, "seen_at": NOW, **changes}
    return View(record=Record(input_digest="d"), observed=Observed(**fields))


def outcome(ref: PassRef, **changes: Any) -> Outcome:
    return Outcome(**{**ref.model_dump(), "step": 1, "phase": Phase.READY, **changes})


async def test_a_claim_returns_the_row_and_its_pass(passes: PassStore, pool: Pool, vm_id: str) -> None:
    row, _ = await claim(passes, vm_id, "run")
    assert row.owner
    assert row.status.pass_number > 0
    assert not row.host.silent
    stored = await columns(pool, vm_id)
    assert stored["run_id"] == "run"
    assert stored["claim_until"] - stored["now"] > timedelta(seconds=110)
    assert stored["due_at"] - stored["now"] < timedelta(seconds=31)  # what is terminated now is looked after soon


async def test_a_repeated_claim_returns_the_drawn_pass(passes: PassStore, vm_id: str) -> None:
    first, _ = await claim(passes, vm_id, "run")
    again, _ = await claim(passes, vm_id, "run")
    assert again == first.model_copy(update={"now": again.now})


async def test_a_late_claim_takes_nothing_back(passes: PassStore, vm_id: str) -> None:
    await claim(passes, vm_id, "old")
    newer, _ = await claim(passes, vm_id, "new")
    late, _ = await claim(passes, vm_id, "old")
    assert not late.owner
    assert late.status.pass_number == newer.status.pass_number


async def test_a_run_may_take_ownership_anew(passes: PassStore, pool: Pool, vm_id: str) -> None:
    first, _ = await claim(passes, vm_id, "run")
    anew, _ = await claim(passes, vm_id, "run#1")
    assert anew.owner
    assert anew.status.pass_number > first.status.pass_number
    assert (await columns(pool, vm_id))["run_id"] == "run"


async def test_a_claim_of_no_vm_is_none(passes: PassStore) -> None:
    assert await passes.claim(ClaimRequest(vm_id="none", run_id="run")) is None


async def test_a_claim_settles_what_the_predecessor_left(passes: PassStore, pool: Pool, vm_id: str) -> None:
    """L-G10: a superseded pass says nothing more; its operation is taken up, not doubled."""
    _, ref = await claim(passes, vm_id, "one")
    await passes.begin_step(StepNote(**ref.model_dump(), step=1, phase=Phase.CREATING, words="making the root disk"))
    await claim(passes, vm_id, "two")
    assert (await columns(pool, vm_id))["status_detail"] is None
    operations = await pool.fetch("select run_id, attempts, ended_at from operations where vm_id = $1", vm_id)
    assert [tuple(record.values()) for record in operations] == [("two", 2, None)]


async def test_a_write_by_a_pass_that_is_not_the_owner_changes_nothing(
    passes: PassStore, pool: Pool, vm_id: str
) -> None:
    """L-G9: status is guarded by the owning pass."""
    await pool.execute(
        """update vms set deleted = true, quarantine_kind = 'tombstone', quarantine_since = now(), destroy_at = now(),
        quarantine_grace = '0 s', destroying = true where id = $1""",
        vm_id,
    )
    _, old = await claim(passes, vm_id, "old")
    row, _ = await claim(passes, vm_id, "new")
    before = await columns(pool, vm_id)
    fields = old.model_dump()
    rows = [
        await passes.read(old),
        await passes.begin_step(StepNote(**fields, step=9, phase=Phase.FAILED, words="late")),
        await passes.take_attempt(old),
        await passes.give_back(GiveBack(**fields, counted=True)),
        await passes.write_outcome(outcome(old, step=9, failures=7, error="late", write_error=True, view=view(5))),
        await passes.note_stopped(old),
        await passes.mark_destroying(old),
    ]
    assert [r.owner for r in rows if r] == [False] * len(rows)
    assert not await passes.renew(old)
    assert not await passes.record_gone(old)
    finished = await passes.finish(Finish(**fields, wake=row.wake, due_at=None, result="settled"))
    assert not finished.ended
    after = await columns(pool, vm_id)
    assert {**after, "now": None} == {**before, "now": None}


async def test_an_ended_pass_owns_nothing(passes: PassStore, pool: Pool, vm_id: str) -> None:
    row, ref = await claim(passes, vm_id, "run")
    finish = Finish(**ref.model_dump(), wake=row.wake, due_at=None, result="settled")
    assert (await passes.finish(finish)).ended
    assert (await passes.finish(finish)).ended, "a repeat of the same end is the same end"
    assert not await passes.renew(ref)
    late = await passes.begin_step(StepNote(**ref.model_dump(), step=9, phase=Phase.FAILED, words="late"))
    assert late is not None
    assert not late.owner
    stored = await columns(pool, vm_id)
    assert stored["due_at"] is None
    assert stored["status_detail"] is None


async def test_a_wake_during_a_pass_keeps_it_from_ending(passes: PassStore, pool: Pool, vm_id: str) -> None:
    row, ref = await claim(passes, vm_id, "run")
    await pool.execute("update vms set wake = wake + 1, due_at = now() where id = $1", vm_id)
    finished = await passes.finish(Finish(**ref.model_dump(), wake=row.wake, due_at=None, result="settled"))
    assert not finished.ended
    assert finished.row is not None
    assert finished.row.owner
    assert finished.row.wake == row.wake + 1
    assert (await columns(pool, vm_id))["due_at"] is not None


async def test_renewing_leaves_a_wake_to_the_sweep_and_reading_answers_it(
    passes: PassStore, pool: Pool, vm_id: str
) -> None:
    _, ref = await claim(passes, vm_id, "run")
    await pool.execute("update vms set wake = wake + 1, due_at = now() where id = $1", vm_id)
    assert await passes.renew(ref)
    stored = await columns(pool, vm_id)
    assert stored["due_at"] <= stored["now"]
    await passes.read(ref)
    stored = await columns(pool, vm_id)
    assert stored["due_at"] > stored["now"]


async def test_an_attempt_is_taken_and_given_back_once(passes: PassStore, vm_id: str) -> None:
    """L-C4, L-C5: counted where attempt_pass is distinct, given back once."""
    _, ref = await claim(passes, vm_id, "run")
    for _ in range(3):
        row = await passes.take_attempt(ref)
        assert row is not None
        assert (row.status.create_attempts, row.status.attempt_pass) == (1, ref.pass_number)
    for _ in range(3):
        row = await passes.give_back(GiveBack(**ref.model_dump(), counted=True))
        assert row is not None
        assert (row.status.create_attempts, row.status.refunds) == (0, 1)
    row = await passes.take_attempt(ref)
    assert row is not None
    assert row.status.create_attempts == 0


async def test_an_attempt_that_was_cut_off_is_given_back_by_the_next_pass(passes: PassStore, vm_id: str) -> None:
    """L-C5: as by a fence, or a run that was terminated; once, however often claims are repeated."""
    _, first = await claim(passes, vm_id, "one")
    await passes.take_attempt(first)
    for run_id in ("two", "two", "three"):
        row, ref = await claim(passes, vm_id, run_id)
        row = await passes.give_back(GiveBack(**ref.model_dump(), counted=True)) or row
        assert (row.status.create_attempts, row.status.refunds) == (0, 1)


async def test_a_pass_that_ends_as_waiting_gives_its_attempt_back(passes: PassStore, vm_id: str) -> None:
    """L-C5: as by a hold, whose end nobody knows."""
    row, ref = await claim(passes, vm_id, "one")
    await passes.take_attempt(ref)
    ended = await passes.finish(Finish(**ref.model_dump(), wake=row.wake, due_at=None, result="waiting"))
    assert ended.ended
    assert ended.row is not None
    assert (ended.row.status.create_attempts, ended.row.status.refunds) == (0, 1)


async def test_an_attempt_that_was_used_up_is_not_given_back(passes: PassStore, vm_id: str) -> None:
    """L-C4: its own failure counts, whatever its pass comes to afterwards."""
    row, ref = await claim(passes, vm_id, "one")
    await passes.take_attempt(ref)
    await passes.write_outcome(outcome(ref, phase=Phase.CREATING, attempt_used=True, retry_at=NOW))
    await passes.give_back(GiveBack(**ref.model_dump(), counted=True))
    await passes.finish(Finish(**ref.model_dump(), wake=row.wake, due_at=NOW, result="waiting"))
    row, _ = await claim(passes, vm_id, "two")
    assert (row.status.create_attempts, row.status.refunds) == (1, 0)


async def test_no_more_than_ten_attempts_are_given_back(passes: PassStore, vm_id: str) -> None:
    """L-C5: the eleventh stays used."""
    for number in range(12):
        _, ref = await claim(passes, vm_id, f"run-{number}")
        await passes.take_attempt(ref)
    row, _ = await claim(passes, vm_id, "last")
    assert (row.status.refunds, row.status.create_attempts) == (12, 2)


def count(before: int | None, setbacks: int, number: int) -> Count:
    process = ProcessRecord(pid=number, start_time=1, boot_id="b", uid=1)
    setback = Setback(number=number, process=process)
    return Count(before=before, setbacks=setbacks, setback=setback, up_again_at=NOW)


async def test_a_setback_is_counted_once_and_not_over_a_users_start(passes: PassStore, pool: Pool, vm_id: str) -> None:
    """L-V4: a count that is written late neither doubles nor takes back that a user's start began anew."""
    _, ref = await claim(passes, vm_id, "run")
    for _ in range(2):
        row = await passes.write_outcome(outcome(ref, count=count(0, 1, 1)))
        assert row is not None
        assert (row.status.setbacks, row.status.up_again_at) == (1, NOW)
    await pool.execute("update vms set first_ready_at = now()")
    await pool.execute(f"update vms set {BEGIN_ANEW}")
    row = await passes.write_outcome(outcome(ref, count=count(1, 2, 2)))
    assert row is not None
    assert (row.status.setbacks, row.status.up_again_at) == (None, None)
    row = await passes.write_outcome(outcome(ref, count=count(None, 0, 2)))
    assert row is not None
    assert row.status.setbacks == 0


async def test_an_outcome_writes_only_what_it_names(passes: PassStore, pool: Pool, vm_id: str) -> None:
    """L-G9, L-C14: narration drops no address, host key, error or counter."""
    _, ref = await claim(passes, vm_id, "run")
    full = view(1, address="10.0.0.2", ssh_host_key="ssh-ed25519 AAAA", restart_count=2)
    await passes.write_outcome(
        outcome(ref, write_error=True, error="it broke", failures=3, retry_at=NOW, unreachable_since=NOW, view=full)
    )
    await passes.write_outcome(outcome(ref, step=2, phase=Phase.FAILED, words="waiting", view=view(2)))
    stored = await columns(pool, vm_id)
    assert (stored["last_error"], stored["failures"], stored["retry_at"]) == ("it broke", 3, NOW)
    assert (stored["ip"], stored["ssh_host_key"]) == ("10.0.0.2", "ssh-ed25519 AAAA"), "L-C14"
    assert (stored["phase"], stored["status_detail"]) == ("failed", "waiting")
    await passes.write_outcome(outcome(ref, step=3, write_error=True, failures=0, completed=True))
    stored = await columns(pool, vm_id)
    assert stored["last_error"] is None
    assert (stored["failures"], stored["retry_at"], stored["unreachable_since"]) == (0, None, None)


async def test_first_ready_at_is_set_once(passes: PassStore, vm_id: str) -> None:
    """L-V9: it says that the VM once lived."""
    _, ref = await claim(passes, vm_id, "run")
    first = await passes.write_outcome(outcome(ref, completed=True))
    again = await passes.write_outcome(outcome(ref, step=2, completed=True))
    assert first is not None
    assert again is not None
    assert first.status.first_ready_at is not None
    assert again.status.first_ready_at == first.status.first_ready_at


async def test_a_late_step_does_not_speak_over_a_later_one(passes: PassStore, pool: Pool, vm_id: str) -> None:
    _, ref = await claim(passes, vm_id, "run")
    await passes.begin_step(StepNote(**ref.model_dump(), step=5, phase=Phase.CREATING, words="starting the guest"))
    await passes.begin_step(StepNote(**ref.model_dump(), step=3, phase=Phase.CREATING, words="making the root disk"))
    await passes.write_outcome(outcome(ref, step=3, phase=Phase.FAILED, failures=4))
    stored = await columns(pool, vm_id)
    assert (stored["status_detail"], stored["failures"]) == ("starting the guest", 0)


async def test_an_older_revision_changes_nothing(passes: PassStore, pool: Pool, vm_id: str) -> None:
    """L-G9: observed is guarded by host instance and revision."""
    _, ref = await claim(passes, vm_id, "run")
    await passes.write_outcome(outcome(ref, view=view(7)))
    await passes.write_outcome(outcome(ref, step=2, view=view(6, power_state=PowerState.STOPPED)))
    stored = await columns(pool, vm_id)
    assert (stored["observed_power_state"], stored["observed_revision"]) == ("running", 7)


async def test_a_double_address_is_kept_apart(passes: PassStore, pool: Pool) -> None:
    host_id = await add_host(pool)
    for name in ("one", "two"):
        await add_vm(pool, host_id, id=name)
        _, ref = await claim(passes, name, name)
        await passes.write_outcome(outcome(ref, view=view(1, address="10.0.0.2", ssh_host_key=name)))
    second = await columns(pool, "two")
    assert (second["ip"], str(second["address_refused"]), second["ssh_host_key"]) == (None, "10.0.0.2", "two")


async def test_a_late_stop_still_gets_its_grace(passes: PassStore, pool: Pool, vm_id: str) -> None:
    """L-R3: at least an hour after the guest is proven stopped, or the whole grace where that is shorter."""
    _, ref = await claim(passes, vm_id, "run")
    for grace, least in ((timedelta(days=1), timedelta(hours=1)), (timedelta(seconds=5), timedelta(seconds=5))):
        await pool.execute(
            """update vms set deleted = true, quarantine_kind = 'tombstone', quarantine_since = now() - interval '2 d',
            quarantine_grace = $2, destroy_at = now() - interval '1 d', quarantine_stopped_at = null where id = $1""",
            vm_id,
            grace,
        )
        row = await passes.note_stopped(ref)
        again = await passes.note_stopped(ref)
        assert row is not None
        assert again is not None
        assert row.status.quarantine is not None
        assert row.status.quarantine.destroy_at == row.now + least
        assert again.status.quarantine == row.status.quarantine


@pytest.mark.parametrize(
    ("change", "passed"),
    [
        ("deleted = true", True),
        ("destroy_at = now() + interval '1 h'", False),
        ("destroy_at = now() + interval '1 h', destroying = true", True),
        ("held = true", False),
        ("quarantine_kind = null, destroy_at = null, quarantine_since = null, quarantine_grace = null", False),
    ],
)
async def test_the_point_of_no_return(passes: PassStore, pool: Pool, vm_id: str, change: str, passed: bool) -> None:
    """L-R4: quarantined, not held, and past its deadline."""
    await pool.execute(
        """update vms set deleted = true, quarantine_kind = 'tombstone', quarantine_since = now(), destroy_at = now(),
        quarantine_grace = '0 s' where id = $1""",
        vm_id,
    )
    await pool.execute(f"update vms set {change} where id = $1", vm_id)
    _, ref = await claim(passes, vm_id, "run")
    row = await passes.mark_destroying(ref)
    assert row is not None
    assert row.status.destroying is passed


@pytest.mark.parametrize(("epoch", "taken"), [(1, False), (2, True)])
async def test_counters_are_taken_over_after_a_restore_alone(
    passes: PassStore, pool: Pool, vm_id: str, epoch: int, taken: bool
) -> None:
    """L-N5: a record's counters count only under a higher epoch than its own, and none is ever lowered."""
    await pool.execute("update fleet set epoch = $1", epoch)
    await pool.execute("update vms set spec_generation = 9")
    _, ref = await claim(passes, vm_id, "run")
    counters = {"generation": 7, "spec_generation": 6, "restart_generation": 5, "rebuild_generation": 4}
    row = await passes.take_over(TakeOver(**ref.model_dump(), epoch=1, **counters))
    assert row is not None
    found = [getattr(row.desired, name) for name in counters]
    assert found == ([7, 9, 5, 4] if taken else [1, 9, 0, 0])


@pytest.mark.parametrize("flag", ["frozen", "behind"])
async def test_a_frozen_fleet_destroys_nothing(passes: PassStore, pool: Pool, vm_id: str, flag: str) -> None:
    """L-R4, H-R1, H-R3."""
    await pool.execute(
        """update vms set deleted = true, quarantine_kind = 'tombstone', quarantine_since = now(), destroy_at = now(),
        quarantine_grace = '0 s' where id = $1""",
        vm_id,
    )
    await pool.execute(f"update fleet set {flag} = true")
    _, ref = await claim(passes, vm_id, "run")
    row = await passes.mark_destroying(ref)
    assert row is not None
    assert (row.frozen, row.behind) == (flag == "frozen", flag == "behind")
    assert not row.status.destroying


async def test_gone_releases_the_name_and_is_acknowledged_again(passes: PassStore, pool: Pool) -> None:
    """L-R6: only then are row, name and address released."""
    host_id = await add_host(pool)
    vm_id = await add_vm(pool, host_id, name="web")
    _, ref = await claim(passes, vm_id, "run")
    await passes.begin_step(StepNote(**ref.model_dump(), step=1, phase=Phase.CREATING, words="x"))
    assert not await passes.record_gone(ref), "not before the point of no return"
    await pool.execute("update vms set destroying = true where id = $1", vm_id)
    assert await passes.record_gone(ref)
    assert await passes.record_gone(ref)
    await add_vm(pool, host_id, name="web")
    gone = await pool.fetchrow("select * from gone where vm_id = $1", vm_id)
    assert gone is not None
    assert (gone["name"], gone["pass_number"]) == ("web", ref.pass_number)
    assert await pool.fetchval("select result from operations where vm_id = $1", vm_id) == "gone"
    finished = await passes.finish(Finish(**ref.model_dump(), wake=1, due_at=None, result="gone"))
    assert (finished.ended, finished.row) == (False, None)


async def test_a_settled_pass_ends_the_operation_and_a_waiting_one_leaves_it(
    passes: PassStore, pool: Pool, vm_id: str
) -> None:
    row, ref = await claim(passes, vm_id, "one")
    await passes.begin_step(StepNote(**ref.model_dump(), step=1, phase=Phase.CREATING, words="x"))
    await passes.finish(Finish(**ref.model_dump(), wake=row.wake, due_at=NOW, result="waiting"))
    assert await pool.fetchval("select result from operations where vm_id = $1", vm_id) is None
    assert (await columns(pool, vm_id))["due_at"] == NOW
    row, ref = await claim(passes, vm_id, "two")
    await passes.write_outcome(outcome(ref, write_error=True, error="it broke"))
    await passes.finish(Finish(**ref.model_dump(), wake=row.wake, due_at=None, result="failed"))
    record = await pool.fetchrow("select result, error, attempts from operations where vm_id = $1", vm_id)
    assert record is not None
    assert tuple(record.values()) == ("failed", "it broke", 2)


async def test_a_database_that_is_away_is_unavailable(database_url: str) -> None:
    closed = await open_pool(database_url)
    await closed.close()
    with pytest.raises(Unavailable):
        await PassStore(closed).claim(ClaimRequest(vm_id="x", run_id="y"))
