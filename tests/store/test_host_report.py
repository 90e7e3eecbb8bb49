"""What a host tells: stored for its own VMs alone, under instance and revision, and who is woken by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model.errors import Conflict, NotFound
from model.generations import VmChange
from model.passes import ClaimRequest, Outcome, PassRef
from model.process import ProcessRecord
from model.record import Observed, Setback, View
from model.report import HostReport, VmReport
from model.vm import LastExit, Phase, PowerState
from store.audit import Actor, list_audit
from store.database import Pool
from store.fleet import note_hearing
from store.foreign import list_foreign
from store.host import HostStore
from store.host_report import ReportTaken, store_report
from store.passes import PassStore
from store.vm import VmStore
from store.vm_change import VmChanges
from tests.fixtures.rows import add_host, add_vm, vm_spec

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def vm_report(vm_id: str, revision: int = 1, power: str | None = "running", **changes: Any) -> VmReport:
    names = ("address", "last_exit", "restart_count", "setback", "started_for")
    seen = {name: changes.pop(name) for name in names if name in changes}
    observed = Observed(
        boot_id="b", power_state=PowerState(power) if power else None, revision=revision, seen_at=NOW, **seen
    )
    return VmReport(vm_id=vm_id, observed=observed, **changes)


def report(number: int, *vms: VmReport, **changes: Any) -> HostReport:
    fields = {
        "number": number,
        "instance_id": "one",
        "machine_id": "m",
        "boot_id": "b",
        "worker_version": "1.0.0",
        "clock": NOW,
        "whole": False,
        "vms": vms,
        **changes,
    }
    return HostReport(**fields)


@pytest.fixture
async def host_id(pool: Pool) -> str:
    return await add_host(pool, instance_id="one", machine_id="m", status="ready")


async def settled_vm(pool: Pool, host_id: str, vm_id: str, **columns: Any) -> str:
    return await add_vm(
        pool,
        host_id,
        id=vm_id,
        **{
            "due_at": None,
            "phase": "ready",
            "observed_power_state": "running",
            "observed_instance": "one",
            "observed_generation": 1,
            "first_ready_at": NOW,
            **columns,
        },
    )


def poked(taken: ReportTaken) -> list[str]:
    return [poke.vm_id for poke in taken.pokes]


async def woken(pool: Pool) -> list[str]:
    return [r["id"] for r in await pool.fetch("select id from vms where due_at is not null order by id")]


async def joining_host(pool: Pool, **columns: Any) -> str:
    """A host that has joined under the name h1 and sent nothing yet."""
    return await add_host(pool, name="h1", status="joining", instance_id=None, last_report_at=None, **columns)


async def test_a_first_report_makes_a_joining_host_ready(pool: Pool) -> None:
    known = await joining_host(pool)
    assert (await HostStore(pool).get("h1")).silent
    taken = await store_report(pool, known, report(1, activity_names=("find_vm",)))
    assert (taken.answer.acknowledged, taken.answer.want_whole) == (1, True)
    host = await HostStore(pool).get(known)
    assert (host.status, host.silent, host.activity_names) == ("ready", False, ("find_vm",))
    await store_report(pool, known, report(2, whole=False, activity_names=None))
    assert (await HostStore(pool).get(host.id)).activity_names == ("find_vm",), "only whole reports say what it can do"
    assert host.report is not None
    assert not (await store_report(pool, known, report(3, whole=True))).answer.want_whole


async def test_news_of_a_vm_is_stored_and_wakes_it(pool: Pool, host_id: str) -> None:
    """H-S11."""
    await settled_vm(pool, host_id, "a")
    await settled_vm(pool, host_id, "b")
    ended = LastExit(at=NOW, by="guest", reason="power off")
    news = vm_report("a", 2, "stopped", last_exit=ended, restart_count=1)
    taken = await store_report(pool, host_id, report(1, news, vm_report("b", 2, address="10.0.0.9")))
    assert poked(taken) == ["a"], "an address alone is no reason to look"
    assert taken.pokes[0].pass_type == "ConvergeVm"
    assert await woken(pool) == ["a"]
    one, two = await VmStore(pool).get(None, "a"), await VmStore(pool).get(None, "b")
    assert (one.power_state, one.last_exit, one.restart_count) == (PowerState.STOPPED, ended, 1)
    assert two.address == "10.0.0.9"


async def test_a_host_may_ask_for_a_look(pool: Pool, host_id: str) -> None:
    await settled_vm(pool, host_id, "a")
    assert poked(await store_report(pool, host_id, report(1, vm_report("a", 2, look=True)))) == ["a"]


async def test_what_a_pass_brings_about_does_not_wake_it(pool: Pool, host_id: str) -> None:
    vm_id = await add_vm(pool, host_id)
    await PassStore(pool).claim(ClaimRequest(vm_id=vm_id, run_id="run"))
    assert poked(await store_report(pool, host_id, report(1, vm_report(vm_id, 1)))) == []
    assert poked(await store_report(pool, host_id, report(2, vm_report(vm_id, 2, "stopped")))) == [vm_id]


async def test_a_report_moves_only_rows_that_name_its_host(pool: Pool, host_id: str) -> None:
    """S-6; L-R1: what no row places there is shown and left alone."""
    other = await add_host(pool)
    await settled_vm(pool, other, "theirs", observed_power_state="stopped")
    await settled_vm(pool, host_id, "ours")
    vms = (vm_report("theirs", 9, look=True), vm_report("ours", 2), vm_report("nobodys"))
    taken = await store_report(pool, host_id, report(1, *vms, whole=True))
    assert poked(taken) == []
    assert (await VmStore(pool).get(None, "theirs")).power_state is PowerState.STOPPED
    foreign = await list_foreign(pool, host_id)
    assert [(vm.vm_id, vm.placed_on) for vm in foreign] == [("nobodys", None), ("theirs", other)]
    await store_report(pool, host_id, report(2))
    assert len(await list_foreign(pool, host_id)) == 2, "news says nothing about the rest"
    await store_report(pool, host_id, report(3, vm_report("ours", 2), whole=True))
    assert await list_foreign(pool, host_id) == ()


async def test_a_repeated_or_late_report_changes_nothing(pool: Pool, host_id: str) -> None:
    await settled_vm(pool, host_id, "a")
    await store_report(pool, host_id, report(5, vm_report("a", 3)))
    for number, want_whole in ((5, False), (4, True)):
        taken = await store_report(pool, host_id, report(number, vm_report("a", 9, "stopped", look=True)))
        assert (taken.answer.acknowledged, taken.answer.want_whole, taken.pokes) == (5, want_whole, ())
    assert (await VmStore(pool).get(None, "a")).power_state is PowerState.RUNNING


async def test_an_older_revision_is_not_taken(pool: Pool, host_id: str) -> None:
    """L-G9."""
    await settled_vm(pool, host_id, "a", observed_revision=7)
    assert poked(await store_report(pool, host_id, report(1, vm_report("a", 6, "stopped")))) == []
    assert (await VmStore(pool).get(None, "a")).power_state is PowerState.RUNNING


async def test_an_unreadable_record_is_told_whatever_revision_it_had(pool: Pool, host_id: str) -> None:
    """L-G8: revisions are kept in the record, so a host that cannot read it begins anew; the repaired one goes on."""
    vm = await settled_vm(pool, host_id, "vm-1", observed_revision=12, observed_at=NOW - timedelta(minutes=1))
    await store_report(pool, host_id, report(1, vm_report(vm, 12)))
    assert await woken(pool) == []
    taken = await store_report(pool, host_id, report(2, vm_report(vm, 1, None, unreadable="status.json is cut")))
    assert poked(taken) == [vm]
    row = await pool.fetchrow("select unreadable, observed_power_state, observed_revision from vms")
    assert tuple(row) == ("status.json is cut", None, 12)
    await store_report(pool, host_id, report(3, vm_report(vm, 12)))
    assert await pool.fetchval("select unreadable from vms") is None


async def test_a_vm_that_a_whole_report_leaves_out_is_looked_at(pool: Pool, host_id: str) -> None:
    """L-V9: a record that is gone is reported by nobody; once it is known to be, its row is left in peace."""
    vm = await settled_vm(pool, host_id, "vm-1")
    await settled_vm(pool, host_id, "vm-2", name="two", phase="failed")
    await settled_vm(pool, host_id, "vm-3", name="three", first_ready_at=None, phase="creating")
    assert poked(await store_report(pool, host_id, report(1))) == []
    assert poked(await store_report(pool, host_id, report(2, whole=True))) == [vm]


async def test_a_host_that_lost_its_state(pool: Pool, host_id: str) -> None:
    """H-E2, L-V9: its revisions count anew, all its VMs are looked at, and no answer of the former one is stored."""
    await settled_vm(pool, host_id, "a", observed_revision=70)
    row = await PassStore(pool).claim(ClaimRequest(vm_id="a", run_id="run"))
    assert row is not None
    taken = await store_report(pool, host_id, report(1, vm_report("a", 1, None), instance_id="two"))
    assert taken.answer.want_whole
    assert await woken(pool) == ["a"]
    assert (await HostStore(pool).get(host_id)).state_lost_at is not None
    view = View(record=None, observed=Observed(boot_id="b", power_state=PowerState.RUNNING, revision=71, seen_at=NOW))
    ref = PassRef(vm_id="a", pass_number=row.status.pass_number)
    late = await PassStore(pool).write_outcome(Outcome(**ref.model_dump(), step=1, phase=Phase.READY, view=view))
    assert late is not None
    assert not late.owner
    assert (await VmStore(pool).get(None, "a")).power_state is None
    with pytest.raises(Conflict, match="another machine"):
        await store_report(pool, host_id, report(2, instance_id="two", machine_id="other"))


async def test_a_host_that_was_rolled_back(pool: Pool, host_id: str) -> None:
    """H-E2: a whole report with a number lower than one once acknowledged."""
    await settled_vm(pool, host_id, "a", observed_revision=70)
    await store_report(pool, host_id, report(9))
    taken = await store_report(pool, host_id, report(2, vm_report("a", 1, "stopped"), whole=True))
    assert taken.answer.acknowledged == 2
    assert (await VmStore(pool).get(None, "a")).power_state is PowerState.STOPPED
    assert (await HostStore(pool).get(host_id)).rolled_back_at is not None


async def test_a_host_back_from_silence_wakes_what_waited(pool: Pool, host_id: str) -> None:
    """L-G7, H-S10, H-S12: a few at once, and poked; many are spread over half a minute and left to the sweep."""
    await settled_vm(pool, host_id, "calm")
    await settled_vm(pool, host_id, "failed", phase="failed")
    await settled_vm(pool, host_id, "behind", observed_generation=0)
    await pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 h'")
    await pool.execute("update hosts set last_report_at = now() - interval '2 min'")
    assert (await HostStore(pool).get(host_id)).silent
    taken = await store_report(pool, host_id, report(1))
    assert await woken(pool) == ["behind", "failed"]
    assert sorted(poke.vm_id for poke in taken.pokes) == ["behind", "failed"]
    assert await pool.fetchval("select max(due_at) <= now() from vms")
    for number in range(49):
        await settled_vm(pool, host_id, f"more-{number}", observed_generation=0)
    await pool.execute("update hosts set last_report_at = now() - interval '2 min'")
    assert (await store_report(pool, host_id, report(2))).pokes == ()
    spread = await pool.fetchrow("select max(due_at) - now() as longest, min(due_at) < now() as still from vms")
    assert timedelta(seconds=10) < spread["longest"] <= timedelta(seconds=30)
    assert spread["still"], "who was due already stays so"


async def test_a_worker_that_knows_more_steps_wakes_who_waited_for_it(pool: Pool, host_id: str) -> None:
    """H-D4: an upgraded host worker serves at once what its older one could not."""
    for vm_id, waiting_for in (("outdated", "host_outdated"), ("busy", "host_busy")):
        await settled_vm(pool, host_id, vm_id, waiting_for=waiting_for)
    told = tuple(vm_report(vm_id, 1) for vm_id in ("outdated", "busy"))
    await pool.execute("update hosts set activity_names = '{find_vm}'")
    assert poked(await store_report(pool, host_id, report(1, *told, activity_names=("find_vm",)))) == []
    taken = await store_report(pool, host_id, report(2, *told, activity_names=("find_vm", "ensure_paused")))
    assert poked(taken) == await woken(pool) == ["outdated"]


@pytest.mark.parametrize(("choice", "wanted"), [("stop", "stopped"), ("start", "running")])
async def test_a_guest_that_powers_itself_off(pool: Pool, host_id: str, choice: str, wanted: str) -> None:
    """L-V4: with `stop` it becomes the desired state, once, with the guest named in the audit trail."""
    await settled_vm(pool, host_id, "a", on_guest_poweroff=choice)
    news = vm_report("a", 2, "stopped", guest_stopped_itself=True)
    assert poked(await store_report(pool, host_id, report(1, news))) == ["a"]
    await store_report(pool, host_id, report(2, news))
    stored = await VmStore(pool).get(None, "a")
    stops = choice == "stop"
    assert (stored.desired_power_state, stored.generation) == (PowerState(wanted), 1 + stops)
    assert [entry.actor for entry in await list_audit(pool, None, subject="vm/a")] == ["guest"] * stops


async def test_case_a6_a_start_that_came_after_the_guests_end_counts(pool: Pool, host_id: str) -> None:
    """Case A6, L-V4: the guest's end is told again until it is booted, which takes no later start back."""
    spec = vm_spec().model_dump(mode="json")
    await settled_vm(pool, host_id, "a", on_guest_poweroff="stop", spec=spec)
    await store_report(pool, host_id, report(1, vm_report("a", 2, "stopped", guest_stopped_itself=True)))
    changes = VmChanges(pool)
    await changes.change("default", "a", VmChange(power_state=PowerState.RUNNING), Actor("user"))
    await store_report(pool, host_id, report(2, vm_report("a", 3, "stopped", guest_stopped_itself=True)))
    stored = await VmStore(pool).get(None, "a")
    assert (stored.desired_power_state, stored.generation) == (PowerState.RUNNING, 3)


