"""A hostile program in the place of QEMU and of what handles images: the whole of what it can do (S-45)."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drivers import confine, disks, image_child
from drivers.cgroups import Cgroups
from drivers.confine import Finished, read_boot_id, run_confined
from drivers.headers import MIB
from drivers.hypervisor import qemu_arguments
from drivers.hypervisor.qemu import Qemu
from drivers.hypervisor.qemu_limits import PROCESS_LIMIT
from drivers.image_files import ImageFile
from drivers.space import Reservation, Space
from model.errors import StepFailed
from tests.drivers.guests import make_guest, make_names, open_tap

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may start programs as other users"),
    pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the captive is run by the system's python3"),
    pytest.mark.timeout(60),
]

CAPTIVE = Path(__file__).with_name("captive.py")
STDOUT = 1
IPC_CREAT, IPC_RMID = 0o1000, 0
LIMITS = ("RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_MEMLOCK", "RLIMIT_FSIZE", "RLIMIT_AS", "RLIMIT_CPU")
EVERY_JAIL = {"/dev", "/dev/fd", "/dev/null", "/dev/urandom", "/usr"}
EVERY_JAIL |= {f"/{name}" for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin") if Path("/usr", name).is_dir()}


@dataclass
class Outside:
    """What lies around a captive, for it to find: nothing of this is meant for it."""

    tried: dict[str, Any]

    def make(self, told: int) -> str:
        text = CAPTIVE.read_text()
        assert "TRIED: dict[str, list] = {}" in text
        return text.replace("TRIED: dict[str, list] = {}", f"TRIED = {self.tried!r}").replace(
            "TOLD = -1", f"TOLD = {told}"
        )

    def place(self, path: Path, told: int) -> Path:
        path.write_text(self.make(told))
        path.chmod(0o755)
        return path


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    """Two listeners, memory that anyone may attach, a file that anyone may read."""
    secret = tmp_path / "secret"
    secret.write_text("for nobody")
    secret.chmod(0o644)
    libc = ctypes.CDLL(None)
    memory = libc.shmget(0, 4096, IPC_CREAT | 0o666)
    name = f"hostler-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        yield Outside(
            {
                "paths": [str(secret), "/etc/passwd", "/../etc/passwd", "/proc/1/cmdline", "/run", "/dev/kvm"],
                "addresses": [list(listener.getsockname())],
                "abstract": [name],
                "pids": [os.getpid(), os.getppid()],
                "memory": [memory],
                "limits": LIMITS,
            }
        )
    libc.shmctl(memory, IPC_RMID, None)


def with_parents(*paths: Path | None) -> set[str]:
    return {str(each) for path in paths if path is not None for each in (path, *path.parents)} - {"/"}


async def test_a_program_in_the_hypervisors_place(
    outside: Outside, demo_guest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-45, S-11: the VM's files, tap and sockets as descriptors; an empty root; nobody and no network."""
    names = make_names()
    cgroups = Cgroups.detect(names.cgroup)
    qemu = Qemu(names, cgroups, read_boot_id)
    guest = make_guest(tmp_path / "machine", names, demo_guest)
    program = outside.place(tmp_path / "captive", told=qemu_arguments.DISK)
    monkeypatch.setattr(qemu_arguments, "PROGRAM", str(program))
    monkeypatch.setenv("CANARY", "secret")

    async def record(process: object) -> None:
        del process

    try:
        with open_tap() as tap, pytest.raises(StepFailed, match="ended while it started: it said nothing"):
            await qemu.boot(guest, tap, record=record)
        told = json.loads(guest.disk.read_text())
    finally:
        await qemu.release(guest.vm_id, guest.sockets)
        for controller in cgroups.controllers:
            with contextlib.suppress(FileNotFoundError):
                (cgroups.root / controller / cgroups.name).rmdir()
    size = told["limits"].pop("RLIMIT_FSIZE")
    assert size == [-1, -1] or size[1] < guest.disk_bytes * 2
    assert set(told.pop("tree")) == EVERY_JAIL | with_parents(program, guest.kernel, guest.initrd)
    assert told == {
        "users": [guest.uid] * 3 + [guest.gid] * 3,
        "pid": 1,
        "session": 1,
        "environment": {},
        "host name": "guest",
        "writable": ["/dev/null", "/dev/urandom"],
        "usr is read-only": True,
        "descriptors": {
            **dict.fromkeys(["0", "1"], "device"),
            "2": "pipe",
            **dict.fromkeys(["10", "11", "12"], "file"),
            "13": "device",
            **dict.fromkeys(["14", "15"], "socket"),
        },
        "climbs": [],
        "opens": [],
        "interfaces": ["lo"],
        "reaches": [],
        "reaches by name": [],
        "signals": [],
        "traces": [],
        "sees": [],
        "shares memory": [],
        "mounts": False,
        "becomes root": False,
        "limits": {
            "RLIMIT_CORE": [0, 0],
            "RLIMIT_NOFILE": [256, 256],
            "RLIMIT_NPROC": [PROCESS_LIMIT, PROCESS_LIMIT],
            "RLIMIT_MEMLOCK": [0, 0],
            "RLIMIT_AS": [-1, -1],
            "RLIMIT_CPU": [-1, -1],
        },
    }


