"""What goes on although its time is over changes nothing any more: threads, children, workers that were stopped.

The disk, the tap and the firewall are real; guests are processes that sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from drivers import confine
from drivers.machine import lock_worker
from drivers.network import Attachment
from drivers.network.dhcp import Dhcp
from drivers.processes import find_start_time, read_boot_id
from drivers.threads import OwnedExecutor
from model.errors import Conflict, Fenced
from model.process import ProcessRecord
from tests.activities.one_worker import VM, make_world
from tests.activities.test_vm import NONE, inventory
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.stopped import go_on, lives, stopped_program
from workers.keeper import end_process

PROJECT = Path(__file__).parents[2]
GONE = {"created": True, "deleted": True, "destroying": True}
BASE = 400_000 + secrets.randbelow(50_000) * 10


@pytest.fixture
async def world(tmp_path, netns) -> AsyncIterator[HostWorld]:
    """The host, without a worker of this process until `restart`."""
    world = make_world(tmp_path, netns, BASE)
    yield world
    if not hasattr(world, "host"):
        await world.restart()  # what a worker of another process has left is taken away by one of this
    await world.close()


class Worker:
    """A worker in a process of its own, with what it answers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid, self._process, self._in, self._out = process.pid, process, process.stdin, process.stdout

    async def hear(self) -> list[str]:
        async with asyncio.timeout(60):
            return (await self._out.readline()).decode().split()

    def order(self, pass_number: int, **row: bool) -> None:
        self._in.write(json.dumps({"pass_number": pass_number, **row}).encode() + b"\n")

    def record(self) -> ProcessRecord:
        started = find_start_time(self.pid)
        assert started is not None
        return ProcessRecord(pid=self.pid, start_time=started, boot_id=read_boot_id(), uid=0)

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@contextlib.asynccontextmanager
async def working(home: Path, netns: str, **environment: str) -> AsyncGenerator[Worker]:
    """Start a worker on the state directory and end it with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.activities.one_worker", str(home), netns, str(BASE)),
        cwd=PROJECT,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    worker = Worker(process)
    try:
        assert await worker.hear() == ["ready", str(worker.pid)]
        yield worker
    finally:
        await worker.close()


async def test_a_stopped_child_of_an_ended_step_is_dead_before_the_next_begins(world, monkeypatch) -> None:
    """L-G2, L-G5: qemu-img stands still in the middle of a disk: dead before a newer order acts."""
    await world.restart()
    with stopped_program("qemu-img", "create") as qemu_img:
        monkeypatch.setattr(confine, "PROGRAM_FOLDERS", f"{qemu_img.folder}:{confine.PROGRAM_FOLDERS}")
        older = asyncio.create_task(world.run_pass(make_row(VM)))
        child = await qemu_img.await_stopped()
        view = await world.run_pass(make_row(VM, **GONE))
        assert not lives(child)
    with pytest.raises(Fenced):
        await older
    assert view.observed.nothing
    assert await inventory(world) == NONE


async def test_a_stopped_worker_keeps_every_other_one_out(world, tmp_path, netns) -> None:
    """H-E3, L-G2: stopped in the middle of a step, over all its limits, it still is the only worker; then it yields."""
    with stopped_program("nft", "-f") as nft:
        nft.disarm()
        path = f"{nft.folder}:{os.environ['PATH']}"
        async with working(tmp_path, netns, PATH=path) as worker:
            nft.arm()
            worker.order(1)
            child = await nft.await_stopped()
            os.kill(worker.pid, signal.SIGSTOP)
            with pytest.raises(Conflict, match=f"process {worker.pid}"):
                lock_worker(tmp_path / "host")
            worker.order(2, **GONE)
            os.kill(worker.pid, signal.SIGCONT)
            go_on(child)
            assert sorted([await worker.hear(), await worker.hear()]) == [["1", "Fenced"], ["2", "ok"]]
        await world.restart()
        assert await inventory(world) == NONE


async def test_a_stopped_worker_that_is_replaced_takes_its_children_with_it(world, tmp_path, netns) -> None:
    """H-E3, L-G2: a transaction of the firewall that its dead worker left on its way never comes."""
    with stopped_program("nft", "-f") as nft:
        nft.disarm()
        path = f"{nft.folder}:{os.environ['PATH']}"
        async with working(tmp_path, netns, PATH=path) as worker:
            nft.arm()
            worker.order(1)
            child = await nft.await_stopped()
            os.kill(worker.pid, signal.SIGSTOP)
            assert await end_process(worker.record(), signal.SIGTERM, 0.2)
        os.close(lock_worker(tmp_path / "host"))
        await world.restart()
        world.pass_number = 1
        view = await world.run_pass(make_row(VM, **GONE))
        assert view.observed.nothing
        go_on(child)
        assert not lives(child)
        assert (await world.host.parts.network.inventory()).elements == frozenset()
    assert await inventory(world) == NONE


def attachment(world: HostWorld, vm_id: str, number: int) -> Attachment:
    names = world.names
    mac, tap = names.mac(vm_id), names.tap(vm_id)
    return Attachment(vm_id=vm_id, project="default", mac=mac, tap=tap, address=names.subnet[number])


def permit() -> None:
    """Let every change through: no newer order comes here."""


async def test_a_cancelled_caller_keeps_the_network_until_its_transaction_has_ended(world, monkeypatch) -> None:
    """L-G2: however often it is cancelled, another VM's change of the same tables begins only afterwards."""
    await world.restart()
    network = world.host.parts.network
    with stopped_program("nft", "-f") as nft:
        monkeypatch.setenv("PATH", f"{nft.folder}:{os.environ['PATH']}")
        older = asyncio.create_task(network.ensure(attachment(world, "vm1", 5), guard=permit))
        child = await nft.await_stopped()
        newer = asyncio.create_task(network.ensure(attachment(world, "vm2", 6), guard=permit))
        for _ in range(3):
            older.cancel()
            await asyncio.wait((older, newer), timeout=0.1)
            # Cancelled before it was begun it is killed, and then nothing is on its way.
            assert not lives(child) or not (older.done() or newer.done())
        go_on(child)
        await newer
    with pytest.raises(asyncio.CancelledError):
        await older