def poweroff(number: int, **changes: Any) -> VmReport:
    process = ProcessRecord(pid=number, start_time=1, boot_id="b", uid=1)
    told = {"setback": Setback(number=number, process=process), "guest_stopped_itself": True, **changes}
    return vm_report("a", number, "stopped", **told)


async def test_each_power_off_of_a_guest_is_taken_once(pool: Pool, host_id: str) -> None:
    """L-V4, case A6: told again it takes no later start back; the next one stops the VM again."""
    spec = vm_spec(on_guest_poweroff="stop").model_dump(mode="json")
    await settled_vm(pool, host_id, "a", on_guest_poweroff="stop", spec=spec)
    changes = VmChanges(pool)
    assert poked(await store_report(pool, host_id, report(1, poweroff(1)))) == ["a"]
    await changes.change("default", "a", VmChange(power_state=PowerState.RUNNING), Actor("user"))
    await pool.execute("update operations set ended_at = now(), result = 'settled'")
    await store_report(pool, host_id, report(2, poweroff(1)))
    stored = await VmStore(pool).get(None, "a")
    assert (stored.desired_power_state, stored.generation) == (PowerState.RUNNING, 3)
    await store_report(pool, host_id, report(3, poweroff(2, started_for=3)))
    stored = await VmStore(pool).get(None, "a")
    assert (stored.desired_power_state, stored.generation) == (PowerState.STOPPED, 4)


