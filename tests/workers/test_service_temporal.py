"""Our own Temporal server, real: its user, its addresses, what it keeps, and who is seen polling."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from drivers.confine import signal_process
from model.process import ProcessRecord
from model.temporal import CONTROL_QUEUE
from runtime.deployment import deployment_config
from tests.runtime.flows import CreateVm
from workers.choice import Wishes, choose_ports
from workers.folders import ensure_folders
from workers.installation import Installation, derive_settings
from workers.service import ServiceRecord, ServiceRecords
from workers.service_hostler import control_service, is_polled_since
from workers.service_temporal import call, temporal_service
from workers.supervisor import Supervisor
from workers.users import ensure_users, need_user

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: Temporal runs as a user of its own"),
    pytest.mark.slow,
]


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    ensure_users()
    ports = choose_ports(None, Wishes(api_port=0, temporal_port=0, ui_port=0))
    installation = Installation(tmp_path / "home", derive_settings("temporaltest"), ports)
    ensure_folders(installation)
    supervisor = Supervisor([temporal_service(installation)], installation.run, installation.logs)
    running = asyncio.create_task(supervisor.run())
    await asyncio.wait_for(supervisor.keepers["temporal"].ready.wait(), 60)
    yield installation
    supervisor.stopping.set()
    await running


async def await_temporal(installation: Installation, *, not_pid: int = 0) -> ProcessRecord:
    def ready(record: ServiceRecord | None) -> bool:
        return record is not None and record.state == "ready" and record.process is not None

    records = ServiceRecords(installation.run)
    async with asyncio.timeout(60):
        while not ready(record := records.read("temporal")) or record.process.pid == not_pid:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert record is not None
    assert record.process is not None
    return record.process


async def test_runs_as_its_user_on_loopback_and_keeps_what_it_was_told(installation: Installation) -> None:
    """S-2, S-8: a user that can read no key; loopback only; what was written survives a kill."""
    process = await await_temporal(installation)
    assert Path(f"/proc/{process.pid}").stat().st_uid == need_user("hostler-temporal").uid
    listeners = await asyncio.to_thread(subprocess.check_output, ["ss", "-ltnpH"], text=True)
    own = [line.split()[3] for line in listeners.splitlines() if f"pid={process.pid}," in line]
    assert own
    assert all(address.startswith("127.0.0.1:") for address in own), own

    client = await Client.connect(installation.temporal_address)
    await client.start_workflow("CreateVm", id="kept", task_queue=CONTROL_QUEUE)
    signal_process(process, signal.SIGKILL)
    await await_temporal(installation, not_pid=process.pid)
    async with asyncio.timeout(30):
        description = await client.get_workflow_handle("kept").describe()
    assert description.status is not None
    assert description.status.name == "RUNNING"
    told = await call(installation, "operator", "namespace", "describe", "default")
    assert re.search(rb"RetentionTtl\s+720h", told.stdout), told.stdout


async def test_a_control_worker_is_ready_once_it_polls(installation: Installation) -> None:
    ready = control_service(installation).ready
    process = await await_temporal(installation)
    ticks = os.sysconf("SC_CLK_TCK")
    now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * ticks)
    own = process.model_copy(update={"start_time": now})
    assert not await ready(own)
    client = await Client.connect(installation.temporal_address)
    versioned = deployment_config("1.0.0")
    async with Worker(client, task_queue=CONTROL_QUEUE, workflows=[CreateVm], deployment_config=versioned):
        async with asyncio.timeout(30):
            while not await ready(own):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        later = process.model_copy(update={"start_time": now + 600 * ticks})
        assert not await ready(later)  # an earlier worker's polls say nothing about it


@pytest.mark.parametrize(
    ("stamp", "polled"),
    [
        ({"seconds": 100, "nanos": 900_000_000}, True),
        ({"seconds": 100, "nanos": 100_000_000}, False),
        ({"seconds": 100}, True),
        ({"seconds": 99, "nanos": 999_000_000}, False),
        ({}, False),
    ],
)
def test_a_poll_counts_by_the_fraction_of_its_second(stamp: dict[str, int], polled: bool) -> None:
    """A worker that polls within the second of its start would else be seen only by its next poll, a minute later."""
    description = json.dumps({"pollers": [{"last_access_time": stamp}]}).encode()
    assert is_polled_since(description, 100.5) is polled
