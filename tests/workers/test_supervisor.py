"""The supervisor with stand-in programs: it starts, restarts, adopts, and stops, each exactly once."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from drivers.confine import is_alive, read_boot_id, signal_process
from workers.keeper import end_process, pause_after
from workers.service import ServiceRecord, ServiceRecords
from workers.supervisor import ALREADY_RUNS
from workers.users import ensure_users, need_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: services run as other users")
SCRIPT = Path(__file__).with_name("stand_in_supervisor.py")
ROOT = Path(__file__).resolve().parents[2]


class Installation:
    """A state directory of stand-ins, and the supervisors that the test starts on it."""

    def __init__(self, folder: Path) -> None:
        self.run, self.logs = folder / "run", folder / "logs"
        self.opened, self.needed = folder / "opened", folder / "needed"
        self.run.mkdir(mode=0o700)
        self.logs.mkdir(mode=0o700)
        self.records = ServiceRecords(self.run)
        self.supervisors: list[asyncio.subprocess.Process] = []

    async def start(self) -> asyncio.subprocess.Process:
        words = [str(SCRIPT), str(self.run), str(self.logs), str(self.opened), str(self.needed)]
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=environment, stdout=asyncio.subprocess.DEVNULL
        )
        self.supervisors.append(process)
        return process

    async def await_record(self, name: str, wanted: Callable[[ServiceRecord], bool]) -> ServiceRecord:
        async with asyncio.timeout(20):
            while (record := self.records.read(name)) is None or not wanted(record):  # noqa: ASYNC110 - another process' state
                await asyncio.sleep(0.02)
        return record

    async def await_ready(self, name: str, *, not_pid: int = 0) -> ServiceRecord:
        def ready(record: ServiceRecord) -> bool:
            return record.state == "ready" and pid(record) != not_pid and alive(record)

        return await self.await_record(name, ready)

    async def close(self) -> None:
        for supervisor in self.supervisors:
            with contextlib.suppress(ProcessLookupError):
                supervisor.kill()
            await supervisor.wait()
        for name in ("first", "second", "third"):
            record = self.records.read(name)
            await end_process(record and record.process, signal.SIGKILL, 5)


def pid(record: ServiceRecord) -> int:
    return record.process.pid if record.process else 0


def alive(record: ServiceRecord) -> bool:
    return record.process is not None and is_alive(record.process, read_boot_id())


def uid_of(process_id: int) -> int:
    return Path(f"/proc/{process_id}").stat().st_uid


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    ensure_users()
    installation = Installation(tmp_path)
    yield installation
    await installation.close()


async def test_starts_in_order_as_its_user_and_logs(installation: Installation) -> None:
    """S-2: each service runs as its user, without privileges; what it says is in its own log."""
    await installation.start()
    first = await installation.await_ready("first")
    second = await installation.await_record("second", lambda record: record.state == "starting" and alive(record))
    assert first.started_at is not None
    assert second.started_at is not None
    assert first.started_at < second.started_at
    assert uid_of(pid(first)) == need_user("hostler").uid
    assert (installation.logs / "first.log").read_text() == "first begins\n"
    status = Path(f"/proc/{pid(first)}/status").read_text()
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status

    installation.opened.touch()
    await installation.await_ready("second")


async def test_waits_for_what_a_service_needs(installation: Installation) -> None:
    await installation.start()
    await installation.await_ready("first")
    third = await installation.await_record("third", lambda record: record.state == "waiting")
    assert third.detail == "waits for needed"
    assert third.process is None
    installation.needed.touch()
    await installation.await_ready("third")


async def test_starts_a_killed_service_again(installation: Installation) -> None:
    await installation.start()
    for restarts in (1, 2):
        before = await installation.await_ready("first")
        assert before.process is not None
        signal_process(before.process, signal.SIGKILL)
        after = await installation.await_ready("first", not_pid=pid(before))
        assert after.restarts == restarts
        assert not alive(before)


async def test_services_outlive_a_killed_supervisor_and_are_adopted(installation: Installation) -> None:
    """A second supervisor never starts a second copy of what runs."""
    installation.opened.touch()
    supervisor = await installation.start()
    before = [await installation.await_ready(name) for name in ("first", "second")]
    supervisor.kill()
    await supervisor.wait()
    assert all(alive(record) for record in before)

    second = await installation.start()
    # Ending one shows that the new supervisor watches what it has not started.
    process = before[1].process
    assert process is not None
    await installation.await_record("first", lambda record: record.state == "ready" and record.since > before[0].since)
    await installation.await_record("second", lambda record: record.state == "ready" and record.since > before[1].since)
    signal_process(process, signal.SIGKILL)
    await installation.await_ready("second", not_pid=process.pid)
    assert second.returncode is None
    assert pid(await installation.await_ready("first")) == pid(before[0])


async def test_a_second_supervisor_refuses(installation: Installation) -> None:
    await installation.start()
    await installation.await_ready("first")
    assert await (await installation.start()).wait() == ALREADY_RUNS


async def test_stops_in_reverse_order_and_kills_what_does_not_end(installation: Installation) -> None:
    installation.opened.touch()
    installation.needed.touch()
    supervisor = await installation.start()
    records = [await installation.await_ready(name) for name in ("first", "second", "third")]
    supervisor.terminate()
    async with asyncio.timeout(20):
        assert await supervisor.wait() == 0
    assert not any(alive(record) for record in records)
    stopped = [installation.records.read(name) for name in ("third", "second", "first")]
    assert [record and record.state for record in stopped] == ["stopped"] * 3
    times = [record.since for record in stopped if record]
    assert times == sorted(times)


def test_pauses_double_up_to_ten_seconds() -> None:
    assert [pause_after(failures) for failures in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert pause_after(10_000) == 10.0