@pytest.mark.parametrize(("started_for", "wanted"), [(1, "running"), (2, "stopped")])
async def test_a_power_off_counts_beside_the_start_that_booted_the_guest(
    pool: Pool, host_id: str, started_for: int, wanted: str
) -> None:
    """L-V4, case A6: a start that no pass has done yet is the later wish; one that booted this guest is not."""
    await settled_vm(
        pool,
        host_id,
        "a",
        on_guest_poweroff="stop",
        spec=vm_spec().model_dump(mode="json"),
    )
    await VmChanges(pool).restart("default", "a", Actor("user"))
    taken = await store_report(pool, host_id, report(1, poweroff(1, started_for=started_for)))
    assert poked(taken) == ["a"], "its pass waits for that"
    assert (await VmStore(pool).get(None, "a")).desired_power_state == PowerState(wanted)
    assert await pool.fetchval("select poweroff_taken ->> 'number' from vms") == "1"


async def test_an_address_that_is_none_and_a_double_one(pool: Pool, host_id: str) -> None:
    await settled_vm(pool, host_id, "a", address="10.0.0.2")
    await settled_vm(pool, host_id, "b")
    await settled_vm(pool, host_id, "c")
    vms = (vm_report("b", 1, address="10.0.0.2"), vm_report("c", 1, address="; drop table vms"))
    await store_report(pool, host_id, report(1, *vms))
    one, other = await VmStore(pool).get(None, "b"), await VmStore(pool).get(None, "c")
    assert (one.address, one.address_refused) == (None, "10.0.0.2")
    assert (other.address, other.address_refused) == (None, None)


