"""The limits of A-8, each exactly at, below and above (A-8, N3, O11)."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from api.guard import BODY_LIMIT, REPORT_LIMIT
from model.specification import Secrets
from tests.api.conftest import IMAGE, KEY, World, report_of, vm_body


def rsa_like_key(length: int) -> str:
    """A line of exactly so many characters: a hardware key whose application is as long as it takes."""
    kind, size = b"sk-ssh-ed25519@openssh.com", 0
    for size in range(1, length):
        fields = (kind, b"k" * 32, b"a" * size)
        blob = base64.b64encode(b"".join(struct.pack(">I", len(f)) + f for f in fields)).decode()
        line = f"{kind.decode()} {blob}"
        if len(line) + 2 > length:
            break
    return line[:0] + _padded(kind, size - 1, length)


def _padded(kind: bytes, size: int, length: int) -> str:
    fields = (kind, b"k" * 32, b"a" * size)
    blob = base64.b64encode(b"".join(struct.pack(">I", len(f)) + f for f in fields)).decode()
    line = f"{kind.decode()} {blob} "
    return line + "c" * (length - len(line))


LIMITS: list[tuple[str, Any, Any, Any]] = [
    ("user_data", "x" * 65_535, "x" * 65_536, "x" * 65_537),
    ("user_data", "🦊" * 16_383 + "xxx", "🦊" * 16_384, "🦊" * 16_384 + "x"),
    ("ssh_authorized_keys", [KEY] * 15, [KEY] * 16, [KEY] * 17),
    ("ssh_authorized_keys", [rsa_like_key(8191)], [rsa_like_key(8192)], [rsa_like_key(8192) + "c"]),
    ("metadata", *({f"k{n}": "v" for n in range(count)} for count in (15, 16, 17))),
    ("metadata", *({"k": "v" * (size - 1)} for size in (49_151, 49_152, 49_153))),
    ("metadata", *({"k": "ä" * 24_575 + "v" * extra} for extra in (0, 1, 2))),
    ("labels", *({f"k{n}": "v" for n in range(count)} for count in (31, 32, 33))),
    ("cpu_millicores", 31_999, 32_000, 32_001),
    ("cpu_millicores", 101, 100, 99),
    ("memory_mib", 65, 64, 63),
    ("disk_gib", 65_535, 65_536, 65_537),
    ("stop_timeout_seconds", 1199, 1200, 1201),
    ("name", "n" * 62, "n" * 63, "n" * 64),
]


@pytest.mark.parametrize(("field", "below", "at", "above"), LIMITS, ids=[limit[0] for limit in LIMITS])
async def test_a_field_at_its_limit(world: World, field: str, below: Any, at: Any, above: Any) -> None:
    """A-8: user-data counts as raw bytes of UTF-8, before any encoding (N3)."""
    for value in (below, at):
        answer = await world.call("POST", "/v1/vms", json={**vm_body(), field: value})
        assert answer.status_code == 201, answer.text[:500]
    answer = await world.call("POST", "/v1/vms", json={**vm_body(), field: above})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith(f"/{field}")
    assert len(answer.text) < 2000


async def test_user_data_over_its_limit_says_the_limit(world: World) -> None:
    """N3."""
    answer = await world.call("POST", "/v1/vms", json=vm_body(user_data="x" * 66_560))
    assert "64 KiB" in answer.json()["detail"] or "65536" in answer.json()["detail"]


async def test_the_largest_vm_fits_a_body_and_comes_back_to_its_host(world: World) -> None:
    """A-8, S-5: all limits at once; its host gets every byte."""
    host_id, credential = await world.add_host(name="h2")
    user_data = "".join(chr(0x20 + n % 90) for n in range(65_536)).replace('"', " ").replace("\\", " ")
    vm = await world.create(
        host="h2",
        user_data=user_data,
        ssh_authorized_keys=[rsa_like_key(8192)] * 16,
        metadata={f"key{n:02}": "v" * 3067 for n in range(16)},
    )
    assert vm["user_data"]["bytes"] == 65_536
    assert vm["host"] == {"id": host_id, "name": "h2"}
    digest = await world.pool.fetchval("select input_digest from vms")
    given = await world.as_host(credential, "GET", f"/v1/host/vms/{vm['id']}/input?digest={digest}")
    assert base64.b64decode(given.json()["user_data"]).decode() == user_data
    secrets = await world.pool.fetchval("select secrets from vms")
    assert user_data.encode() not in secrets
    with pytest.raises(ValueError, match="json"):
        Secrets.from_bytes(secrets)


async def test_a_body_over_its_limit_is_413(world: World) -> None:
    """A-8: exactly at the limit it is read."""
    frame = len('{"name": ""}')
    for size, status in ((BODY_LIMIT, 422), (BODY_LIMIT + 1, 413)):
        content = b'{"name": "' + b"x" * (size - frame) + b'"}'
        assert len(content) == size
        headers = {"content-type": "application/json"}
        for path in ("/v1/vms", "/v1/images", "/v1/hosts"):
            answer = await world.call("POST", path, content=content, headers=headers)
            assert answer.status_code == status, answer.text[:300]
            assert len(answer.text) < 3000


async def test_a_report_may_be_larger(world: World) -> None:
    """S-6: up to 4 MiB."""
    _, credential = await world.add_host(name="h2", instance_id=None)
    report = report_of(1)
    for size, status in ((REPORT_LIMIT, 200), (REPORT_LIMIT + 1, 413)):
        content = str(report).replace("'", '"').replace("True", "true").encode()
        content += b" " * (size - len(content))
        headers = {"content-type": "application/json"}
        answer = await world.as_host(credential, "POST", "/v1/host/report", content=content, headers=headers)
        assert answer.status_code == status, answer.text


async def test_images_have_limits_too(world: World) -> None:
    for line, status in (("x" * 1024, 201), ("x" * 1025, 422), ("é", 422), ("a\nb", 422)):
        body = {"name": f"demo-{len(line)}", "rootfs": IMAGE, "kernel": IMAGE, "command_line": line}
        assert (await world.call("POST", "/v1/images", json=body)).status_code == status
    for url, status in (("https://x/" + "y" * 8182, 201), ("https://x/" + "y" * 8183, 422)):
        body = {"name": "long", "rootfs": {**IMAGE, "url": url}}
        assert (await world.call("POST", "/v1/images", json=body)).status_code == status
    answer = await world.call("POST", "/v1/images", json={"name": "a", "rootfs": IMAGE, "initrd": IMAGE})
    assert answer.status_code == 422
    answer = await world.call("POST", "/v1/images", json={"name": "mine/x", "rootfs": IMAGE})
    assert answer.json()["errors"][0]["pointer"] == "/name"
