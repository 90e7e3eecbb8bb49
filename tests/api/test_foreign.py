"""VMs without a row: stopped one by one, never many at once, adopted from their hosts' records (L-R1, H-R2, H-E5)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from model.vm import VmInput
from store.audit import list_audit
from tests.api.conftest import World, report_of, vm_body, vm_report
from tests.fixtures.rows import add_host, add_vm

RECORD = {
    "input_digest": "",
    "boot_id": "b1",
    "applied_generation": 3,
    "applied_spec_generation": 2,
    "applied_restart_generation": 1,
}


class Host:
    """A host that answers for what it holds, as its worker does; `records` are what its disk has."""

    def __init__(self, world: World, host_id: str, credential: str) -> None:
        self.world, self.id, self.credential = world, host_id, credential
        self.number = 0
        self.records: dict[str, dict[str, Any]] = {}
        self.answer: dict[str, Any] = {}

    async def hold(self, name: str, **changed: Any) -> str:
        """Have a VM made whose input this host has fetched, then lose its row."""
        vm = await self.world.create(name=name, host="h2", user_data="#cloud-config", **changed)
        digest = await self.world.pool.fetchval("select input_digest from vms where id = $1", vm["id"])
        answer = await self.world.as_host(self.credential, "GET", f"/v1/host/vms/{vm['id']}/input?digest={digest}")
        given = VmInput.model_validate_json(answer.content)
        self.records[vm["id"]] = {
            "input": given.model_dump(mode="json"),
            "record": {**RECORD, "input_digest": digest},
            "power_state": "running",
            "ssh_host_key": "ssh-ed25519 AAAA",
        }
        await self.lose(vm["id"])
        return vm["id"]

    async def lose(self, vm_id: str) -> None:
        await self.world.pool.execute("delete from operations where vm_id = $1", vm_id)
        await self.world.pool.execute("delete from vms where id = $1", vm_id)

    async def report(self, *, minutes: float = 0, **changed: Any) -> None:
        """Send a whole report; first let some minutes pass since the last one."""
        await self.world.pool.execute(
            """update hosts set last_whole_at = last_whole_at - $2::interval, foreign_vms = (
                select coalesce(jsonb_agg(case when v ->> 'named_since' is null then v
                else v || jsonb_build_object('named_since', (v ->> 'named_since')::timestamptz - $2::interval) end),
                '[]') from jsonb_array_elements(foreign_vms) v) where id = $1""",
            self.id,
            timedelta(minutes=minutes),
        )
        self.number += 1
        vms = [vm_report(vm_id, revision=self.number) for vm_id in self.records]
        told = report_of(self.number, vms, **{"epoch": 1, **changed})
        answer = await self.world.as_host(self.credential, "POST", "/v1/host/report", json=told)
        assert answer.status_code == 200, answer.text
        self.answer = answer.json()
        await self.world.parts.drain()

    async def answer_errands(self) -> None:
        """Come for questions for ever, as the worker does."""
        while True:
            taken = await self.world.as_host(self.credential, "GET", "/v1/host/errands?wait_seconds=5")
            for errand in taken.json()["items"]:
                assert errand["kind"] == "record"
                told = json.dumps(self.records[errand["vm_id"]]).encode()
                await self.world.as_host(self.credential, "POST", f"/v1/host/errands/{errand['id']}", content=told)

    async def foreign(self) -> dict[str, dict[str, Any]]:
        items = (await self.world.call("GET", "/v1/hosts/h2/foreign")).json()["items"]
        return {item["vm_id"]: item for item in items}

    async def choose(self, vm_id: str, choice: str, **body: Any) -> Any:
        """Choose as an operator, and return status and document."""
        options: dict[str, Any] = {} if choice == "leave" else {"json": body}
        answer = await self.world.call("POST", f"/v1/hosts/h2/foreign/{vm_id}/{choice}", role="operator", **options)
        return answer.status_code, answer.json()


@pytest.fixture
async def host(world: World) -> AsyncIterator[Host]:
    host = Host(world, *await world.add_host(name="h2", instance_id="i1", machine_id="m1"))
    answering = asyncio.create_task(host.answer_errands())
    yield host
    answering.cancel()


async def rows(world: World) -> dict[str, dict[str, Any]]:
    return {row["id"]: dict(row) for row in await world.pool.fetch("select * from vms")}


async def test_a_vanished_vm_gets_a_row_and_a_grace(world: World, host: Host) -> None:
    """L-R1, L-R3: the operators' until one says whose it is; stopped, kept for seven days, and brought back by that."""
    vm_id = await host.hold("web", firewall={"enabled": True})
    await host.report()
    await host.report(minutes=0.5)
    assert await rows(world) == {}
    await host.report(minutes=1)
    row = (await rows(world))[vm_id]
    assert (row["name"], row["project"], row["deleted"], row["quarantine_kind"]) == ("web", "public", True, "vanished")
    assert row["destroy_at"] - row["quarantine_since"] == timedelta(days=7)
    assert (row["generation"], row["spec_generation"], row["restart_generation"]) == (3, 2, 1)
    assert row["due_at"] is not None
    await host.report(minutes=10)
    assert await host.foreign() == {}
    undeleted = await world.call("POST", f"/v1/vms/{vm_id}/undelete")
    assert (undeleted.status_code, "`hostler host adopt` brings it back" in undeleted.json()["detail"]) == (409, True)
    assert (await host.choose(vm_id, "adopt", project="another"))[0] == 409
    status, shown = await host.choose(vm_id, "adopt", project="default")
    assert (status, shown["phase"], shown["quarantine"], shown["project"]) == (202, "ready", None, "default")
    assert shown["desired_power_state"] == "running"
    digest = await world.pool.fetchval("select input_digest from vms where id = $1", vm_id)
    assert digest == host.records[vm_id]["record"]["input_digest"], "so nothing of it is made anew"
    again = await world.as_host(host.credential, "GET", f"/v1/host/vms/{vm_id}/input?digest={digest}")
    assert again.json() == host.records[vm_id]["input"], "the row makes the very input that the host was given"


