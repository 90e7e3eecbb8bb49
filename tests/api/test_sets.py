"""A host's sets: set by operators, whole, handed to the host alone, called for by its reports (H-S1 to H-S5, D-5)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.api.conftest import ACTOR, IMAGE, World, report_of

KEY = "A" * 43 + "="
SIGNED = {"url": "https://images.test/root.qcow2?signature=hidden", "sha256": "b" * 64}
PEER = {"public_key": KEY, "endpoint": "192.0.2.1:51820", "allowed_networks": ["10.9.0.0/24"]}
ROUTE = {"destination": "10.8.0.0/16", "gateway": "10.9.0.1"}


async def add_image(world: World, name: str = "demo", project: str | None = None, **file: Any) -> dict[str, Any]:
    body = {"name": name, "rootfs": file or IMAGE}
    answer = await world.call("POST", "/v1/images", role="operator", project=project, json=body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def put(world: World, kind: str, *items: Any, host: str = "h1") -> dict[str, Any]:
    answer = await world.call("PUT", f"/v1/hosts/{host}/sets/{kind}", role="operator", json={"items": list(items)})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def host_row(world: World, name: str = "h2") -> dict[str, Any]:
    return dict(await world.pool.fetchrow("select * from hosts where name = $1", name))


async def test_each_set_is_replaced_whole_and_audited(world: World) -> None:
    """H-S1, S-37: a revision for each change, none for what is wanted already; an empty list empties the set."""
    await add_image(world)
    await put(world, "image-policies", "public/demo")
    await put(world, "wireguard-peers", PEER)
    await put(world, "gateway-routes", ROUTE)
    told = await put(world, "privileged-addresses", "10.84.0.9", "2001:db8::1", "10.84.0.9")
    assert (told["image_policies"], told["privileged_addresses"]) == (["public/demo"], ["10.84.0.9", "2001:db8::1"])
    assert (told["wireguard_peers"], told["gateway_routes"]) == ([PEER], [ROUTE])
    assert (told["revision"], told["acknowledged"], told["pending"]) == (4, None, True)
    assert (await put(world, "wireguard-peers", PEER))["revision"] == 4
    assert (await put(world, "wireguard-peers"))["wireguard_peers"] == []
    assert (await world.call("GET", "/v1/hosts/h1/sets", role="viewer")).json()["revision"] == 5
    entries = await world.pool.fetch(
        "select action, before, after from audit where action like 'host.sets.%' order by number"
    )
    assert [entry["action"].removeprefix("host.sets.") for entry in entries] == [
        "image_policies",
        "wireguard_peers",
        "gateway_routes",
        "privileged_addresses",
        "wireguard_peers",
    ]
    assert (entries[-1]["before"], entries[-1]["after"]) == ({"wireguard_peers": [PEER]}, {"wireguard_peers": []})


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("image-policies", ["public/none"]),
        ("image-policies", ["none"]),
        ("privileged-addresses", ["10.84.0.300"]),
        ("wireguard-peers", [{"public_key": "short"}]),
        ("wireguard-peers", [{"public_key": KEY}, {"public_key": KEY}]),
        ("wireguard-peers", [{"public_key": KEY, "endpoint": "a\n:1"}]),
        ("gateway-routes", [{"destination": "10.8.0.1/16", "gateway": "10.9.0.1"}]),
        ("gateway-routes", [{"destination": "2001:db8::/32", "gateway": "10.9.0.1"}]),
        ("gateway-routes", [ROUTE, ROUTE]),
    ],
)
async def test_what_is_no_set_changes_nothing(world: World, kind: str, items: list[Any]) -> None:
    """A-8: refused with the place of what is wrong."""
    answer = await world.call("PUT", f"/v1/hosts/h1/sets/{kind}", json={"items": items})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("/items")
    assert (await world.call("GET", "/v1/hosts/h1/sets")).json()["revision"] == 0


async def test_the_host_alone_is_handed_its_sets_at_their_revision(world: World) -> None:
    """H-S1, S-5, S-33: with the whole URLs, which nobody else is shown; each image belongs to its owner (S-19)."""
    _, credential = await world.add_host(name="h2")
    _, other = await world.add_host(name="h3")
    await add_image(world, **SIGNED)
    await add_image(world, "own", "red")
    told = await put(world, "image-policies", "demo", "red/own", host="h2")
    assert told["image_policies"] == ["public/demo", "red/own"]
    assert "hidden" not in str(told)
    answer = await world.as_host(credential, "GET", "/v1/host/sets?revision=1")
    found = answer.json()["image_policies"]
    assert [(each["reference"], each["owner"]) for each in found] == [("public/demo", "public"), ("red/own", "red")]
    assert found[0]["rootfs"]["url"] == SIGNED["url"]
    assert (await world.as_host(credential, "GET", "/v1/host/sets?revision=2")).status_code == 409
    assert (await world.as_host(other, "GET", "/v1/host/sets?revision=0")).json()["image_policies"] == []
    assert (await world.as_host(other, "GET", "/v1/host/sets?revision=1")).status_code == 409


async def test_an_image_whose_name_is_removed_is_no_policys_any_more(world: World) -> None:
    """D-5, H-S1: its hosts are synced."""
    image = await add_image(world)
    await add_image(world, "other")
    await put(world, "image-policies", "demo", "other")
    await world.parts.images.remove(None, image["id"], ACTOR)
    shown = (await world.call("GET", "/v1/hosts/h1/sets")).json()
    assert (shown["image_policies"], shown["revision"], shown["pending"]) == (["public/other"], 2, True)


async def settled(world: World, credential: str, **synced: Any) -> None:
    """Let h2 report, be given sets, and have them taken over under its instance and this epoch."""
    await world.as_host(credential, "POST", "/v1/host/report", json=report_of(1))
    told = {"revision": 1, "instance_id": "i1", "epoch": 1, **synced}
    await world.pool.execute(
        "update hosts set sets_revision = 1, synced = $1, due_at = null, wake = 0 where name = 'h2'", told
    )


async def due_in(world: World) -> float | None:
    return await world.pool.fetchval("select extract(epoch from due_at - now())::float from hosts where name = 'h2'")


@pytest.mark.parametrize("why", ["nothing", "newer sets", "another instance", "another epoch", "silence", "no sets"])
async def test_a_sync_is_called_for_by_what_changed(world: World, why: str) -> None:
    """H-S1, H-S12: by newer sets, another instance or epoch, or a silence; what wakes all hosts is spread over 30 s."""
    _, credential = await world.add_host(name="h2", instance_id=None, last_report_at=None)
    await settled(world, credential, **({"revision": 0} if why == "newer sets" else {}))
    report = report_of(2, instance_id="i2" if why == "another instance" else "i1")
    if why == "another epoch":
        await world.pool.execute("update fleet set epoch = 2")
    elif why == "silence":
        await world.pool.execute("update hosts set last_report_at = now() - interval '1 hour' where name = 'h2'")
        await world.pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 day'")
    elif why == "no sets":
        await world.pool.execute("update hosts set sets_revision = 0, synced = '{}' where name = 'h2'")
    await world.as_host(credential, "POST", "/v1/host/report", json=report)
    due, wake = await due_in(world), (await host_row(world))["wake"]
    if why in ("nothing", "no sets"):
        assert (due, wake) == (None, 0)
        return
    assert wake == 1
    assert due is not None
    if why in ("another epoch", "silence"):
        assert due <= 30
        assert due > -5
    else:
        assert due <= 0


async def test_first_contact_of_many_hosts_is_spread(world: World) -> None:
    """H-S12: after a restore no two of twenty hosts are synced in the same moment, all within 30 s."""
    credentials: list[str] = []
    for number in range(20):
        _, credential = await world.add_host(name=f"m{number}", instance_id=None, last_report_at=None)
        await world.as_host(credential, "POST", "/v1/host/report", json=report_of(1, instance_id=f"i{number}"))
        credentials.append(credential)
    await world.pool.execute(
        """update hosts set sets_revision = 1, due_at = null,
            synced = jsonb_build_object('revision', 1, 'epoch', 1, 'instance_id', instance_id) where name like 'm%'"""
    )
    await world.pool.execute("update fleet set epoch = 2")
    for number, credential in enumerate(credentials):
        report = report_of(2, instance_id=f"i{number}", whole=False)
        await world.as_host(credential, "POST", "/v1/host/report", json=report)
    times = [row[0] for row in await world.pool.fetch("select due_at from hosts where name like 'm%' order by due_at")]
    assert None not in times
    spread = (times[-1] - times[0]).total_seconds()
    assert 10 < spread < 35
    assert max((b - a).total_seconds() for a, b in pairwise(times)) < spread / 2


@pytest.mark.parametrize("why", ["floored", "outdated", "behind", "forgotten", "under way"])
async def test_a_report_wakes_no_sync_that_could_not_begin(world: World, why: str) -> None:
    """H-S5, H-D4, H-R1: nor one that is under way, which sees for itself."""
    _, credential = await world.add_host(name="h2", instance_id=None, last_report_at=None)
    await settled(world, credential, revision=0)
    report = report_of(2)
    if why == "floored":
        await world.pool.execute("update fleet set min_worker_version = '1.4.0'")
        report["worker_version"] = "1.2.0"
    elif why == "outdated":
        report["activity_names"] = ["find_vm"]
    elif why == "behind":
        await world.pool.execute("update fleet set behind = true, behind_since = now(), behind_why = 'x'")
    elif why == "forgotten":
        pass_number = "forgotten_at = now(), forgotten_pass = 1"
        await world.pool.execute(f"update hosts set status = 'forgotten', {pass_number} where name = 'h2'")
    else:
        await world.pool.execute("update hosts set due_at = now() + interval '2 minutes' where name = 'h2'")
    assert (await world.as_host(credential, "POST", "/v1/host/report", json=report)).status_code == 200
    assert (await host_row(world))["wake"] == 0
