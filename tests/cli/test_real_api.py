"""The command line against the real API on a real Postgres. No worker runs: what is asked for stays asked for."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.demo import ensure_key
from store.database import Pool, reading
from tests.cli.conftest import ROOT, Runner
from tests.fixtures.rows import add_host
from workers.token import make_admin_token


@dataclass(frozen=True)
class Api:
    url: str
    database_url: str


@pytest.fixture
def api(database_url: str, tmp_path: Path) -> Iterator[Api]:
    """The API's own process; Temporal is not there, which it bears (L-G9)."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    home = tmp_path / "api-home"
    home.mkdir(mode=0o700)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOSTLER_HOME": str(home),
        "HOSTLER_URL": url,
        "HOSTLER_DATABASE_URL": database_url,
        "HOSTLER_TEMPORAL_ADDRESS": "127.0.0.1:1",
    }
    log = tmp_path / "api.log"
    with log.open("wb") as opened:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "workers.api"], env=environment, stdout=opened, stderr=opened
        )
    try:
        await_ready(port, process, log)
        yield Api(url, database_url)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()


async def test_a_life_by_the_command_line(
    api: Api, pool: Pool, hostler: Runner, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each command is understood by the real API, and each answer by the command."""
    host_id = await add_host(pool, name="host-1")
    (home / "token").write_text(await make_admin_token(api.database_url))
    (home / "token").chmod(0o600)
    monkeypatch.setenv("HOSTLER_URL", api.url)
    ensure_key(tmp_path / "id")

    digest = "a" * 64
    assert hostler("image", "add", "demo", "--url", "https://images.test/r", "--sha256", digest).code == 0
    assert hostler("image", "add", "demo", "--url", "https://images.test/r", "--sha256", digest).code == 0
    clash = hostler("image", "add", "demo", "--url", "https://images.test/r", "--sha256", "b" * 64)
    assert (clash.code, clash.out) == (1, "")
    assert "demo" in hostler("image", "ls").out

    words = ("--image", "demo", "--ssh-key", str(tmp_path / "id.pub"), "--label", "team=a", "--host", "host-1")
    more = ("--memory", "1G", "--cpus", "0.5", "--disk", "10", "--metadata", "k=v", "--no-wait")
    made = hostler("vm", "create", "web-1", *words, *more, "--json")
    assert made.code == 0, made.err
    row = json.loads(made.out)
    assert (row["phase"], row["memory_mib"], row["cpu_millicores"]) == ("creating", 1024, 500)
    assert hostler("vm", "create", "web-1", "--image", "demo", "--no-wait").code == 1
    bad = hostler("vm", "create", "web-2", "--image", "demo", "--cpus", "99", "--no-wait")
    assert bad.code == 1
    assert "/cpu_millicores" in bad.err
    assert hostler("vm", "create", "web-2", "--image", "nothing", "--no-wait").code == 1

    assert "web-1" in hostler("vm", "ls", "--label", "team=a", "--host", "host-1", "--phase", "creating").out
    assert json.loads(hostler("vm", "ls", "--label", "team=b", "--json").out)["items"] == []
    shown = hostler("vm", "show", "web-1")
    assert shown.code == 0
    assert row["id"] in shown.out
    assert json.loads(hostler("vm", "show", row["id"], "--json").out)["name"] == "web-1"
    assert hostler("vm", "wait", "web-1", "--timeout", "1s").code == 4
    why = json.loads(hostler("vm", "why", "web-1", "--json").out)
    assert why["sentence"] in hostler("vm", "why", row["id"]).out
    assert why["sentence"] in hostler("vm", "show", "web-1").out

    stopped = hostler("vm", "stop", "web-1", "--no-wait", "--json")
    assert json.loads(stopped.out)["desired_power_state"] == "stopped"
    assert hostler("vm", "resize", "web-1", "--disk", "20", "--no-wait").code == 0
    assert hostler("vm", "rm", "web-1", "--grace", "60s", "--no-wait").code == 0
    assert hostler("vm", "undelete", "web-1", "--no-wait").code == 0

    assert "host-1" in hostler("host", "ls").out
    assert hostler("host", "show", "host-1").code == 0
    assert json.loads(hostler("host", "show", host_id, "--json").out)["foreign"] == []

    monkeypatch.setenv("HOSTLER_TOKEN", "hst_nobody")
    assert hostler("vm", "ls").code == 1
    async with reading(pool) as connection:
        assert await connection.fetchval("select count(*) from vms") == 1
