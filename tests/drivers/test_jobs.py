"""One operation at a time on each VM, owned to its last thread (L-G2, L-G5)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from drivers import jobs as jobs_module
from drivers.fences import FenceStore
from drivers.jobs import Jobs
from model.errors import Busy, Fenced, StepFailed
from tests.fixtures.orders import IDENTITY, make_fence


@pytest.fixture
async def jobs(tmp_path) -> Jobs:
    fences = FenceStore(tmp_path / "fences", **IDENTITY)
    fences.load()
    jobs = Jobs(tmp_path / "locks", fences)
    jobs.start()
    return jobs


async def test_a_newer_order_ends_an_older_one_there_and_then(jobs) -> None:
    """L-G5: the older step is cancelled, is told Fenced, and its guard refuses."""
    held = asyncio.Event()

    async def older() -> None:
        async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
            held.set()
            try:
                await asyncio.Event().wait()
            finally:
                with pytest.raises(Fenced):
                    job.guard()

    task = asyncio.create_task(older())
    await held.wait()
    async with jobs.order("vm1", make_fence(1, 2, 1, 1)) as job, job.locked():
        with pytest.raises(Fenced):
            await task
        job.guard()
    assert not jobs.is_busy("vm1")


async def test_the_lock_is_free_only_when_the_last_thread_has_ended(jobs) -> None:
    """L-G2: a thread goes on when its task is cancelled; the lock waits for it."""
    started, let_end, ended_at = threading.Event(), threading.Event(), []

    def work() -> None:
        started.set()
        let_end.wait(10)
        ended_at.append(time.monotonic())

    async def older() -> None:
        async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
            await asyncio.to_thread(work)

    task = asyncio.create_task(older())
    await asyncio.to_thread(started.wait, 10)
    async with jobs.order("vm1", make_fence(1, 2, 1, 1)) as job:
        asyncio.get_running_loop().call_later(0.3, let_end.set)
        async with job.locked():
            assert ended_at
            assert ended_at[0] <= time.monotonic()
    with pytest.raises(Fenced):
        await task


async def test_a_cancel_from_outside_stays_a_cancel(jobs) -> None:
    held = asyncio.Event()

    async def step() -> None:
        async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
            held.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(step())
    await held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not jobs.is_busy("vm1")


async def test_an_error_made_of_the_cancel_is_still_fenced(jobs) -> None:
    held = asyncio.Event()

    async def older() -> None:
        async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
            held.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise StepFailed("a driver's own words") from None

    task = asyncio.create_task(older())
    await held.wait()
    async with jobs.order("vm1", make_fence(1, 2, 1, 1)):
        pass
    with pytest.raises(Fenced):
        await task
    assert task.cancelling() == 0


async def test_a_held_lock_is_busy_after_its_wait(jobs, monkeypatch) -> None:
    monkeypatch.setattr(jobs_module, "BUSY_SECONDS", 0.2)
    held, let_end = asyncio.Event(), asyncio.Event()

    async def equal() -> None:
        async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
            held.set()
            await let_end.wait()

    task = asyncio.create_task(equal())
    await held.wait()
    with pytest.raises(Busy):
        async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
            pass
    async with jobs.order("vm2", make_fence(1, 1, 1, 1)) as job, job.locked():
        pass  # another VM never waits
    let_end.set()
    await task


async def test_a_lock_of_another_process_is_busy(jobs, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(jobs_module, "BUSY_SECONDS", 0.2)
    code = "import fcntl,sys; f=open(sys.argv[1],'w'); fcntl.flock(f,2); print('held',flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", code, str(tmp_path / "locks" / "vm1.lock")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:  # noqa: ASYNC220
        holder.stdout.readline()
        with pytest.raises(Busy):
            async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
                pass
        holder.stdin.close()
        holder.wait(10)
    async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
        pass


async def test_no_child_inherits_the_lock(jobs) -> None:
    """S-11: a child started under the lock holds no descriptor of it."""
    async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
        child = await asyncio.create_subprocess_exec("sleep", "60")
        try:
            while Path(f"/proc/{child.pid}/comm").read_text().strip() != "sleep":  # noqa: ASYNC110 - until it is that
                await asyncio.sleep(0.01)
            names = [str(entry.readlink()) for entry in Path(f"/proc/{child.pid}/fd").iterdir()]
            assert not [name for name in names if name.endswith(".lock")]
        finally:
            child.kill()
            await child.wait()


async def test_what_the_host_does_by_itself_yields_to_any_order(jobs) -> None:
    """H-E6: it raises no fence, and an order with an equal fence ends it."""
    async with jobs.order("vm1", make_fence(1, 1, 1, 1)):
        with pytest.raises(Busy):
            async with jobs.own_initiative("vm1"):
                pass
    held = asyncio.Event()

    async def own() -> None:
        async with jobs.own_initiative("vm1") as job, job.locked():
            held.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(own())
    await held.wait()
    async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
        pass
    with pytest.raises(Fenced):
        await task


async def test_the_last_operation_takes_the_lock_with_it(jobs, tmp_path) -> None:
    """L-R5: nothing is left; who waits meanwhile gets a lock that others see (L-G2)."""
    path, folder = tmp_path / "locks" / "vm1.lock", tmp_path / "machines" / "vm1"
    folder.mkdir(parents=True)
    jobs = Jobs(path.parent, jobs.fences, machines=folder.parent)
    held = asyncio.Event()

    async def next_one() -> int:
        async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job:
            held.set()
            async with job.locked():
                return path.stat().st_ino

    async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
        waiting = asyncio.create_task(next_one())
        await held.wait()
        folder.rmdir()
    await waiting
    assert not path.exists()
    folder.mkdir()
    async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
        pass
    other = os.open(path, os.O_RDWR)
    async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.rmdir()
    os.close(other)
    assert not path.exists()


async def test_one_that_waits_for_a_lock_that_is_removed_takes_the_new_one(jobs, tmp_path) -> None:
    """L-G2: a lock on a file without a name excludes nobody."""
    path = tmp_path / "locks" / "vm1.lock"
    path.touch()
    old = os.open(path, os.O_RDWR)
    fcntl.flock(old, fcntl.LOCK_EX)

    async def take() -> int:
        async with jobs.order("vm1", make_fence(1, 1, 1, 1)) as job, job.locked():
            return path.stat().st_ino

    waiting = asyncio.create_task(take())
    async with asyncio.timeout(5):
        while sum(os.path.samestat(path.stat(), found) for found in open_files()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    path.unlink()
    os.close(old)
    assert await waiting == path.stat().st_ino


def open_files() -> list[os.stat_result]:
    found = []
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.fstat(int(number.name)))
    return found