async def test_what_is_said_of_one_that_vanished(world: World, host: Host) -> None:
    """L-R1, L-R7: what happened to it, until when it is kept, and what brings it back, as its readers can."""
    vm_id = await host.hold("web")
    await host.report()
    await host.report(minutes=1)
    waits = "waiting_for = 'grace', waiting_since = now(), quarantine_stopped_at = now(), due_at = destroy_at"
    await world.pool.execute(f"update vms set observed_power_state = 'stopped', {waits}")
    said = (await world.call("GET", f"/v1/vms/{vm_id}")).json()["why"]["sentence"]
    assert said.startswith(
        "It had lost its row, so it is stopped and kept, by a row that was made from the record of its"
    )
    assert f"`hostler host adopt h2 {vm_id} --project default` brings it back until then" in said
    await world.pool.execute("update vms set project = 'default', told_project = null")
    said = (await world.call("GET", f"/v1/vms/{vm_id}", project="default")).json()["why"]["sentence"]
    assert "`hostler vm undelete web` brings it back until then" in said
    assert "h2" not in said


async def test_the_grace_is_never_shorter_than_that_of_a_delete(world: World, host: Host) -> None:
    """L-R3: and who deletes a VM that vanished gives it the grace of that delete from then on."""
    world.parts.tombstone_grace = timedelta(days=9)
    vm_id = await host.hold("web")
    await host.report()
    await host.report(minutes=1)
    row = (await rows(world))[vm_id]
    assert row["destroy_at"] - row["quarantine_since"] == timedelta(days=9)
    world.parts.tombstone_grace = timedelta(hours=24)
    assert (await world.call("DELETE", f"/v1/vms/{vm_id}")).status_code == 202
    deleted = (await rows(world))[vm_id]
    assert deleted["quarantine_kind"] == "tombstone"
    assert deleted["destroy_at"] - row["quarantine_since"] < timedelta(hours=25)


@pytest.mark.parametrize(
    "changed",
    [{"whole": False}, {"epoch": 0}, {"instance_id": "i2"}],
    ids=["news", "another epoch", "another instance"],
)
async def test_a_second_report_that_proves_nothing(world: World, host: Host, changed: dict[str, Any]) -> None:
    """L-R1: only a whole one, of the same instance, under the present epoch."""
    await host.hold("web")
    await host.report()
    await host.report(minutes=10, **changed)
    assert await rows(world) == {}


async def test_the_second_report_is_asked_for(world: World, host: Host) -> None:
    """L-R1: a minute after the first, and not again and again while the host does not tell the record."""
    vm_id = await host.hold("web")
    host.records[vm_id]["input"]["memory_mib"] = 1
    await host.report()
    await host.report(whole=False)
    assert not host.answer["want_whole"]
    await host.report(minutes=1, whole=False)
    assert host.answer["want_whole"]
    await host.report()
    await host.report(minutes=1, whole=False)
    assert (host.answer["want_whole"], await rows(world)) == (False, {})
    host.records[vm_id]["input"]["memory_mib"] = 512
    await host.report()
    assert set(await rows(world)) == {vm_id}, "and what could not be done is done with the next one"


