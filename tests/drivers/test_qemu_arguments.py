"""QEMU's arguments and the meaning of its run states: pure functions."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from drivers.hypervisor import Guest, GuestState, GuestVolume
from drivers.hypervisor.qemu import find_virtual_size
from drivers.hypervisor.qemu_arguments import build_arguments, find_processor_count
from drivers.hypervisor.qemu_limits import find_file_limit, find_limits
from drivers.hypervisor.qemu_probe import build_firmware, find_kvm_groups, find_machine_type, find_version
from drivers.hypervisor.qemu_state import ENDED, PAUSED, PAUSED_BY_HYPERVISOR, RUNNING, read_state
from drivers.hypervisor.words import LastWords
from model.errors import Permanent, StepFailed
from model.process import ProcessRecord

GUEST = Guest(
    vm_id="01890a5d-ac96-774b-bcce-b302099a8057",
    uid=200_001,
    gid=200_001,
    cpu_millicores=1500,
    memory_mib=512,
    mac="02:00:00:00:00:01",
    disk=Path("/state/machines/x/disk"),
    disk_format="qcow2",
    disk_bytes=10 << 30,
    seed=Path("/state/machines/x/seed.iso"),
    sockets=Path("/state/sockets/x"),
    accelerator="tcg",
    machine_type="pc-q35-7.2",
    kernel=Path("/state/images/k/vmlinux"),
    initrd=Path("/state/images/k/initrd"),
    command_line="root=/dev/vda console=ttyS0",
    base=Path("/state/images/b"),
    base_format="raw",
)
PROCESS = ProcessRecord(pid=1, start_time=1, boot_id="b", uid=200_001)


def values_of(arguments: tuple[str, ...], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(arguments) if name == option]


def test_the_machine_is_closed():
    """S-12, X-3: the sandbox with all four denials, no default device, a bounded cache, an end that stays readable."""
    arguments = build_arguments(GUEST)
    assert values_of(arguments, "-sandbox") == [
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
    ]
    assert {"-nodefaults", "-no-user-config"} <= set(arguments)
    (machine,) = values_of(arguments, "-machine")
    assert machine.split(",") == [
        "pc-q35-7.2",
        *(f"{name}=off" for name in ("usb", "sata", "smbus", "vmport", "i8042", "dump-guest-core", "mem-merge")),
    ]
    assert values_of(arguments, "-accel") == ["tcg,tb-size=64"]
    assert values_of(arguments, "-action") == ["shutdown=pause,panic=pause"]
    assert values_of(arguments, "-smp") == ["2"]
    drivers = [json.loads(text)["driver"] for text in values_of(arguments, "-device")]
    assert all(name.startswith(("virtio-", "pvpanic-", "pcie-root-port")) for name in drivers)


def test_the_block_graph_is_spelled_out_to_its_last_node():
    """S-12: every node by name, every file a descriptor, never a word from a header."""
    nodes = {n["node-name"]: n for n in map(json.loads, values_of(build_arguments(GUEST), "-blockdev"))}
    assert set(nodes) == {"root", "root-file", "base", "base-file", "seed", "seed-file"}
    assert nodes["root"]["backing"] == "base"
    assert "backing" not in nodes["base"], "raw has none"
    for name, node in nodes.items():
        if name.endswith("-file"):
            assert node["filename"].startswith("/dev/fdset/")
        else:
            assert node["file"] == f"{name}-file"
    assert nodes["base"]["read-only"] is nodes["base-file"]["read-only"] is nodes["seed"]["read-only"] is True
    alone = replace(GUEST, base=None, base_format=None)
    nodes = {n["node-name"]: n for n in map(json.loads, values_of(build_arguments(alone), "-blockdev"))}
    assert nodes["root"]["backing"] is None
    over = replace(GUEST, base_format="qcow2")
    nodes = {n["node-name"]: n for n in map(json.loads, values_of(build_arguments(over), "-blockdev"))}
    assert nodes["base"]["backing"] is None


def test_no_path_of_the_guests_is_an_argument():
    """S-11: disks and sockets come as descriptors; only kernel and initrd are read by path."""
    text = " ".join(build_arguments(GUEST))
    for path in (GUEST.disk, GUEST.seed, GUEST.base, GUEST.sockets):
        assert str(path) not in text


def test_firmware_boots_the_disk_first():
    arguments = build_arguments(replace(GUEST, kernel=None, initrd=None, command_line=None, firmware="bios"))
    assert not {"-kernel", "-initrd", "-append"} & set(arguments)
    disk = next(d for d in map(json.loads, values_of(arguments, "-device")) if d["id"] == "disk0")
    assert disk["bootindex"] == 0


def test_kvm_has_the_hosts_processor():
    arguments = build_arguments(replace(GUEST, accelerator="kvm"))
    assert (values_of(arguments, "-accel"), values_of(arguments, "-cpu")) == (["kvm"], ["host"])


@pytest.mark.parametrize(
    "change",
    [
        {"vm_id": "x,process=y"},
        {"mac": "02:00:00:00:00:01,romfile=/etc/passwd"},
        {"mac": "02:00:00:00:00:0A"},
        {"machine_type": "q35,firmware=/etc/passwd"},
        {"machine_type": "pc-q35-7.2\n"},
        {"command_line": "a\nb"},
        {"command_line": "x" * 3000},
        {"disk_format": "vmdk"},
        {"base_format": "vmdk"},
        {"base_format": None},
        {"disk_format": "raw"},
        {"kernel": None, "firmware": "/etc/passwd"},
    ],
)
def test_a_value_out_of_its_pattern_never_reaches_qemu(change):
    """X-6: nothing becomes an option or a property without validation against a narrow pattern."""
    with pytest.raises(Permanent):
        build_arguments(replace(GUEST, **change))


@pytest.mark.parametrize(("millicores", "processors"), [(1, 1), (999, 1), (1000, 1), (1001, 2), (4000, 4), (4001, 5)])
def test_a_quota_is_rounded_up_to_processors(millicores, processors):
    """L-V8: m millicores give ⌈m/1000⌉ vCPUs."""
    assert find_processor_count(millicores) == processors


def test_the_memory_limit_counts_the_translation_cache():
    emulated, accelerated = find_limits(GUEST), find_limits(replace(GUEST, accelerator="kvm"))
    assert emulated.memory_bytes - accelerated.memory_bytes == 64 << 20
    assert accelerated.memory_bytes > GUEST.memory_mib << 20
    assert find_file_limit(GUEST) > GUEST.disk_bytes
    large = replace(GUEST, volumes=(GuestVolume("v", Path("/v"), 4 * GUEST.disk_bytes),))
    assert find_file_limit(large) > 4 * GUEST.disk_bytes
    assert find_file_limit(large, 8 * GUEST.disk_bytes) > 8 * GUEST.disk_bytes


def test_every_run_state_has_one_meaning():
    """X-1, L-V11: ended by itself, paused by a user, paused by the hypervisor; what is not known is no death."""
    assert (
        not (RUNNING & PAUSED)
        | (RUNNING & set(PAUSED_BY_HYPERVISOR))
        | (PAUSED & set(PAUSED_BY_HYPERVISOR)) & set(ENDED)
    )
    for status in RUNNING | PAUSED | set(PAUSED_BY_HYPERVISOR) | set(ENDED) | {"new-word", None}:
        state = read_state(PROCESS, status, recorded=True).state
        assert state.process == PROCESS
        assert (state.power == "running") == (status in RUNNING)
        assert (state.power == "paused") == (status in PAUSED or status in PAUSED_BY_HYPERVISOR)
        assert (state.ended is not None) == (status == "shutdown")
        assert (state.paused_by_hypervisor is not None) == (status in PAUSED_BY_HYPERVISOR)
        assert (state.power is None) == (status in ("new-word", None))
    assert read_state(None, None, recorded=True).state.ended == "process-gone"
    assert read_state(None, None, recorded=False).state.ended is None


def test_a_look_tells_what_moved_since_the_last():
    def told(last: GuestState | None, status: str | None, live: bool = True) -> list[str]:
        seen = read_state(PROCESS if live else None, status, recorded=True)
        return [event.kind for event in seen.find_events(last)]

    running = read_state(PROCESS, "running", recorded=True).state
    paused = read_state(PROCESS, "paused", recorded=True).state
    failed = read_state(PROCESS, "io-error", recorded=True).state
    ended = read_state(PROCESS, "shutdown", recorded=True).state
    assert told(None, "running") == told(running, "running") == told(paused, "paused") == told(running, None) == []
    assert told(None, "paused") == told(running, "paused") == told(running, "io-error") == ["paused"]
    assert told(paused, "io-error") == ["paused"]
    assert told(failed, "running") == told(paused, "running") == ["resumed"]
    assert told(running, "shutdown") == told(None, "shutdown") == ["ended"]
    assert told(ended, "shutdown") == []
    assert told(running, None, live=False) == told(ended, None, live=False) == ["gone"]


@pytest.mark.parametrize("answer", [None, 1, [], [1], [{"node-name": "root"}], [{"node-name": "root", "image": []}]])
def test_an_answer_that_is_not_qemus_is_an_error(answer):
    """S-14: what is on the other side may be hostile."""
    with pytest.raises(StepFailed):
        find_virtual_size(answer, "root")


def test_words_for_versions_and_machines():
    assert find_version(b"QEMU emulator version 7.2.22 (Debian 1:7.2)\n") == "7.2.22"
    assert find_machine_type(b"q35   Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-7.2)\n") == "pc-q35-7.2"
    assert find_version(b"") is None
    assert find_machine_type(b"") is None
    assert len(build_firmware()) == 65536


async def test_last_words_are_bounded_clean_and_without_paths():
    """S-17, L-V5: cut, escaped, without a host path; a full pipe holds nobody up."""
    words = LastWords()
    os.write(words.descriptor, b"\x1b[31mcould not load /state/images/k/vmlinux\n")
    assert words.read(GUEST) == "\\x1b[31mcould not load vmlinux"
    for _ in range(100):
        try:
            os.write(words.descriptor, b"x" * 4096)
        except BlockingIOError:
            break
    else:
        pytest.fail("the pipe has no bound")
    assert len(words.read(GUEST)) <= 4096
    words.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_guest_reaches_kvm_by_its_group_and_never_by_roots(tmp_path):
    """S-11: the group of /dev/kvm opens that device alone."""
    device = tmp_path / "kvm"
    device.touch()
    for group, mode, expected in ((0, 0o660, ()), (108, 0o660, (108,)), (108, 0o600, ()), (0, 0o666, ())):
        os.chown(device, 0, group)
        device.chmod(mode)
        assert find_kvm_groups(device) == expected
    assert find_kvm_groups(tmp_path / "none") == ()
