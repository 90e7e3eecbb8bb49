"""Who this host is (H-E2, H-E3) and how much room it has (H-S7)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivers import machine
from drivers.machine import HostIdentity, lock_worker, measure_capacity
from model.errors import Conflict, Unreadable


@pytest.fixture
def machine_id(tmp_path):
    path = tmp_path / "machine-id"
    path.write_text("one\n")
    return path


def open_identity(tmp_path, machine_id, **changed) -> HostIdentity:
    words = {"fleet_id": "f1", "host_id": "h1"} | changed
    return HostIdentity.open(tmp_path / "host", machine_id_path=machine_id, **words)


def test_the_instance_is_made_once_with_the_directory(tmp_path, machine_id) -> None:
    """H-E2."""
    first = open_identity(tmp_path, machine_id)
    assert open_identity(tmp_path, machine_id).instance_id == first.instance_id


def test_another_machine_with_a_copy_refuses_to_start(tmp_path, machine_id) -> None:
    """H-E2."""
    open_identity(tmp_path, machine_id)
    machine_id.write_text("two\n")
    with pytest.raises(Conflict, match="host replace h1"):
        open_identity(tmp_path, machine_id)


@pytest.mark.parametrize("changed", [{"fleet_id": "f2"}, {"host_id": "h2"}])
def test_another_fleets_or_hosts_directory_is_refused(tmp_path, machine_id, changed) -> None:
    """H-E2: the fleet id is kept from enrolment."""
    open_identity(tmp_path, machine_id)
    with pytest.raises(Conflict):
        open_identity(tmp_path, machine_id, **changed)


def test_an_unreadable_host_file_is_never_made_anew(tmp_path, machine_id) -> None:
    open_identity(tmp_path, machine_id)
    (tmp_path / "host" / "host.json").write_text("{")
    with pytest.raises(Unreadable):
        open_identity(tmp_path, machine_id)


async def test_numbers_never_go_back_over_a_crash(tmp_path, machine_id) -> None:
    """H-E2: a number below an acknowledged one would read as a rolled-back host."""
    last = 0
    for _ in range(3):
        identity = open_identity(tmp_path, machine_id)
        numbers = [await identity.next_number() for _ in range(1200)]
        assert numbers[0] > last
        assert numbers == sorted(set(numbers))
        last = numbers[-1]


async def test_the_epoch_only_rises(tmp_path, machine_id) -> None:
    identity = open_identity(tmp_path, machine_id)
    await identity.raise_epoch(3)
    await identity.raise_epoch(2)
    assert open_identity(tmp_path, machine_id).epoch == 3


def test_a_second_worker_is_told_who_holds_the_directory(tmp_path) -> None:
    """H-E3."""
    held = lock_worker(tmp_path / "host")
    with pytest.raises(Conflict, match=str(os.getpid())):
        lock_worker(tmp_path / "host")
    os.close(held)
    os.close(lock_worker(tmp_path / "host"))


def test_a_failed_probe_is_unknown_never_zero(tmp_path, monkeypatch) -> None:
    """H-S7."""
    monkeypatch.setattr(machine, "MEMORY", tmp_path / "none")
    capacity = measure_capacity(tmp_path / "missing", committed_millicores=500, promised_bytes=None)
    assert capacity.memory_mib_total is None
    assert capacity.storage_bytes_free is None
    assert capacity.storage_bytes_promised is None
    monkeypatch.undo()
    capacity = measure_capacity(tmp_path, committed_millicores=500, promised_bytes=0)
    assert capacity.memory_mib_total > 0
    assert capacity.storage_bytes_free > 0


async def test_an_older_copy_begins_below_what_was_acknowledged(tmp_path: Path) -> None:
    """H-E2: a state directory that was rolled back by more than 30 reports uses a number again."""
    (tmp_path / "id").write_text("m")
    told = {"fleet_id": "f", "host_id": "h", "machine_id_path": tmp_path / "id"}
    identity = HostIdentity.open(tmp_path / "host", **told)
    await identity.next_number()
    copy = (tmp_path / "host" / "host.json").read_bytes()
    for _ in range(40):
        acknowledged = await identity.next_number()
    assert await HostIdentity.open(tmp_path / "host", **told).next_number() > acknowledged
    (tmp_path / "host" / "host.json").write_bytes(copy)
    assert await HostIdentity.open(tmp_path / "host", **told).next_number() < acknowledged
