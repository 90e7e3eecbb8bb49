"""The host's calls to the API, against a real HTTP server on loopback that validates each request."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from api.fleet_bodies import HostKeyBody
from model.certificate import HostCertificate
from model.errors import Permanent, Superseded, Unavailable, Unreadable
from model.report import HostReport, ReportAnswer
from model.ssh import make_host_key
from tests.fixtures.records import DIGEST, make_input
from workers.host_api import HostApi, read_credentials

PUBLIC = make_host_key()[1]
CERTIFICATE = HostCertificate(serial=3, certificate="cert", valid_until=datetime(2030, 1, 1, tzinfo=UTC))


class Api:
    """What the API answers a host; `status` other than 200 is answered to everything."""

    def __init__(self) -> None:
        self.status = 200
        self.input = make_input("vm1")
        self.problems: list[str] = []
        self.reports: list[HostReport] = []
        self.keys: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.check(self, f"/v1/host/vms/vm1/input?digest={DIGEST}")
                owner.answer(self, owner.input.model_dump_json())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/v1/host/vms/vm1/certificate":
                    owner.check(self, self.path)
                    owner.keys.append(HostKeyBody.model_validate_json(body).public_key)
                    owner.answer(self, CERTIFICATE.model_dump_json())
                    return
                owner.check(self, "/v1/host/report")
                report = HostReport.model_validate_json(body)
                owner.reports.append(report)
                answer = ReportAnswer(acknowledged=report.number, want_whole=False, epoch=4)
                owner.answer(self, answer.model_dump_json())

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def check(self, request: BaseHTTPRequestHandler, path: str) -> None:
        if request.headers["authorization"] != "Bearer secret":
            self.problems.append("no credential")
        if request.path != path:
            self.problems.append(request.path)

    def answer(self, request: BaseHTTPRequestHandler, body: str) -> None:
        request.send_response(self.status)
        request.end_headers()
        request.wfile.write(body.encode())


@pytest.fixture
def api():
    api = Api()
    thread = threading.Thread(target=api.server.serve_forever, daemon=True)
    thread.start()
    yield api
    api.server.shutdown()
    api.server.server_close()
    thread.join()
    assert api.problems == []


def make_report() -> HostReport:
    return HostReport(
        number=7,
        instance_id="i1",
        machine_id="m1",
        boot_id="b1",
        worker_version="1.0.0",
        clock=datetime.now(UTC),
        whole=True,
    )


async def test_a_report_is_acknowledged(api) -> None:
    async with HostApi(api.url, "secret") as client:
        answer = await client.report(make_report())
    assert (answer.acknowledged, answer.epoch) == (7, 4)
    assert api.reports[0].instance_id == "i1"


async def test_an_input_is_fetched_with_its_digest(api) -> None:
    """S-5."""
    async with HostApi(api.url, "secret") as client:
        assert await client.fetch_input("vm1", DIGEST) == make_input("vm1")


async def test_another_input_than_the_orders_is_superseded(api) -> None:
    """S-5: whatever the API answers, the digest must be the sealed step's."""
    api.input = make_input("vm1", digest="e" * 64)
    async with HostApi(api.url, "secret") as client:
        with pytest.raises(Superseded):
            await client.fetch_input("vm1", DIGEST)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, Superseded),
        (409, Superseded),
        (401, Unavailable),
        (500, Unavailable),
        (429, Unavailable),
        (503, Unavailable),
        (302, Unavailable),
    ],
)
async def test_what_the_api_refuses_uses_up_no_attempt(api, status, error) -> None:
    """L-C4."""
    api.status = status
    async with HostApi(api.url, "secret") as client:
        with pytest.raises(error) as raised:
            await client.fetch_input("vm1", DIGEST)
    assert "secret" not in str(raised.value)


async def test_a_certificate_is_asked_for_by_the_public_key(api) -> None:
    """L-C2."""
    async with HostApi(api.url, "secret") as client:
        assert await client.fetch_certificate("vm1", PUBLIC) == CERTIFICATE
    assert api.keys == [PUBLIC]


@pytest.mark.parametrize(("status", "error"), [(404, Superseded), (409, Permanent), (503, Unavailable)])
async def test_a_certificate_that_is_not_there(api, status, error) -> None:
    """L-C2, S-41: one that is not there yet is waited for; a key that is refused is the VM's own fault."""
    api.status = status
    async with HostApi(api.url, "secret") as client:
        with pytest.raises(error):
            await client.fetch_certificate("vm1", PUBLIC)


async def test_an_api_that_is_away_is_unavailable() -> None:
    async with HostApi("http://127.0.0.1:1", "secret") as client:
        with pytest.raises(Unavailable):
            await client.report(make_report())


def test_credentials_are_read_and_never_shown(tmp_path) -> None:
    path = tmp_path / "credentials.json"
    words = {
        "fleet_id": "f1",
        "host_id": "h1",
        "credential": "topsecret",
        "sealing_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "key_version": 1,
        "api_url": "http://127.0.0.1:8460",
        "temporal_address": "127.0.0.1:7233",
        "namespace": "default",
    }
    with pytest.raises(Unreadable, match="enrol"):
        read_credentials(path)
    path.write_text(json.dumps(words))
    credentials = read_credentials(path)
    assert "topsecret" not in repr(credentials)
    assert "AAAA" not in repr(credentials)
    assert len(credentials.sealing_key_bytes) == 32
    for spoilt in ({"sealing_key": "AAAA"}, {"sealing_key": "topsecret!"}, {"host_id": None}):
        path.write_text(json.dumps(words | spoilt))
        with pytest.raises(Unreadable) as raised:
            read_credentials(path)
        assert "topsecret" not in str(raised.value)
