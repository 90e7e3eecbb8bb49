"""What released code wrote is patched and read by this code; a change of fields needs a number (L-G11)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api.reports import cleaned
from drivers import durable, patching
from drivers.fences import FenceStore
from drivers.formats import CREDENTIALS, DOWNLOAD, FENCE, HOST, KINDS, PATCHES, STATUS, Kind, parse
from drivers.image_parts import Paths
from drivers.machine import HostIdentity
from drivers.network.dhcp import StoredServer
from drivers.patching import patch_files
from drivers.records import RecordStore
from drivers.stored import StoredStatus
from model.errors import OutOfSpace, Unreadable
from model.fence import Fence
from model.record import Observed
from model.report import HostReport, VmReport
from model.versions import VERSION
from tests.formats.samples import INSTEAD
from tests.formats.schema import FORMAT, HERE, MODELS, find_fields, released_format, schema_file
from workers.host_api import read_credentials

RELEASES = sorted(path.name for path in HERE.iterdir() if path.is_dir() and path.name[0].isdigit())


@pytest.fixture(params=RELEASES)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A host's state directory as a released worker left it."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "host"))


def contents(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def load_records(home: Path) -> RecordStore:
    records = RecordStore(home / "machines")
    records.load()
    return records


def open_identity(home: Path) -> HostIdentity:
    credentials = read_credentials(home / "credentials.json")
    machine_id = home.parent / "machine-id"
    machine_id.write_text(INSTEAD["machine_id"])
    return HostIdentity.open(
        home, fleet_id=credentials.fleet_id, host_id=credentials.host_id, machine_id_path=machine_id
    )


def load_fences(home: Path) -> FenceStore:
    identity = json.loads((home / "host.json").read_bytes())
    store = FenceStore(home / "fences", **{name: identity[name] for name in ("fleet_id", "host_id", "instance_id")})
    store.load()
    return store


def test_what_a_released_worker_left_is_read_by_this_one(home: Path):
    """L-G11: each file of each released format; what it said is still what it says."""
    before = contents(home)
    patch_files(home)

    old = {name: json.loads(data) for name, data in before.items()}
    for entry in load_records(home):
        assert entry.unreadable is None
        assert entry.config is not None
        assert entry.status is not None
        said = old[f"machines/{entry.vm_id}/status.json"]
        assert entry.status.model_dump(mode="json")["record"].items() >= said["record"].items()
        said = old[f"machines/{entry.vm_id}/config.json"]
        assert entry.config.host_key.public == said["host_key"]["public"]
        assert entry.config.allocation.uid == said["allocation"]["uid"]
    fences = load_fences(home)
    for path in (home / "fences").glob("*.json"):
        fence = Fence.model_validate(old[f"fences/{path.name}"]["fence"])
        assert fences.highest(path.stem) == fence
        fences.check(path.stem, fence)
    assert open_identity(home).instance_id == old["host.json"]["instance_id"]
    server = StoredServer.model_validate_json((home / "dnsmasq" / "process.json").read_bytes())
    assert server.process.pid == old["dnsmasq/process.json"]["process"]["pid"]
    for path in (home / "images").glob(DOWNLOAD.pattern.rpartition("/")[2]):
        stem = path.name.removesuffix(".part.json")
        assert Paths(path.parent, stem).read_validator() == old[f"images/{path.name}"]["validator"]


def test_a_guest_that_an_earlier_worker_started_is_known_to_run(home: Path):
    """L-G11, L-V4: its own power-off counts as such, and is not taken for the end of a boot that failed."""
    patch_files(home)
    running = [entry.status for entry in load_records(home) if entry.status and entry.status.process is not None]
    assert running
    assert all(status.started_at is not None for status in running)


def test_what_was_patched_can_be_reported(home: Path):
    """L-G11, S-17: nothing of it is beyond what the API takes, or the host would be silent for ever."""
    patch_files(home)
    entries = [entry for entry in load_records(home) if entry.status is not None]
    told = [VmReport(vm_id=each.vm_id, observed=_seen(each.status)) for each in entries]  # pyright: ignore[reportArgumentType]
    frame = {"number": 1, "instance_id": "i", "machine_id": "m", "boot_id": "b", "worker_version": VERSION}
    report = HostReport(**frame, clock=datetime.now(UTC), whole=True, vms=tuple(told))  # pyright: ignore[reportArgumentType]
    assert len(cleaned(report).vms) == len(entries) > 0


def _seen(status: StoredStatus) -> Observed:
    """Show what a look at a guest adds of its record."""
    shown = {"started_at": status.started_at, "restart_count": status.restart_count, "last_exit": status.last_exit}
    return Observed(boot_id="b", power_state=None, seen_at=datetime.now(UTC), **shown)  # pyright: ignore[reportArgumentType]


def test_each_file_has_its_format_and_the_old_one_is_beside(home: Path):
    """L-G11: the old content is kept, whole; a file whose kind did not change is not touched."""
    before = contents(home)
    patched = patch_files(home)
    after = contents(home)
    changed = 0
    for kind in KINDS:
        for path in home.glob(kind.pattern):
            name = str(path.relative_to(home))
            document = json.loads(after[name])
            assert document.get("format", 1) == kind.format
            if kind.format == json.loads(before[name]).get("format", 1):
                assert after[name] == before[name]
                continue
            changed += 1
            assert document["release"] == VERSION
            assert after[f"{name}.before-{VERSION}"] == before[name]
            assert path.stat().st_mode & 0o777 == 0o600
    assert patched == changed > 0
    assert patch_files(home) == 0
    assert contents(home) == after


def test_every_file_that_a_host_keeps_is_known(home: Path):
    """L-G11: no JSON file of a real host's state directory without a format."""
    known = {path for kind in KINDS for path in home.glob(kind.pattern)}
    assert set(home.rglob("*.json")) == known


