"""Records: read whole at start, never repaired, never believed (L-G3, L-G8, L-G11)."""

from __future__ import annotations

import asyncio
import json
import stat

import pytest

from drivers.records import DESTROYED, RecordStore
from model.errors import Fenced, NotFound, StepFailed, Unreadable
from tests.fixtures.records import make_config, make_status


def nothing() -> None:
    """A guard that lets all pass."""


def load(tmp_path) -> RecordStore:
    store = RecordStore(tmp_path / "machines")
    store.load()
    return store


async def make_store(tmp_path, *vm_ids: str) -> RecordStore:
    store = load(tmp_path)
    for vm_id in vm_ids:
        await store.write_config(make_config(vm_id), nothing)
        await store.begin(make_status(vm_id), nothing)
    return store


async def test_what_was_written_is_found_by_the_next_worker(tmp_path) -> None:
    store = await make_store(tmp_path, "vm1")
    await store.update("vm1", lambda status: status.model_copy(update={"revision": 7}), nothing)
    again = load(tmp_path)
    assert again.find("vm1") == store.find("vm1")
    assert again.status("vm1").revision == 7
    file = tmp_path / "machines" / "vm1" / "config.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # S-42: it holds user-data
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def spoil(**changes):
    def change(text: str) -> str:
        return json.dumps(json.loads(text) | changes)

    return change


def add_deep(text: str) -> str:
    raw = json.loads(text)
    raw["record"]["surprise"] = 1
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("status.json", lambda text: text[:40], "status.json is cut or corrupt"),
        ("status.json", lambda text: "[]", "no object"),
        ("status.json", spoil(format=99, release="9.9"), "written by release '9.9'"),
        ("status.json", spoil(format="one"), "no format version"),
        ("status.json", spoil(surprise=1), "surprise"),
        ("status.json", add_deep, "record.surprise"),
        ("status.json", spoil(vm_id="vm2"), "another VM"),
        ("status.json", spoil(revision="many"), "revision"),
        ("config.json", spoil(allocation=None), "config.json is corrupt"),
        ("config.json", None, "config.json is missing"),
    ],
)
async def test_an_unreadable_record_is_named_kept_and_nobody_elses_fault(tmp_path, file, change, reason) -> None:
    """L-G8: the file's name and the reason; neither repaired nor removed; every other VM goes on."""
    await make_store(tmp_path, "vm1", "vm2")
    path = tmp_path / "machines" / "vm1" / file
    if change is None:
        path.unlink()
    else:
        path.write_text(change(path.read_text()))
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    store = load(tmp_path)
    entry = store.find("vm1")
    assert entry.unreadable is not None
    assert reason in entry.unreadable
    assert "c2VjcmV0" not in entry.unreadable
    with pytest.raises(Unreadable):
        await store.update("vm1", lambda status: status, nothing)
    with pytest.raises(Unreadable):
        await store.write_config(make_config("vm1"), nothing)
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before
    assert store.status("vm2").vm_id == "vm2"
    await store.remove("vm1", nothing)  # a delete still works
    assert not path.parent.exists()


async def test_a_create_that_was_cut_off_before_its_status_is_no_corruption(tmp_path) -> None:
    """L-G4: only the configuration was written; the next attempt begins anew."""
    store = load(tmp_path)
    await store.write_config(make_config("vm1"), nothing)
    entry = load(tmp_path).find("vm1")
    assert entry.unreadable is None
    assert entry.status is None


async def test_a_guard_that_refuses_writes_nothing(tmp_path) -> None:
    """L-G5: also when the newer order comes while the write waits for its thread."""
    store = await make_store(tmp_path, "vm1")
    calls = []

    def refuse_second() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise Fenced("newer")

    for guard in (refuse_second, refuse_second):
        with pytest.raises(Fenced):
            await store.update("vm1", lambda status: status.model_copy(update={"revision": 9}), guard)
    assert store.status("vm1").revision == 0
    assert load(tmp_path).status("vm1").revision == 0


async def test_a_write_that_fails_shows_nowhere(tmp_path) -> None:
    """L-G3: the caller learns of it and makes no call."""
    store = await make_store(tmp_path, "vm1")
    folder = tmp_path / "machines" / "vm1"
    await asyncio.to_thread(folder.rename, tmp_path / "away")
    await asyncio.to_thread(folder.write_text, "no folder: a removed one would be made again (case E6)")
    with pytest.raises(StepFailed):
        await store.update("vm1", lambda status: status.model_copy(update={"revision": 9}), nothing)
    assert store.status("vm1").revision == 0


async def test_a_cancel_in_the_middle_of_a_write_leaves_memory_and_disk_alike(tmp_path) -> None:
    store = await make_store(tmp_path, "vm1")
    for revision in range(1, 30):
        change = {"revision": revision}
        task = asyncio.create_task(
            store.update("vm1", lambda status, change=change: status.model_copy(update=change), nothing)
        )
        for _ in range(revision % 5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert load(tmp_path).status("vm1") == store.status("vm1")


async def test_concurrent_changes_lose_none(tmp_path) -> None:
    store = await make_store(tmp_path, "vm1")
    await asyncio.gather(
        *(store.update("vm1", lambda s: s.model_copy(update={"revision": s.revision + 1}), nothing) for _ in range(25))
    )
    assert load(tmp_path).status("vm1").revision == 25


async def test_a_removal_cut_off_anywhere_can_be_finished(tmp_path) -> None:
    """L-R5: the status goes last and says how far the destroy has come."""
    store = await make_store(tmp_path, "vm1")
    done = DESTROYED
    await store.update(
        "vm1", lambda s: s.model_copy(update={"record": s.record.model_copy(update={"destroyed": done})}), nothing
    )
    (tmp_path / "machines" / "vm1" / "config.json").unlink()
    store = load(tmp_path)
    assert store.find("vm1").unreadable is None
    await store.remove("vm1", nothing)
    await store.remove("vm1", nothing)
    assert store.find("vm1") is None
    with pytest.raises(NotFound):
        store.status("vm1")


@pytest.mark.parametrize("name", ["config.json", "status.json"])
async def test_one_of_two_records_is_looked_at_again(tmp_path, monkeypatch, name: str) -> None:
    """H-S9: three times, 5 ms apart; what came meanwhile is there, what did not is told."""
    folder = (await make_store(tmp_path, "vm1")).folder("vm1")
    content, pauses = (folder / name).read_bytes(), []
    (folder / name).unlink()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            (folder / name).write_bytes(content)

    with monkeypatch.context() as clock:
        clock.setattr("drivers.records.time.sleep", pause)
        entry = load(tmp_path).find("vm1")
        assert entry.config is not None
        assert entry.status is not None
        assert pauses == [0.005, 0.005]
        (folder / name).unlink()
        pauses += [0.0] * 9
        assert (load(tmp_path).find("vm1").unreadable is None) == (name == "status.json")
        assert len(pauses) == 13
