"""One gate: who may call what, and that another project's row is none (S-30, S-31, S-23, A-2)."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from api.app import ROUTERS, bare_app
from api.gate import PartsOf
from api.route import GatedRoute, gate_of
from model.credential import new_credential
from model.ids import new_id
from store.token import TokenStore
from tests.api.conftest import ACTOR, IMAGE, World, judged, report_of, vm_body

ROLES = ("viewer", "operator", "admin")
# What every call takes: least role, whether a project's token may, whether it names a row of a project.
CALLS: dict[tuple[str, str], tuple[str, bool, bool]] = {
    ("POST", "/v1/vms"): ("operator", True, False),
    ("GET", "/v1/vms"): ("viewer", True, False),
    ("GET", "/v1/vms/{vm_id}"): ("viewer", True, True),
    ("PUT", "/v1/vms/{vm_id}"): ("operator", True, False),
    ("PATCH", "/v1/vms/{vm_id}"): ("operator", True, True),
    ("DELETE", "/v1/vms/{vm_id}"): ("operator", True, True),
    ("POST", "/v1/vms/{vm_id}/restart"): ("operator", True, True),
    ("POST", "/v1/vms/{vm_id}/rebuild"): ("operator", True, True),
    ("POST", "/v1/vms/{vm_id}/retry"): ("operator", True, True),
    ("POST", "/v1/vms/{vm_id}/undelete"): ("operator", True, True),
    ("PUT", "/v1/vms/{vm_id}/volumes/{volume}"): ("operator", True, True),
    ("DELETE", "/v1/vms/{vm_id}/volumes/{volume}"): ("operator", True, True),
    ("POST", "/v1/volumes"): ("operator", True, False),
    ("GET", "/v1/volumes"): ("viewer", True, False),
    ("GET", "/v1/volumes/{volume}"): ("viewer", True, True),
    ("PATCH", "/v1/volumes/{volume}"): ("operator", True, True),
    ("DELETE", "/v1/volumes/{volume}"): ("operator", True, True),
    ("POST", "/v1/volumes/{volume}/undelete"): ("operator", True, True),
    ("GET", "/v1/vms/{vm_id}/operations"): ("viewer", True, True),
    ("GET", "/v1/vms/{vm_id}/console"): ("operator", True, True),
    ("GET", "/v1/operations/{operation_id}"): ("viewer", True, True),
    ("POST", "/v1/images"): ("operator", True, False),
    ("GET", "/v1/images"): ("viewer", True, False),
    ("GET", "/v1/images/{image_id}"): ("viewer", True, True),
    ("GET", "/v1/ssh-ca"): ("viewer", True, False),
    ("POST", "/v1/hosts"): ("admin", False, False),
    ("GET", "/v1/hosts"): ("viewer", False, False),
    ("GET", "/v1/hosts/{host}"): ("viewer", False, False),
    ("POST", "/v1/hosts/{host}/replace"): ("admin", False, False),
    ("POST", "/v1/hosts/{host}/revoke"): ("admin", False, False),
    ("PATCH", "/v1/hosts/{host}"): ("operator", False, False),
    ("GET", "/v1/hosts/{host}/sets"): ("viewer", False, False),
    ("PUT", "/v1/hosts/{host}/sets/image-policies"): ("operator", False, False),
    ("PUT", "/v1/hosts/{host}/sets/privileged-addresses"): ("operator", False, False),
    ("PUT", "/v1/hosts/{host}/sets/wireguard-peers"): ("operator", False, False),
    ("PUT", "/v1/hosts/{host}/sets/gateway-routes"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/cordon"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/uncordon"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/maintenance"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/forget"): ("operator", False, False),
    ("GET", "/v1/hosts/{host}/forgotten"): ("viewer", False, False),
    ("GET", "/v1/restore"): ("viewer", False, False),
    ("POST", "/v1/restore/begin"): ("operator", False, False),
    ("POST", "/v1/restore/vms/{vm_id}"): ("operator", False, False),
    ("POST", "/v1/restore/finish"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/drain"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/drain/pause"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/drain/resume"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/undrain"): ("operator", False, False),
    ("DELETE", "/v1/hosts/{host}"): ("operator", False, False),
    ("POST", "/v1/rolls"): ("operator", False, False),
    ("GET", "/v1/rolls"): ("viewer", False, False),
    ("GET", "/v1/rolls/{roll_id}"): ("viewer", False, False),
    ("POST", "/v1/rolls/{roll_id}/pause"): ("operator", False, False),
    ("POST", "/v1/rolls/{roll_id}/resume"): ("operator", False, False),
    ("POST", "/v1/rolls/{roll_id}/cancel"): ("operator", False, False),
    ("POST", "/v1/tokens"): ("operator", True, False),
    ("GET", "/v1/tokens"): ("operator", True, False),
    ("DELETE", "/v1/tokens/{token_id}"): ("operator", True, True),
    ("GET", "/v1/conditions"): ("viewer", True, False),
    ("GET", "/metrics"): ("viewer", False, False),
    ("GET", "/v1/projects"): ("viewer", False, False),
    ("PATCH", "/v1/projects"): ("operator", False, False),
    ("GET", "/v1/projects/{project}"): ("viewer", True, False),
    ("PATCH", "/v1/projects/{project}"): ("operator", False, False),
    ("GET", "/v1/audit"): ("operator", True, False),
    ("GET", "/v1/audit/check"): ("operator", False, False),
    ("GET", "/v1/floor"): ("viewer", False, False),
    ("PUT", "/v1/floor"): ("admin", False, False),
    ("GET", "/v1/freezes"): ("viewer", False, False),
    ("GET", "/v1/upgrade"): ("viewer", False, False),
    ("POST", "/v1/freeze"): ("operator", False, False),
    ("POST", "/v1/unfreeze"): ("operator", False, False),
    ("GET", "/v1/hosts/{host}/quarantined"): ("viewer", False, False),
    ("GET", "/v1/hosts/{host}/foreign"): ("viewer", False, False),
    ("POST", "/v1/hosts/{host}/foreign/{vm_id}/adopt"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/foreign/{vm_id}/quarantine"): ("operator", False, False),
    ("POST", "/v1/hosts/{host}/foreign/{vm_id}/leave"): ("operator", False, False),
    ("GET", "/v1/hosts/{host}/foreign-volumes"): ("viewer", False, False),
    ("POST", "/v1/hosts/{host}/foreign-volumes/{volume}/adopt"): ("operator", False, False),
}
HOST_CALLS = {
    ("POST", "/v1/host/report"),
    ("GET", "/v1/host/release"),
    ("POST", "/v1/host/credential"),
    ("GET", "/v1/host/vms/{vm_id}/input"),
    ("POST", "/v1/host/vms/{vm_id}/certificate"),
    ("GET", "/v1/host/sets"),
    ("GET", "/v1/host/errands"),
    ("POST", "/v1/host/errands/{errand_id}"),
}
JOIN_CALLS = {("POST", "/v1/host/join")}
OPEN_CALLS = {("GET", "/healthz"), ("GET", "/readyz")}


def routes() -> list[APIRoute]:
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def key_of(route: APIRoute) -> tuple[str, str]:
    (method,) = route.methods
    return method, route.path


def filled(path: str, value: str) -> str:
    for name in ("vm_id", "operation_id", "image_id", "errand_id", "roll_id", "token_id", "project", "host"):
        path = path.replace("{" + name + "}", value)
    # Alone it names a row; beside a VM it is whatever that one has not.
    return path.replace("{volume}", "data" if "/vms/" in path else value)


def body_of(method: str, path: str) -> dict[str, Any]:
    bodies: dict[tuple[str, str], dict[str, Any]] = {
        ("POST", "/v1/vms"): vm_body(),
        ("PUT", "/v1/vms/{vm_id}"): vm_body(),
        ("PATCH", "/v1/vms/{vm_id}"): {},
        ("POST", "/v1/vms/{vm_id}/rebuild"): {},
        ("POST", "/v1/images"): {"name": "demo", "rootfs": IMAGE},
        ("POST", "/v1/volumes"): {"name": "v1", "size_gib": 1},
        ("POST", "/v1/hosts/{host}/foreign-volumes/{volume}/adopt"): {"name": "v2"},
        ("PATCH", "/v1/volumes/{volume}"): {"size_gib": 2},
        ("POST", "/v1/hosts"): {"name": "h2"},
        ("POST", "/v1/hosts/{host}/forget"): {"name": "h2"},
        ("POST", "/v1/hosts/{host}/replace"): {},
        ("POST", "/v1/hosts/{host}/maintenance"): {"seconds": 60},
        ("POST", "/v1/restore/vms/{vm_id}"): {"choice": "leave"},
        ("POST", "/v1/hosts/{host}/drain"): {},
        ("POST", "/v1/freeze"): {"host": "none-such"},
        ("POST", "/v1/unfreeze"): {},
        ("PUT", "/v1/floor"): {"min_worker_version": None},
        ("POST", "/v1/rolls"): {},
        ("PATCH", "/v1/projects"): {},
        ("PATCH", "/v1/projects/{project}"): {},
        ("POST", "/v1/tokens"): {"name": "t", "role": "viewer"},
    }
    bodies |= {call: {"items": []} for call in CALLS if call[0] == "PUT" and "/sets/" in call[1]}
    return {"json": bodies[method, path]} if (method, path) in bodies else {}


def test_every_route_declares_who_may_call_it() -> None:
    """S-31: a route without a gate, or one that this table does not know, is a defect."""
    gated = [route for route in routes() if key_of(route) not in OPEN_CALLS]
    declared = {key_of(route): gate_of(route).hostler_role for route in gated}  # type: ignore[attr-defined]
    wanted = {call: role for call, (role, _, _) in CALLS.items()} | dict.fromkeys(HOST_CALLS, "host")
    wanted |= dict.fromkeys(JOIN_CALLS, "join")
    assert declared == wanted
    assert {key_of(route) for route in routes()} >= OPEN_CALLS
    documented = {(m.upper(), path) for path, calls in bare_app().openapi()["paths"].items() for m in calls}
    assert documented == set(wanted) - {("GET", "/metrics")} | OPEN_CALLS


def test_a_route_without_a_gate_cannot_be_made() -> None:
    """S-31."""
    router = APIRouter(route_class=GatedRoute)

    async def open_to_all(parts: PartsOf) -> None: ...

    with pytest.raises(TypeError, match="one gate"):
        router.get("/v1/open")(open_to_all)


async def test_roles_and_projects(world: World) -> None:
    """S-31, A-2: each route by each role, with and without a project."""
    for (method, path), (least, for_projects, _) in CALLS.items():
        for role in ROLES:
            for project in (None, "p1") if role != "admin" else (None,):
                answer = await world.call(
                    method, filled(path, new_id()), role=role, project=project, **body_of(method, path)
                )
                enough = ROLES.index(role) >= ROLES.index(least) and (project is None or for_projects)
                assert (answer.status_code != 403) == enough, (method, path, role, project, answer.text)
                assert answer.status_code != 401


async def test_without_a_valid_credential_nothing_is_read(world: World) -> None:
    """S-30, S-31: also where the body or the id is no good, the credential is judged first."""
    _, host = await world.add_host()
    token = await world.token()
    broken = token[:-1] + ("0" if token[-1] != "0" else "1")
    stranger, _ = new_credential("hst")
    for method, path in [*CALLS, *HOST_CALLS, *JOIN_CALLS]:
        for sent in (None, "", "Bearer", "Basic eA==", f"Bearer {broken}", f"Bearer {stranger}", "Bearer ä"):
            headers = {"authorization": sent.encode("latin-1")} if sent is not None else {}
            answer = await world.client.request(
                method, filled(path, "NO-id"), headers={**headers, "content-type": "text/plain"}, content=b"{"
            )
            assert judged(answer).status_code == 401, (method, path, sent)
            assert answer.headers["www-authenticate"] == "Bearer"
    for method, path in CALLS:
        assert (await world.as_host(host, method, filled(path, new_id()))).status_code == 401
    for method, path in HOST_CALLS | JOIN_CALLS:
        assert (await world.as_host(token, method, filled(path, new_id()))).status_code == 401


async def test_a_token_ends_at_once(world: World) -> None:
    """S-30: revoked and expired ones are as good as unknown."""
    token = await world.token("viewer")
    assert (await world.call("GET", "/v1/vms", role="viewer")).status_code == 200
    await TokenStore(world.pool).revoke(None, token.split("_")[1], ACTOR)
    assert (await world.call("GET", "/v1/vms", role="viewer")).status_code == 401
    await world.token("operator", days=-1)
    assert (await world.call("GET", "/v1/vms", role="operator")).status_code == 401


async def test_another_projects_row_is_none(world: World) -> None:
    """S-31, S-23: byte for byte what an id that never was gets; and nothing happens to the row."""
    vm = await world.create("p1", name="secret-name")
    image = await world.call("POST", "/v1/images", project="p1", role="operator", json={"name": "own", "rootfs": IMAGE})
    before = (await world.call("GET", f"/v1/vms/{vm['id']}", project="p1")).json()
    theirs = {"vm_id": vm["id"], "operation_id": vm["operation"]["id"], "image_id": image.json()["id"]}
    volume = await world.call("POST", "/v1/volumes", project="p1", role="operator", json={"name": "v", "size_gib": 1})
    theirs["volume"] = volume.json()["id"]
    token = await world.call("POST", "/v1/tokens", project="p1", json={"name": "t", "role": "viewer"})
    theirs["token_id"] = token.json()["id"]
    for (method, path), (_, _, names_row) in CALLS.items():
        if not names_row:
            continue
        name = path[path.index("{") + 1 : path.index("}")]
        nobodys = new_id()
        answers = []
        for value in (theirs[name], nobodys):
            answer = await world.call(method, filled(path, value), project="p2", **body_of(method, path))
            assert answer.status_code == 404, (method, path, answer.text)
            answers.append((answer.text.replace(value, "ID"), answer.headers.multi_items()))
        names = [{name for name, _ in headers} for _, headers in answers]
        assert answers[0][0] == answers[1][0]
        assert names[0] == names[1]
    assert (await world.call("GET", f"/v1/vms/{vm['id']}", project="p1")).json() == before
    for path in ("/v1/vms", "/v1/images", "/v1/volumes", "/v1/vms?name=secret-name"):
        assert (await world.call("GET", path, project="p2")).json()["items"] == []


async def test_a_project_cannot_take_anothers_id(world: World) -> None:
    """S-20, L-N4: not available, without more; and a project's own id is a UUID."""
    vm = await world.create("p1")
    answer = await world.call("PUT", f"/v1/vms/{vm['id']}", project="p2", json=vm_body())
    assert (answer.status_code, answer.json()["detail"]) == (409, f"the id {vm['id']} is not available")
    answer = await world.call("PUT", "/v1/vms/web", project="p2", json=vm_body())
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "vm_id"


