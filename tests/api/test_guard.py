"""What passes before anything reads it: Host, Origin, sizes; over real HTTP, byte by byte (S-34, A-8)."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import httpx2
import pytest

from api.app import create_app
from api.guard import BODY_LIMIT
from tests.api.conftest import World, judged


async def exchange(url: str, head: list[str], body: bytes = b"") -> tuple[int, str]:
    """Send exactly this and return status and body; the connection is closed by us at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    try:
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        async with asyncio.timeout(10):
            status = int((await reader.readline()).split()[1])
            length = 0
            while (line := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
            return status, (await reader.readexactly(length)).decode() if length else ""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8460", 200),
        ("evil.test", 403),
        ("127.0.0.1.evil.test", 403),
        ("127.0.0.1@evil.test", 403),
        ("localhost.", 403),
        ("[::1", 403),
        ("[::2]", 403),
        ("", 403),
    ],
)
async def test_it_answers_to_its_names_alone(url: str, host: str, status: int) -> None:
    """S-34: a page that rebinds its own name to loopback gets nothing, not even readiness."""
    named = host.format(port=urlsplit(url).port)
    found, text = await exchange(url, ["GET /healthz HTTP/1.1", f"Host: {named}"])
    assert found == status, text


async def test_two_hosts_or_none_are_refused(world: World) -> None:
    """S-34: the one that we judge must be the one that counts."""
    for headers in ([], [("host", "localhost"), ("host", "evil.test")]):
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/healthz",
            "headers": [(n.encode(), v.encode()) for n, v in headers],
            "query_string": b"",
        }
        sent: list[dict[str, object]] = []

        async def send(message: dict[str, object], sent: list[dict[str, object]] = sent) -> None:
            sent.append(message)

        await create_app(world.parts)(scope, None, send)  # type: ignore[arg-type]
        assert sent[0]["status"] == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8460", 200),
        ("https://127.0.0.1:8460", 200),
        ("http://127.0.0.1:1", 403),
        ("http://127.0.0.1", 403),
        ("http://evil.test", 403),
        ("http://evil.test/127.0.0.1:8460", 403),
        ("http://evil@127.0.0.1:8460", 403),
        ("http://[", 403),
        ("null", 403),
        ("", 403),
    ],
)
async def test_a_foreign_origin_is_refused(world: World, origin: str, status: int) -> None:
    """S-34."""
    answer = judged(await world.client.get("/healthz", headers={"origin": origin}))
    assert answer.status_code == status


async def test_every_answer_is_marked(world: World) -> None:
    """A-4: also those of the guard, of no route, and of the docs; each with an id that its log line has."""
    seen = set()
    for path, headers in (
        ("/healthz", {}),
        ("/docs", {}),
        ("/openapi.json", {}),
        ("/none", {}),
        ("/v1/vms", {}),
        ("/healthz", {"origin": "x"}),
    ):
        answer = judged(await world.client.get(path, headers=headers))
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert len(answer.headers.get_list("cache-control")) == 1
        seen.add(answer.headers["x-request-id"])
    assert len(seen) == 6


async def test_a_chunked_body_over_the_limit_is_413(world: World, url: str) -> None:
    """A-8: no length was said, so it is counted; and a fitting one is read."""
    token = await world.token()

    async def pieces(count: int):  # type: ignore[no-untyped-def]
        for _ in range(count):
            yield b" " * 65_536

    async with httpx2.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        for count, status in ((4, 400), (5, 413)):
            answer = await client.post("/v1/vms", content=pieces(count), headers=headers)
            assert judged(answer).status_code == status, answer.text


async def test_a_length_that_is_no_length(world: World, url: str) -> None:
    """A-8: never a 500, and the server lives on."""
    host = f"Host: 127.0.0.1:{urlsplit(url).port}"
    token = f"Authorization: Bearer {await world.token()}"
    post = ["POST /v1/vms HTTP/1.1", host, token, "Content-Type: application/json"]
    for length, status in (
        (str(BODY_LIMIT + 1), 413),
        ("9" * 18, 413),
        ("9" * 5000, 400),
        ("-1", 400),
        ("1x", 400),
        ("", 400),
    ):
        found, _ = await exchange(url, [*post, f"Content-Length: {length}"])
        assert found in {status, 413 if status == 400 else status}, length
    found, _ = await exchange(url, [*post, "Content-Length: 2", "Transfer-Encoding: chunked"], b"0\r\n\r\n")
    assert found in (400, 422)
    assert (await exchange(url, ["GET /healthz HTTP/1.1", host]))[0] == 200


async def test_who_hangs_up_in_the_middle_of_a_body_does_no_harm(
    world: World, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """N6: a body that ends before its length is nobody's error of ours."""
    _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    head = [
        "POST /v1/vms HTTP/1.1",
        f"Host: 127.0.0.1:{urlsplit(url).port}",
        f"Authorization: Bearer {await world.token()}",
        "Content-Type: application/json",
        "Content-Length: 100",
    ]
    writer.write("\r\n".join([*head, "", "{"]).encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        assert (await client.get("/healthz")).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_what_nobody_expected_is_a_500_that_names_its_log_line(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A-1: never a stack trace; the log has it, without foreign texts."""

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("c4n4ry of a foreign text")

    token = await world.token()
    monkeypatch.setattr(world.parts.vms, "list", broken)
    answer = await world.client.get("/v1/vms", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] in answer.json()["detail"]
    assert "c4n4ry" not in answer.text + caplog.text
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "RuntimeError" in errors[0].getMessage()
    assert vars(errors[0])["request"] == answer.headers["x-request-id"]
