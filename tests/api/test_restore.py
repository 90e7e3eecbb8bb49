"""The restore over HTTP: shown, settled, finished, with who did it (H-R1)."""

from __future__ import annotations

from tests.api.conftest import World, report_of, vm_report


async def test_a_restore_is_settled_over_the_api(world: World) -> None:
    """H-R1: whole, from the host's report to the new epoch that it hears."""
    _, credential = await world.add_host(name="h2", instance_id="i1")
    report = report_of(1, [vm_report("stray")], pass_number=900, epoch=1)
    assert (await world.as_host(credential, "POST", "/v1/host/report", json=report)).status_code == 200
    shown = (await world.call("GET", "/v1/restore", role="viewer")).json()
    assert (shown["behind"], "h2 has seen pass 900" in shown["why"], shown["unheard"][0]["name"]) == (True, True, "h1")
    (item,) = shown["items"]
    assert (item["kind"], item["choices"], item["choice"], item["power_state"]) == (
        "unknown",
        ["adopt", "quarantine", "leave"],
        None,
        "running",
    )
    assert (await world.client.get("/readyz")).json() == {"status": "behind"}
    refused = await world.call("POST", "/v1/restore/finish")
    assert (refused.status_code, "not all hosts have told what they hold: h1" in refused.json()["detail"]) == (
        409,
        True,
    )
    await world.pool.execute("update hosts set instance_id = null where name = 'h1'")
    for body, status in (({"choice": "host"}, 422), ({"choice": "eat"}, 422), ({"choice": "leave", "host": "h2"}, 200)):
        answer = await world.call("POST", "/v1/restore/vms/stray", role="operator", json=body)
        assert answer.status_code == status, answer.text
    done = await world.call("POST", "/v1/restore/finish", role="operator")
    assert (done.json()["behind"], done.json()["epoch"]) == (False, 2)
    answer = await world.as_host(credential, "POST", "/v1/host/report", json={**report, "number": 2})
    assert answer.json()["epoch"] == 2
    trail = await world.pool.fetch("select action, actor from audit where action like 'restore.%' order by number")
    assert [row["action"] for row in trail] == ["restore.settle", "restore.finish"]
    assert all(row["actor"].startswith("token/") for row in trail)


async def test_a_number_that_could_not_be_gone_above_is_refused(world: World) -> None:
    """S-1, H-R1: the fleet's own numbers go on above those that hosts tell."""
    _, credential = await world.add_host(name="h2", instance_id="i1")
    for name in ("pass_number", "epoch"):
        answer = await world.as_host(credential, "POST", "/v1/host/report", json=report_of(1, **{name: (1 << 63) - 1}))
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/{name}")
    assert not await world.pool.fetchval("select behind from fleet")
