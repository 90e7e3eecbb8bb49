"""Tokens that callers make for others, and the trail of what was done (S-30, S-37)."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from model.credential import parse_credential
from store.audit import Actor, write_audit
from store.database import Pool, transaction
from tests.api.conftest import World


async def make(world: World, status: int = 201, **body: Any) -> Any:
    as_whom = {key: body.pop(key) for key in ("as_role", "as_project") if key in body}
    answer = await world.call(
        "POST",
        "/v1/tokens",
        role=as_whom.get("as_role"),
        project=as_whom.get("as_project"),
        json={"name": "ci", "role": "operator", **body},
    )
    assert answer.status_code == status, answer.text
    return answer.json()


async def call_with(world: World, token: str, path: str = "/v1/vms") -> Any:
    return await world.client.get(path, headers={"authorization": f"Bearer {token}"})


async def test_a_token_is_shown_once_and_ends_at_once(world: World) -> None:
    """S-30, S-42, A-2: recognisable, for its project and time alone, and nowhere to be found again."""
    made = await make(world, project="blue", expires_in_seconds=3600)
    text = made["token"]
    assert (made["role"], made["project"], parse_credential(text) is not None) == ("operator", "blue", True)
    await world.create("red")
    assert (await call_with(world, text)).json()["items"] == []
    assert (await call_with(world, text, "/v1/hosts")).status_code == 403
    listed = (await world.call("GET", "/v1/tokens")).json()["items"]
    (shown,) = [each for each in listed if each["id"] == made["id"]]
    assert shown["last_used_at"] is not None
    rows = str(
        [tuple(row) for table in ("tokens", "audit") for row in await world.pool.fetch(f"select * from {table}")]
    )
    assert text not in rows + str(listed)
    assert text.split("_")[2][:64] not in rows + str(listed)
    ended = (await world.call("DELETE", f"/v1/tokens/{made['id']}")).json()
    assert ended["revoked_at"] is not None
    assert (await call_with(world, text)).status_code == 401


@pytest.mark.parametrize(
    ("caller", "body", "status"),
    [
        ({"as_role": "operator"}, {"role": "admin"}, 403),
        ({"as_role": "viewer"}, {"role": "viewer"}, 403),
        ({"as_project": "blue"}, {"project": "red"}, 403),
        ({}, {"role": "admin", "project": "blue"}, 422),
        ({}, {"expires_in_seconds": 1}, 422),
        ({"as_role": "operator"}, {}, 201),
        ({}, {"role": "admin"}, 201),
    ],
)
async def test_none_makes_one_with_more_rights_than_its_own(
    world: World, caller: dict[str, str], body: dict[str, Any], status: int
) -> None:
    """S-30: neither a higher role, nor another project; a project's is never admin."""
    await make(world, status, **caller, **body)


async def test_a_projects_token_makes_and_sees_its_projects_alone(world: World) -> None:
    """S-30, S-31: whatever it leaves out."""
    made = await make(world, as_project="blue")
    assert made["project"] == "blue"
    foreign, higher = await make(world, project="red"), await make(world, role="admin")
    seen = (await world.call("GET", "/v1/tokens", project="blue")).json()["items"]
    assert {each["project"] for each in seen} == {"blue"}
    assert (await world.call("DELETE", f"/v1/tokens/{foreign['id']}", project="blue")).status_code == 404
    assert (await world.call("DELETE", f"/v1/tokens/{higher['id']}", role="operator")).status_code == 403
    assert (await call_with(world, higher["token"])).status_code == 200
    assert (await world.call("DELETE", f"/v1/tokens/{made['id']}", project="blue")).status_code == 200