async def test_many_at_once_are_not_stopped(world: World, host: Host) -> None:
    """H-R2: the brake; each is then adopted, quarantined or left by an operator, and the audit trail says by whom."""
    adopted, stopped, left, waiting = [await host.hold(name) for name in ("a", "b", "c", "d")]
    await host.report()
    await host.report(minutes=10)
    assert await rows(world) == {}
    assert {vm["choice"] for vm in (await host.foreign()).values()} == {"braked"}
    (condition,) = (await world.call("GET", "/v1/hosts/h2")).json()["conditions"]
    assert condition["condition"] == "rows_missing"
    assert condition["what"].startswith("it holds 4 VMs that no row places there")
    assert (await host.choose(adopted, "adopt", project="default"))[0] == 202
    assert (await host.choose(stopped, "quarantine", project="default"))[0] == 202
    assert (await host.choose(left, "leave"))[1]["choice"] == "left"
    found = await rows(world)
    names = ("deleted", "power_state", "phase", "quarantine_kind")
    assert [found[adopted][name] for name in names] == [False, "running", "ready", None]
    assert [found[stopped][name] for name in names] == [True, "running", "quarantined", "vanished"]
    for _ in range(3):
        await host.report(minutes=90)
    assert {vm_id: vm["choice"] for vm_id, vm in (await host.foreign()).items()} == {left: "left", waiting: "braked"}
    assert set(await rows(world)) == {adopted, stopped}
    actions = {entry.action: entry.actor for entry in await list_audit(world.pool, None)}
    assert {"vm.adopt", "vm.vanish", "host.leave"} <= actions.keys()
    assert all(actions[action].startswith("token/") for action in ("vm.adopt", "vm.vanish", "host.leave"))
    assert (await world.call("POST", f"/v1/vms/{stopped}/undelete")).status_code == 202, "it is its project's"


async def test_within_an_hour_no_more_vanish_than_the_brake_allows(world: World, host: Host) -> None:
    """H-R2: three one after the other, whoever comes fourth waits for an operator; an hour later they count no more."""
    for name in ("a", "b", "c"):
        await host.hold(name)
        await host.report()
        await host.report(minutes=2)
    assert len(await rows(world)) == 3
    fourth = await host.hold("d")
    await host.report()
    await host.report(minutes=2)
    assert len(await rows(world)) == 3
    assert (await host.foreign())[fourth]["choice"] == "braked"
    await world.pool.execute("update hosts set vanished_at = array[now() - interval '61 minutes']")
    fifth = await host.hold("e")
    assert (await host.choose(fourth, "leave"))[0] == 200
    await host.report()
    await host.report(minutes=2)
    assert fifth in await rows(world)


@pytest.mark.parametrize("statement", ["update fleet set behind = true", "update hosts set frozen = true"])
async def test_a_fleet_that_is_held_takes_nothing_over(world: World, host: Host, statement: str) -> None:
    """H-R1, H-R3: neither by reports nor by hand."""
    vm_id = await host.hold("web")
    await host.report()
    await world.pool.execute(statement)
    await host.report(minutes=10)
    assert (await host.choose(vm_id, "adopt", project="default"))[0] == 409
    assert await rows(world) == {}


async def test_a_host_that_was_given_up_makes_nothing_vanish(world: World, host: Host) -> None:
    """L-R10: what it holds is stopped there; the list shows it, and nobody adopts it."""
    vm_id = await host.hold("web")
    await host.report()
    await world.pool.execute("update hosts set status = 'forgotten', forgotten_at = now() where name = 'h2'")
    await host.report(minutes=10)
    assert await rows(world) == {}
    assert set(await host.foreign()) == {vm_id}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"memory_mib": 1}, "none that a create would take: memory_mib"),
        ({"name": "../x"}, "none that a create would take: name"),
        ({"project": "../x"}, "no readable record"),
        ({"project": "another"}, "belongs to the project another, not to default"),
        ({"mac": "02:00:00:00:00:01"}, "another VM's"),
        ({"vm_id": "another"}, "another VM's"),
        ({"ssh_authorized_keys": ["command=x"]}, "none that a create would take: ssh_authorized_keys"),
        ({"user_data": "é"}, "user_data is no UTF-8"),
        ({"firewall": {"inbound": [{"prefixes": ["10.0.0.1/8"]}]}}, "none that a create would take: firewall"),
    ],
)
async def test_a_record_passes_the_checks_of_a_create(
    world: World, host: Host, changed: dict[str, Any], why: str
) -> None:
    """H-E5, S-5, S-1: an unsigned record is believed no more than a caller, and only of the project that is named."""
    vm_id = await host.hold("web")
    await host.report()
    given = {**host.records[vm_id]["input"], "signature": None}
    host.records[vm_id]["input"] = {**given, **changed}
    status, problem = await host.choose(vm_id, "adopt", project="default")
    assert (status, why in problem["detail"]) == (409, True), problem
    host.records[vm_id]["input"] = given
    status, problem = await host.choose(vm_id, "adopt")
    assert (status, "name its project" in problem["detail"]) == (409, True)
    assert await rows(world) == {}
    assert (await host.choose(vm_id, "adopt", project="default"))[0] == 202
    assert (await host.choose(vm_id, "adopt", project="default"))[0] == 404