IN_A_CHILDS_PLACE = {
    "environment": {},
    "host name": "guest",
    "writable": ["/dev/null", "/dev/urandom"],
    "usr is read-only": True,
    "climbs": [],
    "opens": [],
    "interfaces": ["lo"],
    "reaches": [],
    "reaches by name": [],
    "signals": [],
    "traces": [],
    "shares memory": [],
    "mounts": False,
    "becomes root": False,
}


@pytest.mark.parametrize("of", ["a disk that has run", "an image"])
async def test_a_program_in_the_place_of_qemu_img(
    outside: Outside, of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-45, S-13, S-18: one file, which it may open again by its number, and nothing else."""
    user = (213_000 + os.getpid() % 7000,) * 2
    programs = tmp_path / "programs"
    programs.mkdir()
    program = outside.place(programs / "qemu-img", told=STDOUT)
    monkeypatch.setattr(confine, "PROGRAM_FOLDERS", str(programs))
    module = disks if of == "a disk that has run" else image_child
    heard: list[Finished] = []

    async def run_and_keep(*args: Any, **more: Any) -> Finished:
        heard.append(await run_confined(*args, **more))
        return heard[0]

    monkeypatch.setattr(module, "run_confined", run_and_keep)
    disk = tmp_path / "disk"
    disk.touch(0o600)
    os.chown(disk, *user)
    descriptor = os.open(disk, os.O_RDWR)
    try:
        if module is disks:
            await disks._qemu_img(("resize",), descriptor, user, "grow it")
        else:
            with pytest.raises(StepFailed, match="cannot be read"):
                await image_child.probe(descriptor, "raw", user)
    finally:
        os.close(descriptor)
    assert heard[0].returncode == 0, heard[0].stderr
    told = json.loads(heard[0].stdout)
    assert set(told.pop("tree")) == EVERY_JAIL | with_parents(program) | {"/dev/fd/3"}
    assert told.pop("users") == [user[0]] * 6
    assert told.pop("pid") == told.pop("session")
    assert told.pop("descriptors") == {"0": "file", "1": "pipe", "2": "pipe", "3": "file"}
    told.pop("sees")  # it stays among the host's process ids, of which it may signal none but its own user's
    limits = told.pop("limits")
    assert (limits["RLIMIT_CORE"], limits["RLIMIT_CPU"], limits["RLIMIT_AS"]) == ([0, 0], [30, 30], [1 << 30] * 2)
    assert told == IN_A_CHILDS_PLACE | {"writable": ["/dev/fd/3", "/dev/null", "/dev/urandom"]}


async def test_a_program_in_the_place_of_what_fetches_images(
    outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-45, S-18: the two files of the image, how to find other machines, this code; the network, as it must fetch."""
    user = (213_000 + os.getpid() % 7000,) * 2
    partial, output = os.memfd_create("partial"), os.memfd_create("output")
    monkeypatch.setattr(image_child, "_PROGRAM", outside.make(told=image_child._OUTPUT))
    file = ImageFile("https://images.invalid/x", "0" * 64, None, "rootfs")
    order = image_child.FetchOrder(file, user, partial, output, None, None, None, MIB)
    monkeypatch.setenv("CANARY", "secret")

    async def keep(validator: str | None) -> None:
        del validator

    try:
        with pytest.raises(StepFailed):
            await image_child.fetch(order, Reservation(Space(tmp_path), "an image"), lambda _: None, keep)
        told = json.loads(os.pread(output, 1 << 24, 0))
    finally:
        os.close(partial)
        os.close(output)
    listed = with_parents(*confine.python_binds(), *(path for path in image_child._RESOLVER if path.exists()))
    inside = tuple(f"{path}/" for path in (*confine.python_binds(), Path("/etc/ssl")))
    tree = {path for path in told.pop("tree") if not path.startswith(inside)}
    assert tree == EVERY_JAIL | {path for path in listed if not path.startswith(inside)}
    assert told.pop("users") == [user[0]] * 6
    assert told.pop("pid") == told.pop("session")
    assert told.pop("descriptors") == {"0": "pipe", "1": "pipe", "2": "device", "3": "file", "4": "file"}
    told.pop("sees")
    told.pop("interfaces")
    limits = told.pop("limits")
    assert (limits["RLIMIT_CORE"], limits["RLIMIT_NOFILE"], limits["RLIMIT_AS"]) == ([0, 0], [64, 64], [1 << 30] * 2)
    network = {"reaches": outside.tried["addresses"], "reaches by name": outside.tried["abstract"]}
    assert told == {name: value for name, value in IN_A_CHILDS_PLACE.items() if name != "interfaces"} | network | {
        "environment": {"LANG": "C.UTF-8"}
    }