async def test_the_trail_is_read_by_object_and_by_actor(world: World) -> None:
    """S-37, S-31: newest first, in pages; a project reads what was done in it."""
    vm, foreign = await world.create("blue", name="one"), await world.create("red", name="two")
    await world.call("PATCH", f"/v1/vms/{vm['id']}", project="blue", json={"labels": {"a": "b"}})
    found = (await world.call("GET", f"/v1/audit?object=vm/{vm['id']}", project="blue")).json()["items"]
    assert [each["action"] for each in found] == ["vm.change", "vm.create"]
    assert found[0]["actor"].startswith("token/")
    everything = (await world.call("GET", "/v1/audit", project="blue")).json()["items"]
    assert not [each for each in everything if foreign["id"] in each["object"]]
    mine = (await world.call("GET", f"/v1/audit?actor={found[0]['actor']}")).json()["items"]
    assert {each["actor"] for each in mine} == {found[0]["actor"]}
    first = (await world.call("GET", "/v1/audit?limit=1")).json()
    second = (await world.call("GET", f"/v1/audit?limit=1&cursor={first['next_cursor']}")).json()
    assert second["items"][0]["number"] < first["items"][0]["number"]


async def check(world: World, **query: str) -> Any:
    answer = await world.call("GET", "/v1/audit/check", params=query)
    return answer.json()


async def tamper(world: World, sql: str) -> None:
    """Do what only somebody can who owns the database: past its triggers and rights."""
    async with world.pool.acquire() as connection, connection.transaction():
        await connection.execute("grant update, delete on audit, audit_chain to current_user")
        await connection.execute("set local session_replication_role = replica")
        await connection.execute(sql)


async def test_the_trail_is_chained_in_the_order_of_commits(world: World) -> None:
    """S-37: entries of transactions that overlap hang together, each on the one that was committed before it."""
    async with transaction(world.pool) as early:
        await write_audit(early, Actor("early"), project="p", action="a", subject="vm/1")
        await write_audit(early, Actor("early"), project="p", action="b", subject="vm/1")
        async with transaction(world.pool) as late:
            await write_audit(late, Actor("late"), project="p", action="c", subject="vm/2")
    links = await world.pool.fetch(
        "select a.action from audit_chain c join audit a using (number) where a.project = 'p' order by c.position"
    )
    assert [each["action"] for each in links] == ["c", "a", "b"]
    found = await check(world)
    assert (found["broken"], found["entries"]) == (None, await world.pool.fetchval("select count(*) from audit"))
    await world.create(name="after")
    assert (await check(world, head=found["head"]))["broken"] is None


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("update audit set actor = 'nobody' where number = {n}", "entry {n} is not what was written"),
        ("delete from audit where number = {n}", "entry {n} is gone"),
        ("delete from audit_chain where number = {n}", "is not what was written"),
        (
            "insert into audit (project, actor, action, object) values ('p', 'me', 'a', 'o')",
            "was never chained",
        ),
    ],
)
async def test_what_was_changed_in_the_trail_shows(world: World, sql: str, told: str) -> None:
    """S-37: an entry that was changed, taken out, unhooked or slipped in, each is found."""
    for name in ("one", "two", "three"):
        await world.create(name=name)
    number = await world.pool.fetchval("select min(number) + 1 from audit")
    await tamper(world, sql.format(n=number))
    assert told.format(n=number) in (await check(world))["broken"]


async def test_a_trail_that_was_written_anew_is_told_by_a_hash_kept_elsewhere(world: World) -> None:
    """S-37: whoever owns the database may write a chain that fits, but not one with a hash that was kept."""
    await world.create(name="one")
    kept = (await check(world))["head"]
    await tamper(world, "update audit set actor = 'nobody'")
    await tamper(world, "delete from audit_chain")
    await world.pool.fetch("select chain_audit(a) from audit a order by number")
    assert (await check(world))["broken"] is None
    answer = await world.call("GET", "/v1/audit/check", params={"head": kept})
    assert (answer.status_code, "no entry of the audit trail has that hash" in answer.json()["detail"]) == (404, True)


@pytest.mark.parametrize(("table", "column"), [("audit", "actor"), ("audit_chain", "hash")])
@pytest.mark.parametrize("statement", ["update {t} set {c} = {c}", "delete from {t}", "truncate {t}"])
async def test_the_application_can_not_change_the_trail(pool: Pool, table: str, column: str, statement: str) -> None:
    """S-37: neither by a fault of ours, nor by SQL that somebody slips in."""
    with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.RaiseError)):
        await pool.execute(statement.format(t=table, c=column))
