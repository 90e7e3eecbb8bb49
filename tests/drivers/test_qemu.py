"""QEMU for real, emulated: from the first word on the console to the proof that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from drivers.cgroups import Cgroups
from drivers.confine import await_end, is_alive, read_boot_id, signal_process
from drivers.console import ConsoleLog
from drivers.hypervisor import Guest, GuestState
from drivers.hypervisor.qemu import Qemu
from drivers.hypervisor.qemu_limits import find_limits
from drivers.processes import may_raise_limits
from model.errors import Permanent, StepFailed
from model.process import ProcessRecord
from tests.drivers.guests import make_guest, make_names, open_tap

PROJECT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may start guests as users of their own"),
    pytest.mark.timeout(180),
]


class World:
    """One guest with its driver, booted when a test asks for it."""

    def __init__(self, folder: Path, demo) -> None:
        self.names = make_names()
        self.cgroups = Cgroups.detect(self.names.cgroup)
        self.qemu = self.restart()
        self.guest = make_guest(folder, self.names, demo)
        self.console = ConsoleLog(folder, 1 << 20)
        self.records: list[ProcessRecord] = []

    def restart(self) -> Qemu:
        """A driver as a restarted worker has it: it knows nothing but names."""
        return Qemu(self.names, self.cgroups, read_boot_id)

    async def record(self, process: ProcessRecord) -> None:
        self.records.append(process)

    async def boot(self, guest: Guest | None = None) -> ProcessRecord:
        with open_tap() as tap:
            return await self.qemu.boot(guest or self.guest, tap, record=self.record)

    async def until_console(self, mark: bytes, seconds: float = 90) -> None:
        async with asyncio.timeout(seconds):
            while mark not in self.console.tail(1 << 20):  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.05)

    async def clean(self) -> None:
        await self.console.stop()
        await self.qemu.end(self.guest, None, 10)
        await self.qemu.release(self.guest.vm_id, self.guest.sockets)
        for controller in self.cgroups.controllers:
            folder = self.cgroups.root / controller / self.cgroups.name
            if folder.exists():
                folder.rmdir()


@pytest.fixture
async def world(tmp_path, request):
    world = World(tmp_path / "machine", request.getfixturevalue("demo_guest"))
    yield world
    await world.clean()


@asynccontextmanager
async def booted(world: World):
    """A guest whose machine runs; its kernel may still be starting."""
    world.console.start(world.guest.sockets)
    yield await world.boot()


@pytest.mark.slow
async def test_a_guests_whole_life(world: World):
    """L-V3, X-1: boots, pauses, resumes, ends when it is asked to, stays readable, and is proven dead."""
    async with booted(world) as process:
        assert world.records == [process]
        assert process.uid == world.guest.uid
        state = await world.qemu.find(world.guest, process)
        assert (state.power, state.process) == ("running", process)
        assert await world.qemu.find_processes() == [process]
        with pytest.raises(StepFailed, match="still lives"):
            await world.boot()
        await world.until_console(b"guest login:")
        await world.qemu.pause(world.guest, process)
        await world.qemu.pause(world.guest, process)
        state = await world.qemu.find(world.guest, process)
        assert (state.power, state.paused_by_hypervisor) == ("paused", None)
        await world.qemu.resume(world.guest, process)
        assert (await world.qemu.find(world.guest, process)).power == "running"
        assert not await world.qemu.await_end(world.guest, process, 0.3)
        await world.qemu.ask_to_stop(world.guest, process)
        assert await world.qemu.await_end(world.guest, process, 60)
        for driver in (world.qemu, world.restart()):
            await world.qemu.find(world.guest, process)
            if driver is not world.qemu:
                await world.qemu._monitor(world.guest).close()
            state = await driver.find(world.guest, process)
            assert (state.power, state.ended, state.process) == ("stopped", "guest-shutdown", process)
            if driver is not world.qemu:
                await driver._monitor(world.guest).close()
        assert is_alive(process, read_boot_id())
        await world.qemu.end(world.guest, process, 10)
        assert not is_alive(process, read_boot_id())
        assert await world.qemu.find_processes() == []
        assert world.cgroups.find_processes(world.guest.vm_id) == []
        state = await world.qemu.find(world.guest, process)
        assert (state.power, state.ended, state.process) == ("stopped", "process-gone", None)
        await world.qemu.end(world.guest, process, 10)
        await world.qemu.release(world.guest.vm_id, world.guest.sockets)
        await world.qemu.release(world.guest.vm_id, world.guest.sockets)
        assert not world.guest.sockets.exists()
        assert world.cgroups.list_ids() == []
        assert (await world.qemu.find(world.guest, None)).ended is None


async def test_the_process_has_what_is_listed_and_nothing_else(world: World):
    """S-11, S-12, S-42: uid, no capability, no environment, exact descriptors, own cgroup and session, no secret."""
    async with booted(world) as process:
        folder = Path(f"/proc/{process.pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        uid = str(world.guest.uid)
        assert status["Uid"].split() == status["Gid"].split() == [uid] * 4
        assert status["Groups"].split() == []
        assert {int(status[f"Cap{n}"], 16) for n in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert status["NoNewPrivs"].strip() == "1"
        assert status["Seccomp"].strip() == "2"
        assert (folder / "environ").read_bytes() == b""
        assert (folder / "cwd").readlink() == Path("/")
        found = {int(path.name): str(path.readlink()) for path in (folder / "fd").iterdir()}
        assert found[0] == found[1] == "/dev/null"
        assert found[2].startswith("pipe:")
        others = [target for target in found.values() if not re.match(r"(socket|pipe|anon_inode):", target)]
        files = {str(world.guest.disk), str(world.guest.base), str(world.guest.seed)}
        assert set(others) == files | {"/dev/net/tun", "/dev/null"}, "never a folder, never a lock"
        assert len([target for target in found.values() if target.startswith("pipe:")]) == 1
        sockets = [target for target in found.values() if target.startswith("socket:")]
        assert len(sockets) <= 4, "two that listen, and who is connected to them"
        assert world.cgroups.find_processes(world.guest.vm_id) == [process.pid]
        argv = (folder / "cmdline").read_bytes().split(b"\0")
        assert not any(str(path).encode() in word for path in (world.guest.disk, world.guest.sockets) for word in argv)
        limits = (folder / "limits").read_text()
        assert re.search(r"Max core file size +0 +0", limits)
        assert re.search(r"Max open files +256 +256", limits)


async def test_killed_from_outside_is_gone(world: World):
    """L-V1: a process that is gone without a recorded stop; found by the watcher at once, by a look afterwards."""
    async with booted(world) as process:
        events = world.qemu.watch(world.guest, process)
        watching = asyncio.create_task(collect(events))
        signal_process(process, signal.SIGKILL)
        assert [(event.kind, event.reason) for event in await asyncio.wait_for(watching, 10)] == [
            ("gone", "process-gone")
        ]
        state = await world.qemu.find(world.guest, process)
        assert (state.power, state.ended) == ("stopped", "process-gone")


async def test_a_guest_that_the_kernel_killed_for_its_memory_is_told_so(world: World):
    """H-A5: beside a process of its own that takes all there is; the next boot's end has nothing of it."""
    for hog in (True, False):
        async with booted(world) as process:
            if hog:
                files = world.cgroups.ensure(world.guest.vm_id, find_limits(world.guest))
                join = "".join(f"echo $$ > {file} && " for file in files)
                eater = await asyncio.create_subprocess_exec("/bin/sh", "-c", f"{join}exec tail /dev/zero")
                await eater.wait()
            signal_process(process, signal.SIGKILL)
            assert await await_end(process, 10)
            state = await world.qemu.find(world.guest, process)
            assert ("out of memory" in state.detail, state.ended) == (hog, "process-gone")


