"""Whatever is sent: a problem document that names the place, never a 500, never the input (A-1, N5, N6, N7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.route import parse_json
from model.errors import Malformed
from model.ids import new_id
from tests.api.conftest import IMAGE, KEY, SHA, Answer, World, report_of, vm_body, vm_report

BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/vms"): vm_body(),
    ("PUT", f"/v1/vms/{new_id()}"): vm_body(),
    ("PATCH", "/v1/vms/there"): {"disk_gib": 3},
    ("POST", "/v1/images"): {"name": "demo", "rootfs": IMAGE, "kernel": IMAGE, "command_line": "console=ttyS0"},
    ("POST", "/v1/hosts"): {"name": "h2"},
    ("POST", "/v1/host/report"): report_of(1, [vm_report("there", unreadable="x")]),
}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"{}x", "application/json"),
        (b'{"name": NaN}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"a":' * 20_000, "application/json"),
        (b'{"memory_mib": ' + b"9" * 10_000 + b"}", "application/json"),
        (b'{"name": "\xff\xfe"}', "application/json"),
        ('{"name": "x"}'.encode("utf-16"), "application/json"),
        (b'{"name": "\\ud800"}', "application/json"),
        (b'{"\\uDC00": 1}', "application/json"),
        (b'{"name": "x"}', "text/plain"),
        (b"name=x", "application/x-www-form-urlencoded"),
        (b'{"name": "x"}', ""),
    ],
)
async def test_a_body_that_cannot_be_read_is_400(world: World, content: bytes, kind: str) -> None:
    """A-1: malformed is 400, and says what is wrong with it; without any body it is the fields that are missing."""
    _, host = await world.add_host()
    for method, path in BODIES:
        headers = {"content-type": kind}
        if path.startswith("/v1/host/"):
            headers["authorization"] = f"Bearer {host}"
        answer = await world.call(method, path, content=content, headers=headers)
        assert answer.status_code == (400 if content else 422), (path, answer.text)
        assert "the body" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"name": None}, "/name"),
        ({"name": 5}, "/name"),
        ({"nmae": "x"}, "/nmae"),
        ({"a/b~c": 1}, "/a~1b~0c"),
        ({"image": 5}, "/image"),
        ({"image": None}, "/image"),
        ({"image": "../x"}, "/image"),
        ({"image": {"url": "https://x/y"}}, "/image/sha256"),
        ({"image": {**IMAGE, "sha256": "A" * 64}}, "/image/sha256"),
        ({"image": {**IMAGE, "sha256": "a" * 64 + "\n"}}, "/image/sha256"),
        ({"image": {**IMAGE, "url": "ftp://x/y"}}, "/image/url"),
        ({"image": {**IMAGE, "url": "https://[x/y"}}, "/image/url"),
        ({"image": {**IMAGE, "url": "https://x:y/"}}, "/image/url"),
        ({"image": {**IMAGE, "url": "https:///y"}}, "/image/url"),
        ({"image": {**IMAGE, "url": "https://x/ y"}}, "/image/url"),
        ({"image": {**IMAGE, "url": "https://ℂ/y"}}, "/image/url"),
        ({"image": {**IMAGE, "format": "vmdk"}}, "/image/format"),
        ({"image": {**IMAGE, "more": 1}}, "/image/more"),
        ({"image": "unknown"}, "/image"),
        ({"host": "unknown"}, "/host"),
        ({"host": "../x"}, "/host"),
        ({"cpu_millicores": "1000"}, "/cpu_millicores"),
        ({"cpu_millicores": True}, "/cpu_millicores"),
        ({"cpu_millicores": 1000.0}, "/cpu_millicores"),
        ({"cpu_millicores": 99}, "/cpu_millicores"),
        ({"cpu_millicores": 32_001}, "/cpu_millicores"),
        ({"memory_mib": 63}, "/memory_mib"),
        ({"memory_mib": 1 << 70}, "/memory_mib"),
        ({"disk_gib": 0}, "/disk_gib"),
        ({"disk_gib": -1}, "/disk_gib"),
        ({"power_state": "on"}, "/power_state"),
        ({"ssh_authorized_keys": KEY}, "/ssh_authorized_keys"),
        ({"ssh_authorized_keys": [KEY, "no key"]}, "/ssh_authorized_keys/1"),
        ({"ssh_authorized_keys": [f"no-pty {KEY}"]}, "/ssh_authorized_keys/0"),
        ({"ssh_authorized_keys": [f"{KEY}\n{KEY}"]}, "/ssh_authorized_keys/0"),
        ({"user_data": ["x"]}, "/user_data"),
        ({"hypervisor": "xen"}, "/hypervisor"),
        ({"on_guest_poweroff": "x"}, "/on_guest_poweroff"),
        ({"stop_timeout_seconds": 0}, "/stop_timeout_seconds"),
        ({"boot_priority": 101}, "/boot_priority"),
        ({"labels": {"K": "v"}}, "/labels"),
        ({"labels": {"k": "\n"}}, "/labels"),
        ({"labels": {"k": 1}}, "/labels/k"),
        ({"metadata": {"": "v"}}, "/metadata"),
        ({"metadata": {"k": "\0"}}, "/metadata"),
        ({"metadata": {"k\0": "v"}}, "/metadata"),
        ({"metadata": {"k": None}}, "/metadata/k"),
        ({"metadata": []}, "/metadata"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_value_out_of_range_is_422_with_its_place(world: World, changed: dict[str, Any], pointer: str) -> None:
    """A-1, N5: the pointer is that of the document that was sent."""
    answer = await world.call("POST", "/v1/vms", json={**vm_body(), **changed})
    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert answer.json()["errors"][0]["detail"] in answer.json()["detail"]
    assert await world.pool.fetchval("select count(*) from vms") == 0


async def test_causes_and_their_codes(world: World) -> None:
    """N5: a client can tell gone from bad."""
    vm = await world.create()
    path = f"/v1/vms/{vm['id']}"
    await world.pool.execute(
        "insert into gone (vm_id, project, name, host_id, pass_number) values ('lately', 'default', 'n', 'h', 1)"
    )
    table: list[tuple[int, str, str, dict[str, Any]]] = [
        (404, "GET", "/v1/vms/nobody", {}),
        (404, "GET", "/v1/nothing", {}),
        (404, "GET", "/v1/vms/", {}),
        (404, "GET", "/v1/hosts/nobody", {}),
        (404, "GET", "/v1/vms?host=nobody", {}),
        (405, "DELETE", "/v1/vms", {}),
        (410, "GET", "/v1/vms/lately", {}),
        (409, "PUT", "/v1/vms/lately", {"json": vm_body()}),
        (409, "POST", "/v1/vms", {"json": vm_body(name=vm["name"])}),
        (409, "PATCH", path, {"json": {"disk_gib": 1}}),
        (412, "PATCH", path, {"json": {}, "headers": {"if-match": '"7"'}}),
        (422, "PATCH", path, {"json": {}, "headers": {"if-match": "W/x"}}),
        (422, "PATCH", path, {"json": {"disk_gib": None}}),
        (404, "GET", "/v1/vms/..%2fx", {}),
        (422, "GET", "/v1/vms/UPPER", {}),
        (422, "GET", "/v1/vms/a%0a", {}),
        (422, "GET", "/v1/vms?limit=0", {}),
        (422, "GET", "/v1/vms?limit=501", {}),
        (422, "GET", "/v1/vms?cursor=xyz", {}),
        (422, "GET", "/v1/vms?cursor=YWZ0ZXI6Li4", {}),
        (422, "GET", "/v1/vms?phase=x", {}),
        (422, "GET", "/v1/vms?name=%00", {}),
        (422, "GET", "/v1/vms?image=%00", {}),
        (422, "GET", "/v1/vms?label=%00=1", {}),
        (422, "GET", "/v1/vms?label=a=%ff", {}),
        (422, "GET", "/v1/vms?host=%00", {}),
        (422, "GET", "/v1/vms?unknown=1", {}),
        (422, "GET", "/v1/vms?limit=1&limit=2", {}),
        (422, "DELETE", f"{path}?release_name=true", {}),
        (422, "DELETE", f"{path}?grace=31d", {}),
        (422, "DELETE", f"{path}?grace=-1s", {}),
        (422, "DELETE", f"{path}?grace=1h&now=true", {}),
        (422, "DELETE", f"{path}?now=perhaps", {}),
        (422, "GET", f"{path}?wait=61s", {}),
        (422, "GET", f"{path}/console?bytes=262145", {}),
    ]
    await world.pool.execute("update vms set disk_gib = 2, spec = jsonb_set(spec, '{disk_gib}', '2')")
    for status, method, where, options in table:
        answer = await world.call(method, where, **options)
        assert answer.status_code == status, (method, where, answer.text)
        if status == 422:
            assert answer.json()["errors"], where
    assert (await world.call("DELETE", "/v1/vms")).headers["allow"]
    await world.pool.execute("update hosts set last_report_at = now() - interval '1 hour'")
    await world.pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 hour'")
    for host in (None, "h1"):
        answer = await world.call("POST", "/v1/vms", json=vm_body(**({"host": host} if host else {})))
        assert (answer.status_code, answer.json()["retryable"]) == (503, True), answer.text


@pytest.mark.parametrize("wait", ["bogus", "61s", "30", "", "99999999999d"])
async def test_a_wait_that_cannot_be_changes_nothing(world: World, wait: str) -> None:
    """A-6: it is judged before the request is accepted."""
    assert (await world.call("POST", f"/v1/vms?wait={wait}", json=vm_body())).status_code == 422
    assert await world.pool.fetchval("select count(*) from vms") == 0


async def test_hostile_names_and_ids(world: World) -> None:
    """N4, S-20: refused with the allowed set."""
    hostile = ["é", "名前", "🦊", "a\u202eb", "a\0", "a\n", "../x", "a b", "-a", "a-", "A", "a_b", "", "a" * 64, "a.b"]
    for name in hostile:
        answer = await world.call("POST", "/v1/vms", json=vm_body(name=name))
        assert answer.status_code == 422
        assert "a-z, 0-9 and '-'" in answer.json()["detail"]
        answer = await world.call("POST", "/v1/hosts", json={"name": name})
        assert answer.status_code == 422
    assert (await world.call("POST", "/v1/vms", json=vm_body(name="a" * 63))).status_code == 201


_STRANGE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(
        [1 << 63, -(1 << 63), 1 << 31, "\0", "\ud800", "0001-01-01T00:00:00+14:00", SHA, KEY, "public/x"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [here, *(path for key, each in inner for path in _paths(each, (*here, key)))]


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copy


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("call", list(BODIES), ids=lambda call: call[1].partition("/v1/")[2][:8])
def test_no_body_ends_in_a_500(
    call_often: Callable[[str, str, bytes], Answer], call: tuple[str, str], data: st.DataObject
) -> None:
    """N6: one strange value anywhere, or a strange body altogether."""
    body = BODIES[call]
    changed = _replaced(body, data.draw(st.sampled_from(_paths(body))), data.draw(_STRANGE))
    if data.draw(st.booleans()) and isinstance(changed, dict):
        changed = {**changed, data.draw(st.text(max_size=5)): data.draw(_STRANGE)}
    content = json.dumps(changed).encode()
    answer = call_often(*call, content)
    assert answer.status_code < 500, answer.text


_READS = {
    "/v1/vms": ("limit", "cursor", "host", "phase", "power_state", "label", "image", "name"),
    "/v1/vms/{}": ("wait",),
    "/v1/vms/{}/operations": ("limit", "cursor"),
    "/v1/vms/{}/console": ("bytes",),
    "/v1/operations/{}": (),
    "/v1/images": ("limit", "cursor"),
    "/v1/images/{}": (),
    "/v1/hosts": ("limit", "cursor"),
    "/v1/hosts/{}": (),
    "/v1/hosts/{}/quarantined": ("limit", "cursor"),
    "/v1/hosts/{}/foreign": (),
    "/v1/host/vms/{}/input": ("digest",),
    "/v1/host/errands": ("wait_seconds",),
}


@given(path=st.sampled_from(list(_READS)), data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_or_query_ends_in_a_500(
    call_often: Callable[[str, str, bytes], Answer], path: str, data: st.DataObject
) -> None:
    """N6, S-20: strange ids and parameters, known and unknown."""
    strange = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
        ["", "0", "-1", "1" * 25, "\0", "a=\0"]
    )
    where = path.format(quote(data.draw(strange), safe=""))
    query = {name: data.draw(strange) for name in _READS[path] if data.draw(st.booleans())}
    if data.draw(st.booleans()):
        query[data.draw(strange)] = data.draw(strange)
    if "console" not in path and query.get("wait_seconds") != "0":
        call_often("GET", f"{where}?{urlencode(query)}", b"")


@given(st.binary(max_size=64))
def test_parsing_refuses_or_reads(content: bytes) -> None:
    """What was read can be written again as UTF-8."""
    try:
        document = parse_json(content)
    except Malformed:
        return
    json.dumps(document, ensure_ascii=False).encode()
