"""A host's syncs, without root: pairs, files and images are the real ones, guests are simulated (H-S1 to H-S4, D-5)."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from activities.sync import SyncActivities
from drivers.host.cache import UNUSED_SECONDS, make_room
from drivers.host.sync import SyncSteps
from model.errors import Fenced, NotFound, StepFailed, Unreadable
from model.report import ReportAnswer
from model.sync import SET_NAMES, GatewayRoute, SetName, SyncAnswer, SyncOrder, SyncSets, WireguardPeer
from model.vm import Image
from tests.fixtures.host import HostWorld, make_image, make_reports, make_row
from tests.fixtures.orders import make_fence

ALL: dict[SetName, str] = dict.fromkeys(SET_NAMES, "off") | {"image_policies": "applied"}
PEER = WireguardPeer(public_key="A" * 43 + "=", endpoint="192.0.2.1:51820", allowed_networks=("10.9.0.0/24",))
ROUTE = GatewayRoute(destination="10.8.0.0/16", gateway="10.9.0.1")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HostWorld]:
    world = HostWorld(tmp_path)
    world.add("vm1")
    await world.restart()
    yield world
    await world.close()


def order(number: int, *, epoch: int = 1, revision: int = 1, attempt: int = 1, **changed: str) -> SyncOrder:
    fence = make_fence(epoch, number, 1, attempt, **changed)
    return SyncOrder(fence=fence, min_worker_version=None, revision=revision)


async def sync(world: HostWorld, number: int, *, epoch: int = 1, **sets: Any) -> SyncAnswer:
    """Sync the sets that are given, under a revision of their own."""
    if sets:
        world.sets = SyncSets(revision=world.sets.revision + 1, **sets)
    sent = order(number, epoch=epoch, revision=world.sets.revision)
    return await SyncActivities(world.host.sync).ensure_sets(sent)


def kept(world: HostWorld) -> dict[str, Any]:
    return json.loads((world.home / "sets.json").read_bytes())["sets"]


def pair(world: HostWorld) -> tuple[int, int]:
    """The pair as it is on disk."""
    fence = json.loads((world.home / "sync" / "host.json").read_bytes())["fence"]
    return fence["epoch"], fence["pass_number"]


async def test_each_set_replaces_the_one_before_and_an_empty_one_removes_all(world: HostWorld) -> None:
    """H-S1: whole sets, no deltas; a set whose part is off on the host is kept there and answered as off."""
    sets = {"privileged_addresses": ("10.84.0.9",), "wireguard_peers": (PEER,), "gateway_routes": (ROUTE,)}
    answer = await sync(world, 1, **sets)
    assert (answer.states, answer.error, answer.is_applied) == (ALL, None, True)
    assert {name: kept(world)[name] for name in sets} == {
        "privileged_addresses": ["10.84.0.9"],
        "wireguard_peers": [PEER.model_dump(mode="json")],
        "gateway_routes": [ROUTE.model_dump(mode="json")],
    }
    assert (world.home / "sets.json").stat().st_mode & 0o777 == 0o600
    await sync(world, 2, privileged_addresses=("10.84.0.8",))
    assert kept(world) == json.loads(world.sets.model_dump_json())


@pytest.mark.parametrize("lower", [(1, 6), (2, 4)])
async def test_a_lower_pair_changes_nothing_and_is_told_the_true_state(
    world: HostWorld, lower: tuple[int, int]
) -> None:
    """H-S4: the pair seen, every VM, those in quarantine included, and every volume; the equal pair is a repeat."""
    await world.run_pass(make_row("vm1"))
    await world.vm.ensure_quarantined(world.order("vm1", make_row("vm1", created=True, deleted=True), 99))
    await sync(world, 5, epoch=2, privileged_addresses=("10.84.0.9",))
    before = kept(world)
    world.sets = SyncSets(revision=9, privileged_addresses=("10.84.0.7",))
    answer = await sync(world, lower[1], epoch=lower[0])
    assert (answer.fenced, answer.epoch, answer.number, answer.is_applied) == (True, 2, 5, False)
    ((vm),) = answer.vms
    assert (vm.vm_id, vm.power_state, vm.quarantined_at is not None) == ("vm1", "stopped", True)
    assert answer.volumes == world.host.parts.volumes.report()
    assert (kept(world), pair(world)) == (before, (2, 5))
    again = await sync(world, 5, epoch=2)
    assert (again.fenced, again.is_applied, kept(world)["privileged_addresses"]) == (False, True, ["10.84.0.7"])


async def test_an_epoch_that_a_report_told_fences_syncs_of_the_one_before(world: HostWorld) -> None:
    """H-S4: the highest seen, whoever told it; the first number of the new epoch is above it."""
    await sync(world, 9, privileged_addresses=("10.84.0.9",))
    await world.identity.raise_epoch(2)
    answer = await sync(world, 10)
    assert (answer.fenced, answer.epoch, answer.number) == (True, 2, 0)
    assert (await sync(world, 3, epoch=2)).is_applied


async def test_the_pair_survives_the_worker_and_is_durable_before_anything_is_applied(world: HostWorld) -> None:
    """H-S4: seen on disk from within the fetch of the sets, and by the next worker."""
    seen: list[tuple[int, int]] = []

    async def look_then_fetch(revision: int) -> SyncSets:
        seen.append(pair(world))
        assert not (world.home / "sets.json").exists()
        return world.sets

    world.host.parts.fetch_sets = look_then_fetch
    await sync(world, 4, privileged_addresses=("10.84.0.9",))
    assert seen == [(1, 4)]
    await world.stop()
    await world.restart()
    assert (await sync(world, 3)).fenced
    assert (await make_reports(world.host).frame(1, True, ())).pass_number == 4, "a restored store lies below it (H-R1)"


@pytest.mark.parametrize("damage", ["cut", "missing", "of a later release"])
async def test_a_pair_that_cannot_be_read_refuses_every_sync(world: HostWorld, damage: str) -> None:
    """H-S4: it is never taken for 0, whatever number comes."""
    await sync(world, 4, privileged_addresses=("10.84.0.9",))
    await world.stop()
    file, before = world.home / "sync" / "host.json", kept(world)
    if damage == "missing":
        file.unlink()
    else:
        file.write_text("{" if damage == "cut" else '{"format": 99, "release": "9.9.0"}')
    await world.restart()
    world.sets = SyncSets(revision=2)
    for number in (1, 5, 1000):
        with pytest.raises(Unreadable):
            await sync(world, number)
    assert kept(world) == before


async def test_a_pair_that_cannot_be_written_refuses_the_sync(
    world: HostWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H-S4: nothing is fetched or applied; what is lower than it is refused all the same."""
    await sync(world, 4, privileged_addresses=("10.84.0.9",))
    before, fences = kept(world), world.host.sync._jobs.fences

    def fail(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        raise StepFailed("the disk is broken")

    monkeypatch.setattr(fences, "_write_durably", fail)
    world.sets = SyncSets(revision=2)
    with pytest.raises(StepFailed, match="the disk is broken"):
        await sync(world, 6)
    assert (kept(world), pair(world)) == (before, (1, 4))
    assert (await sync(world, 5)).fenced


@pytest.mark.parametrize("which", ["fleet_id", "host_id", "instance_id"])
async def test_another_fleets_or_instances_sync_is_refused(world: HostWorld, which: str) -> None:
    """H-E2, L-G5: and moves no fence."""
    with pytest.raises(Fenced):
        await world.host.sync.ensure(order(99, **{which: "other"}))
    assert (await sync(world, 1, privileged_addresses=())).is_applied


@pytest.mark.parametrize("failing", SET_NAMES)
async def test_it_stops_at_the_first_error_and_the_next_sync_repeats_all(world: HostWorld, failing: SetName) -> None:
    """H-S2, H-S3: in order; what was applied stays, what was not reached stays as it was; not-found is unavailable."""
    done: list[SetName] = []
    broken = True

    def part(name: SetName) -> Callable[[SyncSets], Awaitable[frozenset[str]]]:
        async def apply(sets: SyncSets) -> frozenset[str]:
            if name == failing and broken:
                raise NotFound("the kernel knows no such link")
            done.append(name)
            return frozenset({"vm1"})

        return apply

    await world.run_pass(make_row("vm1"))
    first = {"privileged_addresses": ("10.84.0.1",), "wireguard_peers": (PEER,), "gateway_routes": (ROUTE,)}
    await sync(world, 1, **first)
    before, place = kept(world), SET_NAMES.index(failing)
    world.host.sync = SyncSteps(world.host.parts, {name: part(name) for name in SET_NAMES})
    await world.host.sync.load_pair()
    world.host.parts.seen.delivered(world.host.parts.seen.count)
    answer = await sync(world, 2, privileged_addresses=("10.84.0.2",))
    assert done == list(SET_NAMES[:place])
    reached = ["applied"] * place + ["failed"] + ["not_reached"] * (3 - place)
    assert answer.states == dict(zip(SET_NAMES, reached, strict=True))
    assert (answer.error, answer.is_applied) == ("unavailable now: the kernel knows no such link", False)
    left = {name: kept(world)[name] for name in SET_NAMES[place + 1 :]}
    assert left == {name: before[name] for name in SET_NAMES[place + 1 :]}
    assert world.host.parts.seen.since(0)[0].look is (place > 0), (
        "whose input changed is woken once the writes are done"
    )
    broken = False
    done.clear()
    assert (await sync(world, 3)).is_applied
    assert done == list(SET_NAMES)


async def test_sets_that_are_not_found_are_unavailable(world: HostWorld) -> None:
    """H-S3: and nothing is changed by that."""

    async def fetch(revision: int) -> SyncSets:
        raise NotFound("the API knows no such thing for this host")

    await sync(world, 1, privileged_addresses=("10.84.0.9",))
    before = kept(world)
    world.host.parts.fetch_sets = fetch
    answer = await sync(world, 2, privileged_addresses=())
    assert (set(answer.states.values()), answer.is_applied) == ({"not_reached"}, False)
    assert (answer.error or "").startswith("unavailable now: ")
    assert kept(world) == before


async def test_a_newer_sync_ends_the_one_in_hand(world: HostWorld) -> None:
    """H-S4: one at a time on a host; the older one is told of the newer, and applies nothing after it."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def hang(revision: int) -> SyncSets:
        if not reached.is_set():
            reached.set()
            await go.wait()
            raise AssertionError("it went on")
        return world.sets

    world.host.parts.fetch_sets = hang
    older = asyncio.create_task(sync(world, 1, privileged_addresses=("10.84.0.1",)))
    await asyncio.wait_for(reached.wait(), 5)
    newer = await asyncio.wait_for(sync(world, 2, privileged_addresses=("10.84.0.2",)), 5)
    told = await asyncio.wait_for(older, 5)
    assert (told.fenced, told.number, newer.is_applied) == (True, 2, True)
    assert kept(world)["privileged_addresses"] == ["10.84.0.2"]


needs_images = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")


def bases(world: HostWorld) -> set[str]:
    return {stored.name for stored in world.host.parts.images.list_files() if not stored.is_partial}


def of(world: HostWorld, owner: str = "public", name: str = "wanted.qcow2") -> Image:
    return make_image(world.served, name).model_copy(update={"owner": owner})


@needs_images
async def test_an_image_of_the_policy_is_fetched_ahead_for_its_owner(world: HostWorld) -> None:
    """D-5, S-19: it is there before any VM asks; the same file for another owner is another base."""
    own = bases(world)
    assert (await sync(world, 1, image_policies=(of(world), of(world, "red")))).is_applied
    await world.host.policies.settled()
    found = bases(world) - own
    assert len(found) == 2
    assert len({name.partition("-")[0] for name in found}) == 2


@needs_images
async def test_an_image_of_the_policy_stays_and_any_other_goes_a_day_after_its_last_use(world: HostWorld) -> None:
    """D-5, D-4: what a VM depends on stays whatever its age; an empty set keeps nothing."""
    await world.run_pass(make_row("vm1"))
    own = bases(world)
    await sync(world, 1, image_policies=(of(world),))
    await world.host.policies.settled()
    all_of_them, parts, later = bases(world), world.host.parts, [0.0]

    def now() -> float:
        return parts.paths.images.stat().st_mtime + later[0]

    later[0] = UNUSED_SECONDS * 3
    await make_room(parts, world.host.policies, now)
    assert bases(world) == all_of_them
    await sync(world, 2, image_policies=())
    later[0] = 0
    await make_room(parts, world.host.policies, now)
    assert bases(world) == all_of_them, "its last use was a moment ago"
    later[0] = UNUSED_SECONDS * 2
    await make_room(parts, world.host.policies, now)
    assert bases(world) == own


@needs_images
async def test_policies_are_taken_up_by_the_next_worker(world: HostWorld) -> None:
    """H-S1, D-5: a restart keeps no image less; what was removed meanwhile is fetched again."""
    own = bases(world)
    await sync(world, 1, image_policies=(of(world),))
    await world.host.policies.settled()
    (fetched,) = bases(world) - own
    await world.stop()
    (world.host.parts.paths.images / fetched).unlink()
    await world.restart()
    await world.host.policies.settled()
    assert bases(world) == own | {fetched}


@needs_images
async def test_nothing_is_fetched_ahead_into_the_last_room(world: HostWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-12, D-5: where it is tight unused images go, so that none is fetched that nobody asked for."""
    monkeypatch.setattr(world.host.parts.space, "is_below", lambda percent: True)
    own = bases(world)
    assert (await sync(world, 1, image_policies=(of(world),))).is_applied
    await world.host.policies.settled()
    assert bases(world) == own


@needs_images
async def test_an_image_that_cannot_be_had_keeps_no_other_waiting(world: HostWorld) -> None:
    """D-5: nor the sync; it is tried again later."""
    bad = of(world)
    bad = bad.model_copy(update={"rootfs": bad.rootfs.model_copy(update={"url": f"file://{world.served}/none"})})
    own = bases(world)
    assert (await sync(world, 1, image_policies=(bad, of(world, "red")))).is_applied
    await world.host.policies.settled()
    assert len(bases(world) - own) == 1


async def test_below_the_floor_nobody_looks_and_the_epoch_is_taken_over(world: HostWorld) -> None:
    """H-S5: no record is written, of what a guest does neither, until the worker is upgraded or the floor lowered."""
    await world.run_pass(make_row("vm1"))
    reports, file = make_reports(world.host), world.home / "machines" / "vm1" / "status.json"
    await reports.take(ReportAnswer(acknowledged=1, want_whole=False, epoch=4, min_worker_version="99.0"))
    assert world.identity.epoch == 4
    before = file.read_bytes()
    world.simulation.cause("vm1", "crash")
    await world.host.watch.look("vm1")
    assert file.read_bytes() == before
    await reports.take(ReportAnswer(acknowledged=2, want_whole=False, epoch=4))
    await world.host.watch.look("vm1")
    assert file.read_bytes() != before
