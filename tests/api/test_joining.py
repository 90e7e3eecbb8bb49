"""How a host joins: one use, an end, a revocation, and what each refusal says to do (H-E1, S-40)."""

from __future__ import annotations

from typing import Any

import pytest

from model.credential import new_credential
from model.errors import Invalid
from model.join import JoinString
from tests.api.conftest import Answer, World, report_of, vm_body

REPLACE = "hostler host replace h9"


async def add(world: World, name: str = "h9", **body: Any) -> str:
    answer = await world.call("POST", "/v1/hosts", json={"name": name, **body})
    assert answer.status_code == 201, answer.text
    return JoinString.parse(answer.json()["join"]).token


async def trade(world: World, token: str, **body: Any) -> tuple[Answer, str]:
    """Trade a token as a host does; return the answer, and the credential that the host made."""
    text, credential = new_credential("hsh")
    body = {"credential_digest": credential.digest.hex(), "machine_id": "m1", **body}
    return await world.as_host(token, "POST", "/v1/host/join", json=body), text


async def report(world: World, credential: str, number: int, **changed: Any) -> Answer:
    return await world.as_host(credential, "POST", "/v1/host/report", json=report_of(number, **changed))


async def test_a_join_token_is_good_once(world: World) -> None:
    """H-E1: a second use is refused and says what to do; the host that lost the answer gets the same one again."""
    token = await add(world)
    body = {"credential_digest": new_credential("hsh")[1].digest.hex(), "machine_id": "m1"}
    first = await world.as_host(token, "POST", "/v1/host/join", json=body)
    again = await world.as_host(token, "POST", "/v1/host/join", json=body)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    second, credential = await trade(world, token)
    assert second.status_code == 401
    assert "used already" in second.json()["detail"]
    assert "hostler host revoke h9" in second.json()["detail"]
    assert (await report(world, credential, 1)).status_code == 401


async def test_a_join_token_ends(world: World) -> None:
    """H-E1: an expired, a revoked and an outdated one are each refused with what to do."""
    expired = await add(world)
    await world.pool.execute("update join_tokens set expires_at = now() - interval '1 second'")
    answer, _ = await trade(world, expired)
    assert (answer.status_code, "has expired" in answer.json()["detail"]) == (401, True)
    outdated, revoked = await add(world), await add(world)
    answer, _ = await trade(world, outdated)
    assert (answer.status_code, "another one was made after it" in answer.json()["detail"]) == (401, True)
    await world.call("POST", "/v1/hosts/h9/revoke")
    answer, credential = await trade(world, revoked)
    assert (answer.status_code, "was revoked" in answer.json()["detail"]) == (401, True)
    assert "hostler host add h9" in answer.json()["detail"]
    assert (await report(world, credential, 1)).status_code == 401
    unknown, _ = await trade(world, new_credential("hsj")[0])
    assert (unknown.status_code, "unknown" in unknown.json()["detail"]) == (401, True)


async def test_of_a_join_token_only_the_digest_is_kept(world: World) -> None:
    """S-40, S-42: neither token nor credential are in any row, nor in the audit trail."""
    token = await add(world)
    _, credential = await trade(world, token)
    for table in ("join_tokens", "hosts", "audit"):
        rows = str(await world.pool.fetch(f"select t::text from {table} t"))
        for secret in (token, credential):
            assert secret.split("_")[2][:64] not in rows
    actions = [row["action"] for row in await world.pool.fetch("select action from audit order by number")]
    assert actions[-2:] == ["host.add", "host.join"]


async def test_a_name_is_one_host(world: World) -> None:
    """H-E1: before it reported the same name is the same host; afterwards it takes `host replace`."""
    await add(world)
    token = await add(world)
    assert await world.pool.fetchval("select count(*) from hosts where name = 'h9'") == 1
    _, credential = await trade(world, token)
    assert (await report(world, credential, 1)).status_code == 200
    answer = await world.call("POST", "/v1/hosts", json={"name": "h9"})
    assert (answer.status_code, REPLACE in answer.json()["detail"]) == (409, True)


async def test_a_machine_takes_a_hosts_place(world: World) -> None:
    """H-E2: only after `host replace`, whose trade ends the credential before it; another host's directory never."""
    _, old = await trade(world, await add(world))
    await report(world, old, 1)
    assert (await report(world, old, 2, machine_id="m2")).status_code == 409
    answer = await world.call("POST", "/v1/hosts/h9/replace", json={})
    token = JoinString.parse(answer.json()["join"]).token
    assert (await report(world, old, 2)).status_code == 200, "until it is used the machine that is there works on"
    foreign, _ = await trade(world, token, host_id="another")
    assert (foreign.status_code, "belongs to host another" in foreign.json()["detail"]) == (409, True)
    taken, new = await trade(world, token, host_id=answer.json()["host_id"], machine_id="m2")
    assert taken.status_code == 201
    assert (await report(world, old, 3)).status_code == 401
    assert (await report(world, new, 4, machine_id="m2")).status_code == 200