async def test_a_project_sees_nothing_of_the_fleet(world: World) -> None:
    """S-32, A-2: no host, no link to the Temporal UI, no path; and it chooses neither host nor a shorter grace."""
    world.parts.ui_url = "http://127.0.0.1:8233"
    vm = await world.create("p1")
    assert vm["host"] is None
    assert vm["operation"]["link"] is None
    every = (await world.call("GET", f"/v1/vms/{vm['id']}")).json()
    assert every["host"]["name"] == "h1"
    assert every["operation"]["link"].startswith("http://127.0.0.1:8233/namespaces/default/workflows/vm")
    refused = [
        await world.call("POST", "/v1/vms", project="p1", json=vm_body(host="h1")),
        await world.call("GET", "/v1/vms?host=h1", project="p1"),
        await world.call("DELETE", f"/v1/vms/{vm['id']}?now=true", project="p1"),
        await world.call("DELETE", f"/v1/vms/{vm['id']}?grace=23h", project="p1"),
        await world.call("POST", "/v1/vms", project="p1", json=vm_body(image={"url": "file:///x", "sha256": "a" * 64})),
        await world.call("POST", "/v1/images", project="p1", json={"name": "public/x", "rootfs": IMAGE}),
    ]
    assert [answer.status_code for answer in refused] == [403] * len(refused)
    rootfs = {"url": "file:///srv/images/demo.qcow2", "sha256": "a" * 64}
    image = await world.call("POST", "/v1/images", json={"name": "demo", "rootfs": rootfs})
    seen = await world.call("GET", f"/v1/images/{image.json()['id']}", project="p1")
    assert (seen.json()["rootfs"]["url"], image.json()["rootfs"]["url"]) == (None, rootfs["url"])


async def test_a_hosts_credential_is_good_for_its_own_alone(world: World) -> None:
    """A-2, S-5: another host's VM is none, with the right digest too."""
    _, other = await world.add_host(name="h2", instance_id=None)
    vm = await world.create(host="h1")
    digest = await world.pool.fetchval("select input_digest from vms where id = $1", vm["id"])
    answer = await world.as_host(other, "GET", f"/v1/host/vms/{vm['id']}/input?digest={digest}")
    assert answer.status_code == 404
    assert (await world.as_host(other, "POST", "/v1/host/report", json=report_of(1))).status_code == 200
    await world.pool.execute("update hosts set status = 'forgotten' where name = 'h2'")
    assert (await world.as_host(other, "POST", "/v1/host/report", json=report_of(2))).status_code == 200
    for method, path in HOST_CALLS - {("POST", "/v1/host/report")}:
        assert (await world.as_host(other, method, filled(path, new_id()))).status_code == 403, path
