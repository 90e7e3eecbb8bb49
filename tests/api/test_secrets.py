"""What is written is never read: canaries in every secret, looked for in all that comes back (S-33, S-42, S-45)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from model.ids import new_id
from runtime.log import EventFormatter
from tests.api.conftest import KEY, SHA, World, report_of, vm_body, vm_report

CANARY = "c4n4ry"
SIGNED = {"url": f"https://user:{CANARY}-pass@images.test/root.qcow2?sig={CANARY}-query#{CANARY}-part", "sha256": SHA}
GOOD = {"user_data": f"#cloud-config\npassword: {CANARY}-data", "image": SIGNED}
OPTION = f'environment="X={CANARY}-option" {KEY}'

# Each is refused, and holds a canary where one belongs.
REFUSED: list[dict[str, Any]] = [
    {**GOOD, "name": "UPPER"},
    {**GOOD, "memory_mib": f"{CANARY}"},
    {**GOOD, "user_data": f"{CANARY}" * 20_000},
    {**GOOD, "user_data": {"x": CANARY}},
    {**GOOD, "image": {**SIGNED, "sha256": CANARY}},
    {**GOOD, "image": {**SIGNED, "url": f"ftp://user:{CANARY}@x/"}},
    {**GOOD, "image": {**SIGNED, "url": f"https://x:{CANARY}/"}},
    {**GOOD, "image": {**SIGNED, "url": f"https://{CANARY}\u2100@x/"}},
    {**GOOD, "image": {**SIGNED, "url": f"https://[{CANARY}/"}},
    {**GOOD, "image": {**SIGNED, "url": f"https://x/?{CANARY} {CANARY}"}},
    {**GOOD, "image": {**SIGNED, "url": f"https://x/?{CANARY}" + "y" * 8192}},
    {**GOOD, "image": {"user": CANARY}},
    {**GOOD, "image": f"{CANARY}@x"},
    {**GOOD, "image": {"url": f"file://{CANARY}"}},
    {**GOOD, "ssh_authorized_keys": [OPTION]},
    {**GOOD, "ssh_authorized_keys": [f"ssh-ed25519 {CANARY}"]},
    {**GOOD, "ssh_authorized_keys": [f"{CANARY}"]},
    {**GOOD, "ssh_authorized_keys": {"x": CANARY}},
    {**GOOD, "metadata": {"k": [CANARY]}},
    {**GOOD, "metadata": {"k": f"{CANARY}\0"}},
    {**GOOD, "labels": {"k": f"{CANARY}\n"}},
    {**GOOD, "power_state": CANARY},
    {**GOOD, "host": f"../{CANARY}"},
    {**GOOD, "image": "unknown-image"},
    {**GOOD, "more": CANARY},
]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG)
    formatter = EventFormatter("json")
    # The test's own client tells its requests too: not ours.
    return lambda: "\n".join(formatter.format(r) for r in caplog.records if not r.name.startswith("httpx"))


async def test_no_refusal_echoes_its_input(world: World, logged: Any) -> None:
    """S-33: neither the answer nor the log, whatever was wrong."""
    for body in REFUSED:
        for method, path in (("POST", "/v1/vms"), ("PUT", f"/v1/vms/{new_id()}")):
            answer = await world.call(method, path, json={**vm_body(), **body})
            assert answer.status_code == 422, (body, answer.text)
            assert CANARY not in answer.text, (body, answer.text)
        image = body["image"]
        answer = await world.call("POST", "/v1/images", json={"name": "Bad!", "rootfs": image, "kernel": image})
        assert answer.status_code == 422
        assert CANARY not in answer.text, (image, answer.text)
    headers = {"content-type": "application/json"}
    for content in (f'{{"user_data": "{CANARY}', f'"{CANARY}"', f'["{CANARY}"]', f'{{"user_data": "{CANARY}\\ud800"}}'):
        answer = await world.call("POST", "/v1/vms", content=content, headers=headers)
        assert answer.status_code in (400, 422)
        assert CANARY not in answer.text
    answer = await world.call("GET", f"/v1/vms?wait={CANARY}&name={CANARY}%20")
    assert CANARY not in answer.text
    assert CANARY not in logged()


async def test_no_row_list_operation_or_audit_shows_a_secret(world: World, logged: Any) -> None:
    """S-33, S-42: size and a keyed digest instead; all else of the database holds it sealed alone."""
    named = {"name": "demo", "rootfs": SIGNED, "kernel": SIGNED, "initrd": SIGNED}
    shown = [
        await world.call("POST", "/v1/images", json=named),
        await world.call("POST", "/v1/images", json=named),
        await world.call("GET", "/v1/images"),
    ]
    vm_id = new_id()
    body = vm_body(**GOOD, ssh_authorized_keys=[KEY])
    fresh = {**SIGNED, "url": f"https://images.test/root.qcow2?sig={CANARY}-fresh"}
    shown += [
        await world.call("PUT", f"/v1/vms/{vm_id}", json=body),
        await world.call("PUT", f"/v1/vms/{vm_id}", json={**body, "image": fresh}),
        await world.call("POST", "/v1/vms", json=vm_body(image="demo", user_data=f"{CANARY}")),
        await world.call("PATCH", f"/v1/vms/{vm_id}", json={"metadata": {"a": "b"}}),
        await world.call("GET", f"/v1/vms/{vm_id}"),
        await world.call("GET", f"/v1/vms/{vm_id}/operations"),
        await world.call("GET", "/v1/vms"),
        await world.call("DELETE", f"/v1/vms/{vm_id}"),
        await world.call("GET", "/v1/hosts/h1"),
    ]
    for answer in shown:
        assert answer.is_success, answer.text
        assert CANARY not in answer.text
    row = shown[3].json()
    assert row["image"] == "https://images.test/root.qcow2"
    assert row["user_data"]["bytes"] == len(GOOD["user_data"])
    assert len(row["user_data"]["digest"]) == 64
    dump = ""
    tables = await world.pool.fetch("select tablename from pg_tables where schemaname = 'public'")
    for table in tables:
        for record in await world.pool.fetch(f'select t::text as text, t.* from "{table["tablename"]}" t'):
            dump += record["text"]
            for value in record.values():
                assert not isinstance(value, bytes) or CANARY.encode() not in value
    assert "images.test/root.qcow2" in dump
    assert CANARY not in dump
    assert CANARY.encode().hex() not in dump
    assert CANARY not in logged()


async def test_a_token_is_never_logged_or_repeated(world: World, logged: Any) -> None:
    """S-30, S-42."""
    _, credential = await world.add_host(name="h2")
    answers = [
        await world.call("GET", "/v1/vms/nobody"),
        await world.as_host(credential, "GET", "/v1/host/errands?wait_seconds=0"),
        await world.call("GET", f"/v1/vms?wait={await world.token()}"),
        await world.as_host("hst_" + "x" * 90, "GET", "/v1/vms"),
    ]
    text = "".join(answer.text for answer in answers) + logged()
    for secret in (*world.tokens.values(), credential):
        assert secret[20:60] not in text


async def test_texts_of_hosts_and_guests_are_data(world: World) -> None:
    """S-17: escaped and cut where they come in, whatever field they are in."""
    _, credential = await world.add_host(name="h2", instance_id=None)
    vm = await world.create(host="h2")
    evil = "\x1b]0;x\x07\u202e<script>\0" + "y" * 5000
    news = vm_report(
        vm["id"],
        unreadable=evil,
        observed={
            "ssh_host_key": evil,
            "address": evil,
            "last_exit": {"at": "2026-01-01T00:00:00Z", "by": "hypervisor", "reason": evil},
        },
    )
    foreign = vm_report(evil, unreadable=evil)
    report = report_of(
        1,
        [news, foreign],
        boot_id=evil,
        machine_id=evil,
        worker_version=evil,
        activity_names=[evil],
        hypervisors=[{"name": evil, "available": False, "why": evil, "version": evil}],
    )
    assert (await world.as_host(credential, "POST", "/v1/host/report", json=report)).status_code == 200
    for path in (f"/v1/vms/{vm['id']}", "/v1/vms", "/v1/hosts", "/v1/hosts/h2", "/v1/hosts/h2/foreign"):
        text = (await world.call("GET", path)).text
        assert text.isprintable(), path
        assert "\\\\x1b]0;x" in text, path
        assert "y" * 4090 not in text