async def test_a_host_that_cannot_tell_is_not_guessed_at(world: World, host: Host) -> None:
    """H-R2: what a VM does now becomes what is wanted; an older worker tells no record."""
    vm_id = await host.hold("web")
    await host.report()
    host.records[vm_id]["power_state"] = None
    assert (await host.choose(vm_id, "adopt", project="default"))[0] == 503
    host.records[vm_id] = {}
    status, problem = await host.choose(vm_id, "adopt", project="default")
    assert (status, "no readable record" in problem["detail"]) == (409, True)


async def test_a_name_that_another_vm_has_by_now(world: World, host: Host) -> None:
    """A-7: the adopted one gets another; among the operators' the id tells vanished ones apart."""
    first = await host.hold("web")
    await host.report()
    await host.report(minutes=1)
    second = await host.hold("web")
    await host.report()
    await host.report(minutes=1)
    found = await rows(world)
    assert [found[vm_id]["name"] for vm_id in (first, second)] == ["web", f"web-{second[-12:]}"]
    await world.create(name="web", host="h2")
    status, problem = await host.choose(first, "adopt", project="default")
    assert (status, "give it another name" in problem["detail"]) == (409, True)
    assert (await host.choose(first, "adopt", project="default", name="web-2"))[1]["name"] == "web-2"


async def test_its_volumes_come_back_with_it(world: World, host: Host) -> None:
    """L-C11, H-R2: a VM is adopted as it is, so its volumes' rows come first."""
    vm_id = await host.hold("web")
    await host.report()
    host.records[vm_id]["record"]["volumes"] = [{"volume_id": "data", "size_bytes": 1 << 30}]
    status, problem = await host.choose(vm_id, "adopt", project="default")
    assert (status, problem["detail"].startswith("there is no volume data")) == (404, True)
    await world.pool.execute(
        "insert into volumes (id, project, name, size_gib, host_id) values ('data', 'default', 'data', 1, $1)", host.id
    )
    status, shown = await host.choose(vm_id, "adopt", project="default")
    assert (status, [volume["id"] for volume in shown["volumes"]]) == (202, ["data"])


async def test_a_misplaced_vm_is_stopped_and_kept(world: World, host: Host) -> None:
    """L-R1: by its host, under a new pass, whether its row names another; no row is made, and nobody adopts it."""
    other = await add_host(world.pool, name="h3")
    vm_id = await host.hold("web")
    await add_vm(world.pool, other, id=vm_id, name="web")
    await host.report()
    assert host.answer["stop_vms"] == []
    await host.report(minutes=1)
    assert host.answer["stop_vms"] == [vm_id]
    assert host.answer["stop_pass"] == await world.pool.fetchval("select last_value from pass")
    (condition,) = (await world.call("GET", "/v1/hosts/h2")).json()["conditions"]
    assert condition["condition"] == "misplaced"
    assert (await host.choose(vm_id, "adopt", project="default"))[0] == 409
    assert (await host.choose(vm_id, "leave"))[0] == 200
    await host.report(minutes=1)
    assert host.answer["stop_vms"] == []
    assert (await host.choose(vm_id, "quarantine"))[1]["choice"] == "stopped"
    await host.report()
    assert host.answer["stop_vms"] == [vm_id]


