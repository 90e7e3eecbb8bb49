"""X-2: what every hypervisor promises (`drivers.hypervisor.Hypervisor`), each promise once, against each of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drivers.cgroups import Cgroups
from drivers.console import ConsoleLog
from drivers.hypervisor import Guest, GuestEvent, GuestVolume, Hypervisor
from drivers.hypervisor.choice import Hypervisors
from drivers.hypervisor.qemu import Qemu
from drivers.hypervisor.simulated import Simulated
from drivers.processes import read_boot_id, signal_process
from drivers.simulated import Simulation, write_disk
from model.errors import Permanent, StepFailed
from model.process import ProcessRecord
from model.volume import volume_serial
from tests.drivers.guests import make_guest, make_names, open_tap

END_SECONDS = 15.0
DISK_BYTES = 256 << 20
pytestmark = pytest.mark.timeout(180)


class Bench:
    """One driver, behind the choice that a host makes, and one guest that it may boot."""

    guest: Guest

    def __init__(self) -> None:
        self.names = make_names()
        self.recorded: list[ProcessRecord] = []

    def new_driver(self) -> Hypervisor:
        """A driver as a restarted worker has it: it knows nothing but names and folders."""
        raise NotImplementedError

    async def restart(self) -> None:
        """Put a new driver in the place of the one there was, as another worker does."""
        self.driver = self.new_driver()

    async def boot(self, *, record: Callable[[ProcessRecord], Awaitable[None]] | None = None) -> ProcessRecord:
        async def note(process: ProcessRecord) -> None:
            self.recorded.append(process)

        with open_tap() if os.geteuid() == 0 else contextlib.nullcontext(0) as tap:
            return await self.driver.boot(self.guest, tap, record=record or note)

    async def power(self, process: ProcessRecord | None) -> tuple[str | None, str | None, ProcessRecord | None]:
        state = await self.driver.find(self.guest, process)
        return state.power, state.ended, state.process

    async def until_it_hears(self) -> None:
        """Wait until the guest hears its power button."""

    def kill(self, process: ProcessRecord) -> None:
        """End the guest's process from outside."""
        raise NotImplementedError

    def silence(self, process: ProcessRecord, *, silent: bool) -> None:
        """Let the hypervisor answer nothing, or answer again."""
        raise NotImplementedError

    async def clean(self) -> None:
        await self.driver.end(self.guest, None, END_SECONDS)
        await self.driver.release(self.guest.vm_id, self.guest.sockets)


class SimulatedBench(Bench):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.simulation = Simulation(folder / "simulated", read_boot_id)
        disk, seed, uid = folder / "disk", folder / "seed.iso", self.names.uid_base
        write_disk(disk, DISK_BYTES)
        seed.touch()
        self.guest = Guest(
            vm_id="vm-1",
            uid=uid,
            gid=uid,
            cpu_millicores=1000,
            memory_mib=128,
            mac=self.names.mac("vm-1"),
            disk=disk,
            disk_format="qcow2",
            disk_bytes=DISK_BYTES,
            seed=seed,
            sockets=folder / "sockets",
            accelerator="tcg",
            hypervisor="simulated",
        )

    def new_driver(self) -> Hypervisor:
        simulation = Simulation(self.guest.disk.parent / "simulated", read_boot_id)
        return Hypervisors(Simulated(simulation, self.names, allowed=True))

    def kill(self, process: ProcessRecord) -> None:
        self.simulation.cause("vm-1", "crash")

    def silence(self, process: ProcessRecord, *, silent: bool) -> None:
        self.simulation.control("vm-1", answers=not silent)


class QemuBench(Bench):
    def __init__(self, folder: Path, demo) -> None:
        super().__init__()
        self.cgroups = Cgroups.detect(self.names.cgroup)
        self.guest = make_guest(folder, self.names, demo)
        self.console = ConsoleLog(folder, 1 << 20)
        self.qemu: Qemu | None = None

    def new_driver(self) -> Hypervisor:
        self.qemu = Qemu(self.names, self.cgroups, read_boot_id)
        return Hypervisors(self.qemu)

    async def restart(self) -> None:
        if self.qemu is not None:
            for monitor in self.qemu._monitors.values():  # a worker's end closes its connections
                await monitor.close()
        await super().restart()

    async def until_it_hears(self) -> None:
        self.console.start(self.guest.sockets)
        async with asyncio.timeout(90):
            while b"guest login:" not in self.console.tail(1 << 20):  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.05)

    def kill(self, process: ProcessRecord) -> None:
        signal_process(process, signal.SIGKILL)

    def silence(self, process: ProcessRecord, *, silent: bool) -> None:
        signal_process(process, signal.SIGSTOP if silent else signal.SIGCONT)

    async def clean(self) -> None:
        await self.console.stop()
        await super().clean()
        for controller in self.cgroups.controllers:
            folder = self.cgroups.root / controller / self.cgroups.name
            if folder.exists():
                folder.rmdir()