async def test_a_revoked_host_is_heard_no_more(world: World) -> None:
    """S-40: at once, and the refusal says how it comes back; its rows stay."""
    _, credential = await trade(world, await add(world))
    await report(world, credential, 1)
    shown = await world.call("POST", "/v1/hosts/h9/revoke")
    assert (shown.status_code, shown.json()["name"]) == (200, "h9")
    refused = await report(world, credential, 2)
    assert (refused.status_code, REPLACE in refused.json()["detail"]) == (401, True)


async def test_a_host_in_maintenance_may_be_silent(world: World) -> None:
    """H-E2: until its time; nothing new comes to it, readiness says nothing of it, and it goes on when it is over."""
    _, credential = await trade(world, await add(world))
    await report(world, credential, 1)
    await world.pool.execute(
        "update hosts set last_report_at = now() - interval '1 hour' where name = 'h9'; "
        "update fleet set heard_at = now(), hearing_since = now() - interval '2 hours'"
    )
    assert (await world.parts.hosts.count())[1] == 1
    shown = (await world.call("POST", "/v1/hosts/h9/maintenance", json={"seconds": 3600})).json()
    assert (shown["status"], shown["silent"]) == ("maintenance", True)
    assert (await world.parts.hosts.count())[1] == 0
    refused = await world.call("POST", "/v1/vms", json=vm_body(host="h9"))
    assert (refused.status_code, "maintenance" in refused.json()["detail"]) == (409, True)
    assert (await world.call("POST", "/v1/hosts/h9/cordon")).status_code == 409
    await report(world, credential, 2)
    assert (await world.call("GET", "/v1/hosts/h9")).json()["status"] == "maintenance", "a report does not end it"
    await world.pool.execute("update hosts set maintenance_until = now(), last_report_at = now() - interval '1 hour'")
    assert (await world.parts.hosts.count())[1] == 2, "past its time silence counts again"
    assert (await world.call("POST", "/v1/hosts/h9/uncordon")).json()["status"] == "ready"


async def test_a_host_that_lost_its_state_shows(world: World) -> None:
    """H-E2, L-V9, H-E5: a new instance, an older copy, processes without a record, a revocation: each a condition."""
    _, credential = await trade(world, await add(world))
    await report(world, credential, 5)
    assert (await world.call("GET", "/v1/hosts/h9")).json()["conditions"] == []
    await report(world, credential, 3, unmanaged=2)
    await report(world, credential, 4, instance_id="i2", unmanaged=2)
    await world.call("POST", "/v1/hosts/h9/revoke")
    shown = (await world.call("GET", "/v1/hosts/h9")).json()["conditions"]
    assert [each["condition"] for each in shown] == ["state_lost", "rolled_back", "revoked", "unmanaged"]


async def test_credentials_end_and_are_renewed(world: World) -> None:
    """S-40: 90 days; from day 60 the host is told to renew, and the former one ends when the new one is used."""
    _, old = await trade(world, await add(world))
    assert not (await report(world, old, 1)).json()["renew_credential"]
    await world.pool.execute("update hosts set credential_until = credential_until - interval '61 days'")
    assert (await report(world, old, 2)).json()["renew_credential"]
    text, new = new_credential("hsh")
    body = {"credential_digest": new.digest.hex()}
    assert (await world.as_host(old, "POST", "/v1/host/credential", json=body)).status_code == 200
    assert (await report(world, old, 3)).status_code == 200, "the answer may have been lost"
    assert not (await report(world, text, 4)).json()["renew_credential"]
    assert (await report(world, old, 5)).status_code == 401
    await world.pool.execute("update hosts set credential_until = now()")
    refused = await report(world, text, 6)
    assert (refused.status_code, "has expired" in refused.json()["detail"]) == (401, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://h",
        "http://h#x",
        "ftp://h#{t}",
        "http://h:0#{t}",
        "http://h#{t}#sha256:00",
        "https://h#{t}#x",
        "#{t}",
    ],
)
def test_what_is_no_join_string_is_refused_without_it(text: str) -> None:
    """H-E1, S-42."""
    token = new_credential("hsj")[0]
    with pytest.raises(Invalid) as refused:
        JoinString.parse(text.format(t=token))
    assert token not in refused.value.detail


def test_a_join_string_is_one_line() -> None:
    """S-40: URL, token, and the fingerprint of the API's CA where TLS is on."""
    token, fingerprint = new_credential("hsj")[0], "sha256:" + "a" * 64
    for join in (
        JoinString(url="http://127.0.0.1:8460", token=token),
        JoinString(url="https://api.test", token=token, fingerprint=fingerprint),
    ):
        assert JoinString.parse(f"{join}\n") == join
        assert len(str(join).split()) == 1