async def test_a_signed_record_says_whose_it_is(world: World, host: Host) -> None:
    """S-5: what the API handed out needs nobody's word; what a host changed does, and what an older release gave it."""
    kept, changed, older = [await host.hold(name) for name in ("kept", "changed", "older")]
    host.records[changed]["input"]["project"] = "theirs"
    host.records[older]["input"]["signature"] = None
    await host.report()
    status, shown = await host.choose(kept, "adopt")
    assert (status, shown["project"], shown["name"]) == (202, "default", "kept")
    for vm_id in (changed, older):
        status, refused = await host.choose(vm_id, "adopt")
        assert (status, "nobody has signed that" in refused["detail"]) == (409, True)


async def test_one_that_vanished_comes_back_by_its_signature(world: World, host: Host) -> None:
    """S-5, L-R1: its row is the operators', until its host is asked for what was signed."""
    vm_id = await host.hold("web")
    await host.report()
    await host.report(minutes=1)
    assert (await rows(world))[vm_id]["project"] == "public"
    signed = host.records[vm_id]["input"]
    host.records[vm_id]["input"] = {**signed, "memory_mib": 999}
    status, refused = await host.choose(vm_id, "adopt")
    assert (status, "nobody has signed that" in refused["detail"]) == (409, True)
    host.records[vm_id]["input"] = signed
    status, shown = await host.choose(vm_id, "adopt")
    assert (status, shown["project"], shown["phase"]) == (202, "default", "ready")


async def test_case_i5_nothing_is_made_over_what_a_host_holds(world: World, host: Host) -> None:
    """Case I5, L-N4: neither while it has no row, nor while it is quarantined; its disk would be made anew."""
    vm_id = await host.hold("web")
    await host.report()
    for project, told in ((None, "the host h2 holds a VM"), ("default", f"the id {vm_id} is not available")):
        answer = await world.call("PUT", f"/v1/vms/{vm_id}", project=project, json=vm_body())
        assert (answer.status_code, told in answer.json()["detail"]) == (409, True)
    await host.report(minutes=1)
    answer = await world.call("PUT", f"/v1/vms/{vm_id}", json=vm_body())
    assert answer.status_code == 409
    shown = (await world.call("GET", "/v1/hosts/h2/quarantined")).json()["items"]
    assert [(vm["id"], vm["quarantine"]["destroy_at"] is not None) for vm in shown] == [(vm_id, True)]


async def test_a_project_adopts_nothing(world: World, host: Host) -> None:
    """S-31: what hosts hold is the operators'; one that vanished is no project's, either."""
    vm_id = await host.hold("web")
    await host.report()
    for choice in ("adopt", "quarantine", "leave"):
        answer = await world.call("POST", f"/v1/hosts/h2/foreign/{vm_id}/{choice}", project="default", json={})
        assert answer.status_code == 403
    await host.report(minutes=1)
    assert (await world.call("GET", f"/v1/vms/{vm_id}", project="default")).status_code == 404
    assert (await world.call("GET", f"/v1/vms/{vm_id}")).status_code == 200


async def test_a_restore_adopts_and_quarantines(world: World, host: Host) -> None:
    """H-R1, H-R2: what hosts hold and rows do not is adopted, quarantined or left, and no report changes that."""
    adopted, stopped, left = [await host.hold(name) for name in ("a", "b", "c")]
    await world.pool.execute("update hosts set instance_id = null where name = 'h1'")
    await host.report(pass_number=900)
    items = {item["vm_id"]: item for item in (await world.call("GET", "/v1/restore")).json()["items"]}
    assert {item["kind"] for item in items.values()} == {"unknown"}
    for vm_id, choice in ((adopted, "adopt"), (stopped, "quarantine"), (left, "leave")):
        assert choice in items[vm_id]["choices"]
        body = {"choice": choice, **({"project": "default"} if choice == "adopt" else {})}
        answer = await world.call("POST", f"/v1/restore/vms/{vm_id}", json=body)
        assert answer.status_code == 200, answer.text
    again = await world.call("POST", f"/v1/restore/vms/{adopted}", json={"choice": "leave"})
    assert again.status_code == 409
    assert (await world.call("POST", "/v1/restore/finish")).json()["behind"] is False
    found = await rows(world)
    assert {vm_id: row["deleted"] for vm_id, row in found.items()} == {adopted: False, stopped: True}
    assert found[adopted]["power_state"] == "running"
    assert found[stopped]["destroy_at"] - found[stopped]["quarantine_since"] >= timedelta(days=7)
    await host.report(epoch=2)
    await host.report(minutes=2, epoch=2)
    assert {vm_id: vm["choice"] for vm_id, vm in (await host.foreign()).items()} == {left: "left"}
    assert set(await rows(world)) == {adopted, stopped}