async def test_the_watcher_tells_what_moves(world: World):
    """L-V11: pauses and resumes are told once each; a QEMU that does not answer is no death."""
    async with booted(world) as process:
        events = world.qemu.watch(world.guest, process)
        told: asyncio.Queue[str] = asyncio.Queue()

        async def tell() -> None:
            async for event in events:
                await told.put(event.kind)

        watching = asyncio.create_task(tell())
        for act, kind in ((world.qemu.pause, "paused"), (world.qemu.resume, "resumed"), (world.qemu.pause, "paused")):
            await act(world.guest, process)
            assert await asyncio.wait_for(told.get(), 20) == kind
        signal_process(process, signal.SIGSTOP)
        state = await world.qemu.find(world.guest, process)
        assert (state.power, state.ended, state.process) == (None, None, process)
        assert "did not answer" in state.detail
        assert told.empty()
        signal_process(process, signal.SIGKILL)
        assert await asyncio.wait_for(told.get(), 20) == "gone"
        await watching


@pytest.fixture
def full_filesystem(tmp_path: Path):
    """A small filesystem in memory, and the file that takes all the room of it."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no filesystem may be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
async def test_a_guest_without_room_stands_still_until_there_is_some(full_filesystem: Path, world: World):
    """L-V11: told as no failure of its disk, and whether the cause remains; it goes on where it stood."""
    disk, filler = full_filesystem / "disk", full_filesystem / "filler"
    shutil.copy(world.guest.disk, disk)
    os.chown(disk, world.guest.uid, world.guest.gid)
    world.guest = replace(world.guest, disk=disk)
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass

    async def until_stalled() -> GuestState:
        async with asyncio.timeout(90):
            while (state := await world.qemu.find(world.guest, process)).paused_by_hypervisor is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return state

    async with booted(world) as process:
        for _ in range(2):
            state = await until_stalled()
            told = (state.power, state.paused_by_hypervisor, state.cause_remains, state.process)
            assert told == ("paused", "no-space", True, process)
            await world.qemu.resume(world.guest, process)
        await until_stalled()
        filler.unlink()
        assert not (await until_stalled()).cause_remains
        await world.qemu.resume(world.guest, process)
        await world.until_console(b"guest login:")
        state = await world.qemu.find(world.guest, process)
        assert (state.power, state.paused_by_hypervisor, state.process) == ("running", None, process)
        await world.qemu.end(world.guest, process, 10)


async def test_a_guest_outlives_its_worker(world: World, tmp_path):
    """L-G4, premise 4: a worker's whole group is killed, the guest lives on with the same pid and is found."""
    code = """
import asyncio, json, os, pickle, signal, sys
from tests.drivers.guests import open_tap
from drivers.cgroups import Cgroups
from drivers.confine import read_boot_id
from drivers.hypervisor.qemu import Qemu
guest, names = pickle.loads(bytes.fromhex(sys.argv[1]))
async def record(p):
    print(p.model_dump_json(), flush=True)
async def main():
    with open_tap() as tap:
        await Qemu(names, Cgroups.detect(names.cgroup), read_boot_id).boot(guest, tap, record=record)
    os.killpg(0, signal.SIGKILL)
asyncio.run(main())
"""
    import pickle

    argument = pickle.dumps((world.guest, world.names)).hex()
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, argument, stdout=asyncio.subprocess.PIPE, cwd=PROJECT, start_new_session=True
    )
    out, _ = await worker.communicate()
    assert worker.returncode == -signal.SIGKILL
    process = ProcessRecord(**json.loads(out))
    for _ in range(2):
        state = await world.qemu.find(world.guest, process)
        assert (state.power, state.process) == ("running", process)
    adopted = await world.qemu.find(world.guest, None)
    assert adopted.process == process
    await world.qemu.end(world.guest, process, 10)
    assert await await_end(process, 0)