async def test_a_cancelled_caller_keeps_the_network_until_its_thread_has_ended(world, monkeypatch) -> None:
    """L-G2: a file of the DHCP server's that is being written is not read meanwhile."""
    await world.restart()
    network, let_go, reached = world.host.parts.network, threading.Event(), threading.Event()
    original = Dhcp._write

    def write(self, vm_id, line):
        if vm_id == "vm1":
            reached.set()
            assert let_go.wait(60)
        original(self, vm_id, line)

    monkeypatch.setattr(Dhcp, "_write", write)
    older = asyncio.create_task(network.ensure(attachment(world, "vm1", 5), guard=permit))
    assert await asyncio.to_thread(reached.wait, 60)
    newer = asyncio.create_task(network.ensure(attachment(world, "vm2", 6), guard=permit))
    older.cancel()
    await asyncio.wait((older, newer), timeout=0.3)
    assert not older.done()
    assert not newer.done()
    let_go.set()
    await newer
    with pytest.raises(asyncio.CancelledError):
        await older


OLDER: ContextVar[bool] = ContextVar("older", default=False)


class Stall:
    """Hold the n-th thread that the older pass begins before it does anything, whoever owns it."""

    def __init__(self) -> None:
        self.left = 0
        self.reached = asyncio.Event()
        self.go_on = threading.Event()
        self._loop = asyncio.get_running_loop()

    def at(self, number: int) -> None:
        self.left = number
        self.reached.clear()
        self.go_on.clear()

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        if self.left == 0 or not OLDER.get():
            return work
        self.left -= 1
        return work if self.left else self._held(work)

    def _held(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def late(*args: Any, **kwargs: Any) -> Any:
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self.go_on.wait(60)
            return work(*args, **kwargs)

        return late


@pytest.fixture
async def stall(monkeypatch) -> AsyncIterator[Stall]:
    stall = Stall()
    original = OwnedExecutor.submit

    def submit(self, fn, /, *args, **kwargs):
        return original(self, stall.around(fn), *args, **kwargs)

    monkeypatch.setattr(OwnedExecutor, "submit", submit)
    yield stall
    stall.go_on.set()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_thread_that_outlives_its_step_changes_nothing_that_a_newer_one_did(world, stall) -> None:
    """L-G2, L-G5: each thread of a create in turn stands still past its guard while the VM is deleted."""
    await world.restart()
    for number in range(1, 500):
        stall.at(number)
        OLDER.set(True)
        older = asyncio.create_task(world.run_pass(make_row(VM)))
        OLDER.set(False)
        reached = asyncio.create_task(stall.reached.wait())
        await asyncio.wait((older, reached), return_when=asyncio.FIRST_COMPLETED)
        newer = asyncio.create_task(world.run_pass(make_row(VM, **GONE)))
        # Long enough for a newer order that need not wait; one that must is let through before it gives up.
        await asyncio.wait((newer,), timeout=0.1)
        stall.go_on.set()
        if not stall.reached.is_set():
            reached.cancel()
            await asyncio.gather(older, newer)
            assert number > 20, "the sweep met too few threads to be one"
            return
        assert (await newer).observed.nothing, f"thread {number}"
        with pytest.raises(Fenced):
            await older
        assert await inventory(world) == NONE, f"thread {number}"
        assert not world.host.parts.jobs.is_busy(VM)
    raise AssertionError("the sweep does not end")
