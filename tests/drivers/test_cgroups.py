"""Limits and whereabouts of a guest's processes: version 1 on this kernel, version 2 against a fake tree."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from drivers.cgroups import CgroupLimits, Cgroups
from drivers.confine import Confinement, await_end, launch_detached, run_confined, signal_process
from model.capacity import Entitlement
from model.errors import StepFailed

UID = 214_000 + os.getpid() % 5000
NAME = f"hst-test-{os.getpid()}"
LIMITS = CgroupLimits(cpu_millicores=250, memory_bytes=64 << 20, pids=20)


@pytest.fixture
def real():
    cgroups = Cgroups.detect(NAME)
    if os.geteuid() != 0 or cgroups.backend != "v1" or len(cgroups.controllers) < 3:
        pytest.skip("needs root and writable cgroups of version 1 with cpu, memory and pids")
    yield cgroups
    for vm_id in cgroups.list_ids():
        cgroups.remove(vm_id)
    for controller in cgroups.controllers:
        (cgroups.root / controller / NAME).rmdir()


@pytest.fixture
def fake(tmp_path) -> Cgroups:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    return Cgroups.detect("hostler", tmp_path)


async def test_a_process_joins_before_it_begins_and_is_found(real: Cgroups):
    """S-11: an own cgroup; the VM's processes are found by it, and it goes only when none is left."""
    files = real.ensure("vm-1", LIMITS)
    assert len(files) == 3
    seen: list[list[int]] = []

    async def record(p):
        seen.append(real.find_processes("vm-1"))
        assert seen == [[p.pid]]

    p = await launch_detached(Confinement(("/bin/sleep", "1000"), UID, UID, cgroup_files=files), record=record)
    assert real.find_processes("vm-1") == [p.pid]
    assert real.list_ids() == ["vm-1"]
    assert f"/{NAME}/vm-1" in Path(f"/proc/{p.pid}/cgroup").read_text()
    with pytest.raises(StepFailed, match="end them first"):
        real.remove("vm-1")
    signal_process(p, signal.SIGKILL)
    assert await await_end(p, 5)
    real.remove("vm-1")
    assert real.find_processes("vm-1") == []
    assert real.list_ids() == []
    real.remove("vm-1")


async def test_the_limits_are_the_kernels(real: Cgroups):
    """L-V8: a CPU quota of exactly the millicores; limits move both ways while the cgroup lives."""
    files = real.ensure("vm-1", LIMITS)

    def read(controller: str, file: str) -> int:
        return int((real.root / controller / NAME / "vm-1" / file).read_text())

    for memory, cores in ((64 << 20, 250), (256 << 20, 1500), (32 << 20, 20)):
        real.set_limits("vm-1", CgroupLimits(cores, memory, 20))
        assert read("cpu", "cpu.cfs_quota_us") == cores * read("cpu", "cpu.cfs_period_us") // 1000
        assert read("memory", "memory.limit_in_bytes") == memory
        assert read("pids", "pids.max") == 20
    assert real.ensure("vm-1", LIMITS) == files
    eater = Confinement(("/usr/bin/tail", "/dev/zero"), UID, UID, cgroup_files=files, limits={"RLIMIT_AS": 4 << 30})
    assert real.count_memory_kills("vm-1") == 0
    assert (await run_confined(eater, timeout_seconds=60)).returncode != 0
    assert real.count_memory_kills("vm-1") == 1
    found = real.find_use("vm-1")
    assert (found.cpu_millicores, found.memory_mib <= 64) == (250, True), "H-S9"
    real.remove("vm-1")
    assert real.count_memory_kills("vm-1") == 0
    assert real.find_use("vm-1") == Entitlement()


def test_version_2_gets_its_files(fake: Cgroups, tmp_path):
    assert (fake.backend, fake.controllers) == ("v2", ("cpu", "memory", "pids"))
    assert fake.list_ids() == []
    assert fake.ensure("vm-1", LIMITS) == (tmp_path / "hostler" / "vm-1" / "cgroup.procs",)
    folder = tmp_path / "hostler" / "vm-1"
    assert (folder / "cpu.max").read_text() == "25000 100000"
    assert (folder / "memory.max").read_text() == str(64 << 20)
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert fake.count_memory_kills("vm-1") == 2
    (folder / "memory.current").write_text(f"{(3 << 20) + 1}\n")
    assert fake.find_use("vm-1") == Entitlement(cpu_millicores=250, memory_mib=4)
    (folder / "cpu.max").write_text("max 100000\n")
    assert fake.find_use("vm-1").cpu_millicores == fake.find_use("vm-2").memory_mib == 0
    fake.set_limits("vm-1", LIMITS)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "20"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +pids"
    assert (tmp_path / "hostler" / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n4194305\n1\n")
    assert fake.find_processes("vm-1") == [1, os.getpid()], "the second is above any pid"
    assert fake.list_ids() == ["vm-1"]
    shutil.rmtree(folder)
    folder.mkdir()
    fake.remove("vm-1")
    fake.remove("vm-1")
    assert fake.list_ids() == []


def test_a_host_without_cgroups_is_told_apart(tmp_path):
    none = Cgroups.detect("hostler", tmp_path)
    assert none.backend == "none"
    assert none.ensure("vm-1", LIMITS) == ()
    assert (none.find_processes("vm-1"), none.list_ids()) == ([], [])
    assert none.find_use("vm-1") == Entitlement()
    none.remove("vm-1")


@pytest.mark.parametrize("vm_id", ["", ".", "..", "a/b", "A", "a\n", "-a"])
def test_an_id_that_is_no_name_reaches_no_path(fake: Cgroups, vm_id):
    """X-6: nothing becomes a path without validation against a narrow pattern."""
    for call in (fake.find_processes, fake.remove):
        with pytest.raises(StepFailed, match="no name"):
            call(vm_id)
