"""Lists page by page while rows come and go (A-5, N1, N2, I9)."""

from __future__ import annotations

from typing import Any

from model.ids import new_id
from tests.api.conftest import IMAGE, World, vm_body
from tests.fixtures.rows import add_vm


async def pages(world: World, path: str, **query: Any) -> list[dict[str, Any]]:
    """Follow a list to its end; it must have one."""
    items: list[dict[str, Any]] = []
    cursor, seen = None, set()
    while True:
        answer = await world.call("GET", path, params={**query, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        items += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return items
        assert cursor not in seen
        seen.add(cursor)


async def test_each_survivor_once_while_rows_come_and_go(world: World) -> None:
    """N1, N2: also when the very item that the cursor names is destroyed."""
    vms = [(await world.create())["id"] for _ in range(25)]
    first = (await world.call("GET", "/v1/vms?limit=10")).json()
    assert [vm["id"] for vm in first["items"]] == vms[:10]
    await world.pool.execute("delete from operations where vm_id = $1", vms[9])
    await world.pool.execute("delete from vms where id = any($1)", [vms[9], vms[15]])
    await world.call("DELETE", f"/v1/vms/{vms[16]}")
    late = (await world.create())["id"]
    items = first["items"] + await pages(world, "/v1/vms", limit=10, cursor=first["next_cursor"])
    ids = [vm["id"] for vm in items]
    assert ids == [*vms[:15], *vms[16:], late]
    assert [vm["id"] for vm in await pages(world, "/v1/vms", limit=7, phase="quarantined")] == [vms[16]]


async def test_pages_of_every_size_end(world: World) -> None:
    """A-5: exactly full pages too."""
    vms = [(await world.create())["id"] for _ in range(4)]
    for limit in range(1, 6):
        assert [vm["id"] for vm in await pages(world, "/v1/vms", limit=limit)] == vms
    for number in range(3):
        await world.call("POST", "/v1/images", json={"name": f"i{number}", "rootfs": IMAGE})
        await world.add_host(name=f"more-{number}")
    assert [image["name"] for image in await pages(world, "/v1/images", limit=1)] == ["i0", "i1", "i2"]
    assert len(await pages(world, "/v1/hosts", limit=3)) == 4
    for _ in range(4):
        await world.call("POST", f"/v1/vms/{vms[0]}/restart")
    kinds = [o["kind"] for o in await pages(world, f"/v1/vms/{vms[0]}/operations", limit=2)]
    assert kinds == ["restart"] * 4 + ["create"]


async def test_filters(world: World) -> None:
    """A-5: by host, phase, power state, label, image, name."""
    await world.add_host(name="h2")
    await world.call("POST", "/v1/images", json={"name": "demo", "rootfs": IMAGE})
    one = await world.create(name="one", host="h1", labels={"tier": "web", "a": ""})
    two = await world.create(name="two", host="h2", image="demo")
    await world.pool.execute(
        "update vms set observed_power_state = 'stopped', phase = 'ready' where id = $1", two["id"]
    )
    for query, found in (
        ("host=h1", one),
        (f"host={two['host']['id']}", two),
        ("phase=ready", two),
        ("phase=creating", one),
        ("power_state=stopped", two),
        ("label=tier=web", one),
        ("label=a", one),
        ("image=demo", two),
        ("name=one", one),
        ("name=one&host=h1&label=tier=web", one),
    ):
        items = (await world.call("GET", f"/v1/vms?{query}")).json()["items"]
        assert [vm["id"] for vm in items] == [found["id"]], query
    assert (await world.call("GET", "/v1/vms?label=tier=db")).json()["items"] == []


async def test_one_odd_row_breaks_no_list(world: World) -> None:
    """I9: no host report, no address, no process, an unreadable record, a phase of its own: 200 with nulls."""
    host_id, _ = await world.add_host(name="h2", instance_id=None, last_report_at=None)
    fine = await world.create(host="h1")
    odd = await add_vm(world.pool, host_id, unreadable="config.json: not JSON", phase="failed", observed_revision=-1)
    document = (await world.call("GET", f"/v1/vms/{odd}")).json()
    assert (document["power_state"], document["addresses"]["ip"], document["last_seen_at"]) == (None, None, None)
    assert document["last_error"] == "config.json: not JSON"
    ids = {vm["id"] for vm in (await world.call("GET", "/v1/vms")).json()["items"]}
    assert ids == {fine["id"], odd}
    await world.pool.execute("update hosts set last_report_at = now() - interval '1 day'")
    await world.pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 day'")
    shown = (await world.call("GET", f"/v1/vms/{fine['id']}")).json()
    assert (shown["phase"], shown["power_state"]) == ("unknown", None)
    assert shown["last_known"]["phase"] == "creating"
    assert shown["why"]["waits_for"] == "host_away"
    assert "h1" in shown["why"]["sentence"]


async def test_a_project_reads_no_hosts_name_in_why(world: World) -> None:
    """S-32, H-S10: what is waited for is said to everybody, the fleet's names are not."""
    vm = await world.create("p1")
    path = f"/v1/vms/{vm['id']}"
    for sql, word in (
        ("update vms set wake = wake", "work"),
        ("update vms set due_at = now() - interval '5 minutes'", "control_plane"),
        ("update vms set due_at = now() + interval '1 minute', waiting_for = 'host_queue'", "host_queue"),
        ("update vms set held = true, held_by = 'a drain'", "hold"),
        ("update hosts set last_report_at = null", "host_away"),
    ):
        await world.pool.execute(sql)
        why = (await world.call("GET", path, project="p1")).json()["why"]
        assert (why["waits_for"], "h1" in why["sentence"]) == (word, False), (sql, why)
    await world.pool.execute("update vms set due_at = null, waiting_for = null")
    assert (await world.call("GET", path, project="p1")).json()["why"] is None


async def test_a_list_shows_no_more_than_its_page(world: World) -> None:
    """A-5: nothing at all is a page too."""
    assert (await world.call("GET", "/v1/vms")).json() == {"items": [], "next_cursor": None}
    assert (await world.call("GET", f"/v1/vms/{new_id()}/operations")).status_code == 404
    await world.call("POST", "/v1/vms", json=vm_body())
    assert (await world.call("GET", "/v1/vms?limit=1")).json()["next_cursor"] is None