async def test_the_disk_grows_live_and_never_shrinks(world: World):
    """L-V8: a disk only grows, live; the limit on the size of files is raised first (S-11)."""
    async with booted(world) as process:
        size = 1 << 30
        await world.qemu.grow_disk(world.guest, process, size)
        await world.qemu.grow_disk(world.guest, process, size)
        if may_raise_limits():
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            assert int(re.search(r"Max file size +(\d+)", limits)[1]) > size
        with pytest.raises(Permanent, match="cannot shrink"):
            await world.qemu.grow_disk(world.guest, process, size // 2)


async def test_a_failed_start_says_what_qemu_said_and_leaves_no_process(world: World):
    """L-V5: what the hypervisor said before it died, without a host path."""
    broken = world.guest.kernel.parent / "none"
    kernel = world.guest.disk.parent / "kernel"
    kernel.write_bytes(b"no kernel")
    kernel.chmod(0o644)
    with pytest.raises(StepFailed, match=r"QEMU ended while it started: .*kernel") as caught:
        await world.boot(replace(world.guest, kernel=kernel))
    assert str(kernel.parent) not in str(caught.value)
    assert await world.qemu.find_processes() == []
    with pytest.raises(StepFailed, match="is missing"):
        await world.boot(replace(world.guest, kernel=broken))
    kernel.chmod(0o600)
    with pytest.raises(StepFailed, match="readable by every user"):
        await world.boot(replace(world.guest, kernel=kernel))


async def test_a_disk_that_is_a_link_is_not_followed(world: World):
    """S-13: root follows no path that a guest's process could change."""
    link = world.guest.disk.with_name("link")
    link.symlink_to("/etc/hostname")
    with pytest.raises(StepFailed):
        await world.boot(replace(world.guest, disk=link))
    assert await world.qemu.find_processes() == []


async def test_a_record_that_cannot_be_written_starts_nothing(world: World):
    """L-G3: if the record cannot be written, the call is not made."""

    async def record(process: ProcessRecord) -> None:
        raise StepFailed("no room")

    with open_tap() as tap, pytest.raises(StepFailed, match="no room"):
        await world.qemu.boot(world.guest, tap, record=record)
    assert await world.qemu.find_processes() == []


async def test_a_user_of_no_guest_is_never_ended(world: World):
    """S-10: only users of the installation's own range are signalled."""
    with pytest.raises(Permanent, match="none of this installation's"):
        await world.qemu.end(replace(world.guest, uid=0), None, 1)


async def test_availability_comes_from_a_guest_that_ran(world: World):
    """X-3: KVM only where a probe guest really ran; S-16: emulation is said."""
    (found,) = await world.qemu.find_availability()
    assert found.available, found.why
    assert found.accelerator in ("kvm", "tcg")
    assert found.emulated == (found.accelerator == "tcg")
    assert found.machine_type is not None
    assert found.machine_type.startswith("pc-q35-")
    assert found.version is not None
    assert "a probe guest ran" in found.why


async def collect(events) -> list:
    return [event async for event in events]