def test_a_kill_at_any_instant_is_repeated_safely(tmp_path: Path):
    """L-G11: the worker dies before each call that touches the disk in turn; the next one finishes."""
    sample = HERE / "0.1.0.dev0"
    whole = Path(shutil.copytree(sample, tmp_path / "whole"))
    patch_files(whole)
    died = 0
    while True:
        home = Path(shutil.copytree(sample, tmp_path / f"died-{died}"))
        finished = _patch_and_die(home, died)
        for kind in KINDS:
            for path in home.glob(kind.pattern):
                document = json.loads(path.read_bytes())  # whole, and of either format
                assert document.get("format", 1) in (1, kind.format)
        patch_files(home)
        load_records(home)  # removes what the dead worker left half-written
        left = {name: data for name, data in contents(home).items() if ".new." not in name}
        assert left == contents(whole)
        if finished:
            break
        died += 1
    assert died > 20


def _patch_and_die(home: Path, calls: int) -> bool:
    """Patch in a process that dies before its `calls`-th call to the disk; return whether it came to its end."""
    child = os.fork()
    if child == 0:
        left = calls

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **named: Any) -> Any:
                nonlocal left
                if left == 0:
                    os._exit(1)
                left -= 1
                return call(*arguments, **named)

            return wrapped

        for name in ("write", "fsync", "rename"):
            setattr(durable.os, name, counted(getattr(os, name)))
        patch_files(home)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_that_cannot_be_patched_is_named_and_nobody_elses_fault(home: Path, monkeypatch: pytest.MonkeyPatch):
    """L-G8, L-G11: a full disk; the file stays as it is, its VM says so, and the others are patched."""
    vm_ids = sorted(path.name for path in (home / "machines").iterdir())
    write = patching.write_durably

    def full(path: Path, data: bytes) -> None:
        if path.parent.name == vm_ids[0]:
            raise OutOfSpace("the host's filesystem is full")
        write(path, data)

    before = contents(home)
    monkeypatch.setattr(patching, "write_durably", full)
    patch_files(home)
    assert (home / "machines" / vm_ids[0] / "status.json").read_bytes() == before[f"machines/{vm_ids[0]}/status.json"]
    found = {entry.vm_id: entry.unreadable for entry in load_records(home)}
    assert "could not be patched" in (found.pop(vm_ids[0]) or "")
    assert set(found.values()) == {None}


def test_an_unreadable_file_is_left_to_its_reader(home: Path):
    """L-G8: neither repaired nor removed, nor kept a second time."""
    status = next((home / "machines").glob("*/status.json"))
    status.write_text('{"format": 1, ')
    patch_files(home)
    assert status.read_text() == '{"format": 1, '
    assert not list(status.parent.glob("status.json.before-*"))


def test_kept_files_go_with_a_later_release(home: Path):
    """L-G11: kept until the next release, and never taken from a later one that was here."""
    patch_files(home)
    folder = next((home / "machines").iterdir())
    for release in ("0.1.0.dev0", "99.0"):
        (folder / f"status.json.before-{release}").write_text("{}")
    patch_files(home)
    kept = {path.name for path in folder.glob("status.json.before-*")}
    assert kept == {f"status.json.before-{VERSION}", "status.json.before-99.0"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_newer_format_names_its_release(kind: Kind):
    """L-G8, L-G11: whatever file it is."""
    data = json.dumps({"format": kind.format + 1, "release": "9.9.0"}).encode()
    with pytest.raises(Unreadable, match=rf"format {kind.format + 1}, written by release '9\.9\.0'"):
        parse(kind, "file.json", data)


def test_every_reader_refuses_a_newer_format(home: Path):
    """L-G8, L-G11: the VM alone for its own files, the worker for the host's."""
    patch_files(home)
    for kind in (STATUS, FENCE, HOST, CREDENTIALS):
        path = next(home.glob(kind.pattern))
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "format": 99, "release": "9.9.0"}))
        if kind is STATUS:
            found = {entry.vm_id: entry.unreadable for entry in load_records(home)}
            assert "9.9.0" in (found.pop(path.parent.name) or "")
            assert set(found.values()) == {None}
        elif kind is FENCE:
            fences = load_fences(home)
            fence = Fence.model_validate(json.loads(path.read_bytes())["fence"])
            with pytest.raises(Unreadable, match=r"9\.9\.0"):
                fences.check(path.stem, fence)
        else:
            with pytest.raises(Unreadable, match=r"9\.9\.0"):
                open_identity(home)
        assert json.loads(path.read_bytes())["format"] == 99


def test_a_change_of_fields_has_a_number():
    """L-G11: fields that change without a new format would be lost, or refused, by the release before."""
    recorded, now = json.loads(schema_file(FORMAT).read_bytes()), find_fields()
    changed = sorted(name for name in now if now[name] != recorded.get(name))
    if released_format() >= FORMAT:
        advice = f"format {FORMAT} is released: add drivers/patches/patch_{FORMAT + 1:04}.py, name it in PATCHES"
    else:
        advice = f"format {FORMAT} is not released: see that patch_{FORMAT:04}.py covers it"
    assert not changed, f"the fields of {changed} changed; {advice}, then run `python -m tests.formats.schema`"


@pytest.mark.parametrize("number", sorted(PATCHES))
def test_a_kind_whose_fields_changed_is_patched(number: int):
    """L-G11: also when nothing needs to be moved, since the number is what the release before refuses."""
    before, after = (json.loads(schema_file(each).read_bytes()) for each in (number - 1, number))
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed <= set(PATCHES[number])
    assert {kind.name for kind in MODELS} == set(after)
