"""`GET /v1/upgrade`: what is in the way, of what rows and Temporal tell (H-D4)."""

from __future__ import annotations

from model.versions import VERSION
from store.audit import Actor
from store.floor import set_floor
from store.migrate import read_migrations
from tests.api.conftest import World


async def test_what_is_in_the_way_is_named(world: World) -> None:
    """H-D4: to those who may see hosts; `h1` of this release is in nobody's way, nor is one that was given up."""
    await world.pool.execute("update hosts set worker_version = $1", VERSION)
    await world.add_host(name="h2", worker_version="0.1.0")
    await world.add_host(name="h3", worker_version="99.0.0")
    await world.add_host(name="h4", worker_version="0.1.0", status="forgotten", forgotten_at=None)
    await set_floor(world.pool, "98.0.0", Actor("test"))
    assert (await world.call("GET", "/v1/upgrade", role="operator", project="p")).status_code == 403
    shown = (await world.call("GET", "/v1/upgrade", role="viewer")).json()
    assert (shown["release"], shown["migrations"], shown["build"]) == (VERSION, len(read_migrations()), None)
    assert {host["name"]: host["version"] for host in shown["hosts"]} == {"h1": VERSION, "h2": "0.1.0", "h3": "99.0.0"}
    what = [each["what"] for each in shown["obstacles"]]
    assert what == ["control workers", "host h2", "host h3", "floor", "floor", "floor"]
    assert all(each["found"] and each["advice"] for each in shown["obstacles"])
    ahead = (await world.call("GET", "/v1/upgrade", role="viewer", params={"to": "97.0.0"})).json()
    assert [each["what"] for each in ahead["obstacles"]][-2:] == ["release", "floor"]


async def test_a_schema_of_another_release_is_in_the_way(world: World) -> None:
    """H-D4."""
    await world.pool.execute("insert into migrations (number, name, checksum) values (9999, 'new', '')")
    (first, *_) = (await world.call("GET", "/v1/upgrade")).json()["obstacles"]
    assert (first["what"], first["found"][:18]) == ("schema", "has migration 9999")