async def test_an_unknown_host_is_not_found(pool: Pool) -> None:
    with pytest.raises(NotFound):
        await store_report(pool, "nobody", report(1))


async def test_silence(pool: Pool) -> None:
    """H-S10: counted while the control plane could hear; when most fall silent at once, nobody is."""
    hosts = [await add_host(pool) for _ in range(4)]

    async def silent() -> int:
        return (await HostStore(pool).count())[1]

    async def reported(ago: timedelta, *ids: str) -> None:
        await pool.execute("update hosts set last_report_at = now() - $1::interval where id = any($2)", ago, list(ids))

    await reported(timedelta(seconds=100), hosts[0])
    assert await silent() == 0, "nobody has ever listened"
    await note_hearing(pool)
    assert await silent() == 0, "the API listens only since now"
    await pool.execute("update fleet set hearing_since = now() - interval '1 h'")
    await note_hearing(pool)
    assert await silent() == 1
    await reported(timedelta(seconds=100), *hosts[:3])
    assert await silent() == 0, "three of four at once: it is the control plane that does not see"
    await reported(timedelta(seconds=300), hosts[1])
    await reported(timedelta(seconds=500), hosts[2])
    assert await silent() == 3, "one after the other"
    await pool.execute("update fleet set heard_at = now() - interval '31 s'")
    assert await silent() == 0
    await note_hearing(pool)
    assert await pool.fetchval("select hearing_since = heard_at from fleet"), "a gap begins anew"


async def test_hosts_are_found_by_name_id_and_credential(pool: Pool) -> None:
    store = HostStore(pool)
    known = await joining_host(pool, labels={"zone": "z"})
    found = await store.by_credential(known.encode())
    assert found is not None
    assert (found.id, found.name) == (known, "h1")
    assert await store.by_credential(b"x") is None
    assert (await store.get("h1")).id == (await store.get(known)).id == known
    assert [host.name for host in await store.list()] == ["h1"]
    with pytest.raises(NotFound):
        await store.get("h2")