@pytest.fixture(params=["simulated", "qemu"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    if request.param == "qemu" and os.geteuid() != 0:
        pytest.skip("only root may start guests as users of their own")
    folder = tmp_path / "machine"
    folder.mkdir()
    made: Bench = SimulatedBench(folder)
    if request.param == "qemu":
        made = QemuBench(folder, request.getfixturevalue("demo_guest"))
    await made.restart()
    yield made
    await made.clean()


async def test_it_says_beforehand_what_it_can_and_why(bench: Bench) -> None:
    """X-1: each hypervisor says whether it runs guests here, and why."""
    (found,) = await bench.driver.find_availability()
    assert found.name == bench.guest.hypervisor
    assert found.available, found.why
    assert found.why


async def test_a_boot_is_one_process_that_was_recorded_before(bench: Bench) -> None:
    """L-G3, L-G4: the recorded process, and no other, runs; another boot of the VM is refused and records nothing."""

    async def no_room(process: ProcessRecord) -> None:
        raise StepFailed("no room")

    with pytest.raises(StepFailed, match="no room"):
        await bench.boot(record=no_room)
    assert await bench.driver.find_processes() == [], "what could not be recorded runs nothing"
    process = await bench.boot()
    assert bench.recorded == [process]
    assert process.boot_id == read_boot_id()
    assert process.uid == bench.guest.uid
    assert await bench.driver.find_processes() == [process]
    with pytest.raises(StepFailed, match="still lives"):
        await bench.boot()
    assert bench.recorded == [process]
    assert await bench.driver.find_processes() == [process]


async def test_a_guest_outlives_its_driver_and_is_found_by_its_record(bench: Bench) -> None:
    """H-E5, premise 4: a new driver finds the same process; another VM's record, uid and name find nothing of it."""
    process = await bench.boot()
    await bench.restart()
    assert await bench.power(process) == ("running", None, process)
    assert await bench.power(None) == ("running", None, process), "what no record names is found, too"
    other = replace(bench.guest, vm_id="vm-2", uid=bench.guest.uid + 1)
    assert (await bench.driver.find(other, None)).process is None
    reused = process.model_copy(update={"start_time": process.start_time - 1})
    state = await bench.driver.find(bench.guest, reused)
    assert state.process == process, "the recorded one is gone, and another lives: never taken for it"
    with pytest.raises(StepFailed, match="gone"):
        await bench.driver.pause(bench.guest, reused)
    assert await bench.power(process) == ("running", None, process)


async def test_pause_and_resume_may_be_repeated(bench: Bench) -> None:
    """X-1, L-V11: a pause that was asked for is no pause by the hypervisor."""
    process = await bench.boot()
    for _ in range(2):
        await bench.driver.pause(bench.guest, process)
        state = await bench.driver.find(bench.guest, process)
        assert (state.power, state.paused_by_hypervisor, state.process) == ("paused", None, process)
    for _ in range(2):
        await bench.driver.resume(bench.guest, process)
        assert await bench.power(process) == ("running", None, process)


@pytest.mark.parametrize("bench", ["simulated", pytest.param("qemu", marks=pytest.mark.slow)], indirect=True)
async def test_a_guest_that_is_asked_to_stop_ends_and_stays_readable(bench: Bench) -> None:
    """L-V3, L-V4: its end is told while its process is still there, to a new driver, too."""
    process = await bench.boot()
    await bench.until_it_hears()
    assert not await bench.driver.await_end(bench.guest, process, 0.1)
    await bench.driver.ask_to_stop(bench.guest, process)
    assert await bench.driver.await_end(bench.guest, process, 60)
    await bench.restart()
    assert await bench.power(process) == ("stopped", "guest-shutdown", process)


async def test_the_end_is_proven_and_may_be_repeated(bench: Bench) -> None:
    """S-11, L-R5: after `end` no process is left; then nobody is reached any more."""
    process = await bench.boot()
    for _ in range(2):
        await bench.driver.end(bench.guest, process, END_SECONDS)
        assert await bench.driver.find_processes() == []
    assert await bench.power(process) == ("stopped", "process-gone", None)
    assert await bench.power(None) == ("stopped", None, None)
    assert await bench.driver.await_end(bench.guest, process, 5)
    calls = (bench.driver.pause, bench.driver.resume, bench.driver.ask_to_stop)
    for call in calls:
        with pytest.raises(StepFailed, match="gone"):
            await call(bench.guest, process)
    with pytest.raises(StepFailed):
        await bench.driver.grow_disk(bench.guest, process, 2 * DISK_BYTES)


async def test_a_user_of_no_guest_is_never_ended(bench: Bench) -> None:
    """S-10: only users of the installation's own range are ended."""
    with pytest.raises(Permanent, match="none of this installation's"):
        await bench.driver.end(replace(bench.guest, uid=0), None, 1)


async def test_the_watcher_tells_what_moves_and_that_it_is_gone(bench: Bench) -> None:
    """H-S11, L-V11: pauses and resumes once each, a silent monitor nothing at all, and last that no process is left."""
    process = await bench.boot()
    told: asyncio.Queue[GuestEvent] = asyncio.Queue()

    async def tell() -> None:
        async for event in bench.driver.watch(bench.guest, process):
            await told.put(event)

    watching = asyncio.create_task(tell())
    for call, kind in ((bench.driver.pause, "paused"), (bench.driver.resume, "resumed")):
        await call(bench.guest, process)
        event = await asyncio.wait_for(told.get(), 20)
        assert (event.kind, event.reason) == (kind, None)
    bench.silence(process, silent=True)
    state = await bench.driver.find(bench.guest, process)
    assert (state.power, state.ended, state.process) == (None, None, process)
    assert state.detail
    bench.silence(process, silent=False)
    assert told.empty()
    bench.kill(process)
    assert await asyncio.wait_for(told.get(), 20) == GuestEvent(kind="gone", reason="process-gone")
    await asyncio.wait_for(watching, 20)
    assert await bench.power(process) == ("stopped", "process-gone", None)


async def test_a_disk_grows_live_and_never_shrinks(bench: Bench) -> None:
    """L-V8: a size that the disk has already is as good."""
    process = await bench.boot()
    for _ in range(2):
        await bench.driver.grow_disk(bench.guest, process, 2 * DISK_BYTES)
    with pytest.raises(Permanent, match="cannot shrink"):
        await bench.driver.grow_disk(bench.guest, process, DISK_BYTES)


async def test_strays_are_found_by_the_vm_and_killed(bench: Bench) -> None:
    """L-G8: without a record a VM's processes are found and ended, and no other VM's."""
    process = await bench.boot()
    assert await bench.driver.find_strays("vm-2", set()) == []
    (stray,) = await bench.driver.find_strays("vm-1", {bench.guest.uid})
    assert stray == process
    other = process.model_copy(update={"start_time": process.start_time - 1})
    await bench.driver.kill_strays([other])
    assert await bench.power(process) == ("running", None, process), "its pid belongs to another process by now"
    await bench.driver.kill_strays([stray])
    assert await bench.driver.await_end(bench.guest, process, END_SECONDS)
    assert await bench.driver.find_strays("vm-1", {bench.guest.uid}) == []


async def test_what_a_boot_made_beside_the_process_is_released(bench: Bench) -> None:
    """L-R5, L-R6: that there is nothing, or nothing any more, is as good."""
    await bench.driver.release("vm-2", bench.guest.sockets.with_name("none"))
    process = await bench.boot()
    await bench.driver.end(bench.guest, process, END_SECONDS)
    for _ in range(2):
        await bench.driver.release("vm-1", bench.guest.sockets)
        assert not bench.guest.sockets.exists()
    assert await bench.power(None) == ("stopped", None, None)


def make_volume(bench: Bench, name: str) -> GuestVolume:
    path = bench.guest.disk.parent / name
    with path.open("wb") as file:
        file.truncate(1 << 20)
    return GuestVolume(name, path, 1 << 20)


@pytest.mark.parametrize("bench", ["simulated", pytest.param("qemu", marks=pytest.mark.slow)], indirect=True)
async def test_volumes_come_and_go_and_grow_while_the_guest_runs(bench: Bench) -> None:
    """H-V1, H-V4, X-2: each call may be repeated, also by a driver that knows nothing of what was done before."""
    first, second = make_volume(bench, "first"), make_volume(bench, "second")
    bench.guest = replace(bench.guest, volumes=(first,))
    process = await bench.boot()
    one, other = volume_serial("first"), volume_serial("second")
    assert await bench.driver.find_volumes(bench.guest, process) == {one}
    await bench.until_it_hears()
    for _ in range(2):
        await bench.driver.attach_volume(bench.guest, process, second)
        assert await bench.driver.find_volumes(bench.guest, process) == {one, other}
        await bench.restart()
    for volume in (first, second):
        await bench.driver.attach_volume(bench.guest, process, replace(volume, size_bytes=3 << 20))
        assert volume.path.stat().st_size == 3 << 20
    for _ in range(2):
        await bench.driver.detach_volume(bench.guest, process, "first")
        assert await bench.driver.find_volumes(bench.guest, process) == {other}
    await bench.driver.attach_volume(bench.guest, process, replace(first, size_bytes=3 << 20))
    assert await bench.driver.find_volumes(bench.guest, process) == {one, other}
    assert await bench.power(process) == ("running", None, process)
