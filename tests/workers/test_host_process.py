"""The host worker as a process: it starts, reports, refuses a second one, and ends, with nobody else there (H-E3)."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from activities.image import ImageActivities
from activities.sync import SyncActivities
from activities.vm import VmActivities
from drivers.names import HostNames
from drivers.network import Network
from model.capacity import Caps
from model.errors import Conflict
from model.report import ControlRelease, HostReport, ReportAnswer
from model.versions import VERSION
from workers.control_release import check_release, keep_checking
from workers.host_api import HostApi

PROJECT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the host worker runs as root")


class Ears:
    """The API, as far as a host without VMs needs it."""

    def __init__(self) -> None:
        self.reports: list[HostReport] = []
        self.heard = threading.Event()
        self.release: str | None = f"{VERSION.partition('.dev')[0]}.dev77+another"
        self.asked = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/v1/host/release":
                    owner.asked += 1
                if self.path != "/v1/host/release" or owner.release is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(ControlRelease(version=owner.release).model_dump_json().encode())

            def do_POST(self) -> None:
                report = HostReport.model_validate_json(self.rfile.read(int(self.headers["content-length"])))
                owner.reports.append(report)
                self.send_response(200)
                self.end_headers()
                answer = ReportAnswer(acknowledged=report.number, want_whole=False, epoch=3)
                self.wfile.write(answer.model_dump_json().encode())
                owner.heard.set()

            def log_message(self, format, *args) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def ears():
    ears = Ears()
    thread = threading.Thread(target=ears.server.serve_forever, daemon=True)
    thread.start()
    yield ears
    ears.server.shutdown()
    ears.server.server_close()
    thread.join()


async def start(home: Path, **settings: str) -> asyncio.subprocess.Process:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PROJECT),
        "HOSTLER_HOME": str(home),
        "HOSTLER_HOST_UID_BASE": "990000",
        "HOSTLER_HOST_UID_COUNT": "10",
        **{f"HOSTLER_HOST_{name.upper()}": value for name, value in settings.items()},
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workers.host", cwd="/", env=environment, stderr=asyncio.subprocess.PIPE
    )


def enrol(home: Path, ears: Ears) -> Path:
    """Write what an enrolment leaves; return the host's folder."""
    host = home / "host"
    host.mkdir(mode=0o700)
    words = {
        "fleet_id": "f1",
        "host_id": "h1",
        "credential": "secret",
        "sealing_key": "A" * 43 + "=",
        "key_version": 1,
        "api_url": f"http://127.0.0.1:{ears.server.server_port}",
        "temporal_address": "127.0.0.1:1",
        "namespace": "default",
    }
    (host / "credentials.json").write_text(json.dumps(words))
    return host


async def test_a_host_reports_by_itself_and_ends_in_good_order(tmp_path, netns, ears) -> None:
    """H-E3, H-E5, H-S6: Temporal is away, and the host goes on telling what it sees."""
    host = enrol(tmp_path, ears)
    cgroup = f"hst-{secrets.token_hex(4)}"
    worker = await start(tmp_path, netns=netns, cgroup=cgroup)
    try:
        assert await asyncio.to_thread(ears.heard.wait, 60)
        report = ears.reports[0]
        assert report.whole
        assert report.vms == ()
        assert ears.asked, "which release the control plane is of; another build of the same one is no newer one"
        assert "ensure_booted" in report.activity_names
        assert "ensure_root_disk" in report.activity_names
        known = {
            name
            for owner in (VmActivities, ImageActivities, SyncActivities)
            for name in vars(owner)
            if not name.startswith("_")
        }
        assert set(report.activity_names) == known
        assert report.capacity.memory_mib_total
        shown = {found.name: found for found in report.hypervisors}
        assert set(shown) == {"qemu", "simulated"}
        assert not shown["simulated"].available
        assert "HOSTLER_HOST_SIMULATED_GUESTS" in shown["simulated"].why
        second = await start(tmp_path, netns=netns, cgroup=cgroup)
        _, said = await second.communicate()
        assert second.returncode == 1
        assert f"process {worker.pid}" in said.decode()
    finally:
        worker.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(worker.communicate(), 40)
        await Network(HostNames(netns=netns), host / "dnsmasq").stop_dhcp()
    assert worker.returncode == 0, said.decode()
    assert b"Traceback" not in said
    assert json.loads((host / "host.json").read_text())["epoch"] == 3


@pytest.mark.parametrize("release", [None, "0.1.9"])
async def test_a_host_newer_than_its_control_plane_refuses_to_start(tmp_path, ears, release: str | None) -> None:
    """H-D4: with what to do, before it patched or reported anything; the first release cannot tell what it is."""
    ears.release = release
    home = enrol(tmp_path, ears)
    record = home / "machines" / "vm1" / "config.json"
    record.parent.mkdir(parents=True, mode=0o700)
    record.write_text('{"format": 1}')
    worker = await start(tmp_path, simulated_guests="only", bridge="told0")
    _, said = await asyncio.wait_for(worker.communicate(), 60)
    theirs = release or "0.1"
    assert worker.returncode == 1
    assert (
        f"this host worker is of release {VERSION}, its control plane of {theirs}: upgrade the control plane first, or "
        f"start the host worker of {theirs} again; guests run on"
    ) in said.decode()
    assert ears.reports == []
    assert [path.name for path in record.parent.iterdir()] == ["config.json"]
    assert not (home / "host.json").exists()


async def test_a_host_that_could_not_ask_refuses_once_it_is_told(ears) -> None:
    """H-D4, H-E6: a control plane that is away keeps no host from starting."""
    ears.release = "0.1.9"
    async with HostApi("http://127.0.0.1:1", "secret") as away:
        assert not await check_release(away)
    async with HostApi(f"http://127.0.0.1:{ears.server.server_port}", "secret") as api:
        for refuses in (check_release, keep_checking):
            with pytest.raises(Conflict, match="upgrade the control plane first"):
                await refuses(api)


async def test_a_host_of_simulated_guests_takes_nothing_from_its_machine(tmp_path, ears) -> None:
    """X-4, X-1, H-A5: no network namespace, no firewall, no QEMU; the report says what it runs, and why."""
    taken = '{"token_id": "t", "caps": {"max_memory_mib": 512, "max_disk_gib": 9}}'
    (enrol(tmp_path, ears) / "join.json").write_text(taken)
    worker = await start(tmp_path, simulated_guests="only", bridge="told0", max_memory_mib="1024")
    try:
        assert await asyncio.to_thread(ears.heard.wait, 60)
        (only,) = ears.reports[0].hypervisors
        assert (only.name, only.available) == ("simulated", True)
        assert "chosen by name only" in only.why
        assert ears.reports[0].caps == Caps(max_memory_mib=1024, max_disk_gib=9), "what was said, else what it took"
        assert not Path("/sys/class/net/told0").exists()
    finally:
        worker.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(worker.communicate(), 40)
    assert worker.returncode == 0, said.decode()
