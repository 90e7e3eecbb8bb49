"""Where a VM goes, and why not elsewhere: never over a cap, never stricter than the host (H-P1 to H-P8)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from drivers.ledger import Ledger
from model.capacity import Caps, Entitlement
from model.errors import Conflict, NoRoom, Unavailable
from model.placement import HostView, Policy, Strategy, Wish, find_reason, rank, refuse_all, refuse_named
from model.report import Capacity, HypervisorReport

AT = datetime(2030, 1, 1, tzinfo=UTC)
CAPS = Caps(max_vcpus=4, max_memory_mib=4096, max_disk_gib=10)
WISH = Wish(entitlement=Entitlement(cpu_millicores=1000, memory_mib=2048, disk_gib=5))
QEMU = HypervisorReport(name="qemu", available=True, why="a probe guest ran")
TOLD = HypervisorReport(name="simulated", available=True, why="only told of")
LIMIT = "; its operator set that limit: ask for less, delete a VM there, or go elsewhere"


def view(name: str = "h1", **changed: Any) -> HostView:
    return HostView(**{"id": f"id-{name}", "name": name, "status": "ready", "heard_at": AT, **changed})


def refusal(host: HostView, wish: Wish = WISH) -> str:
    reason = find_reason(host, wish, named=True)
    assert reason is not None
    return refuse_named(host, reason).detail


def mem(mib: int) -> Entitlement:
    return Entitlement(memory_mib=mib)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"live": mem(3072)}, "host h1 (id-h1) refuses: memory: needs 2048 MiB, holds 3072 of 4096 MiB" + LIMIT),
        ({"live": mem(4096)}, "host h1 (id-h1) refuses: memory: needs 2048 MiB, holds 4096 of 4096 MiB" + LIMIT),
        (
            {"live": Entitlement(cpu_millicores=3500, memory_mib=3072)},
            "host h1 (id-h1) refuses: cpu: needs 1 vCPUs, holds 3.5 of 4 vCPUs; memory: needs 2048 MiB, "
            "holds 3072 of 4096 MiB" + LIMIT,
        ),
        (
            {"live": mem(1024), "leaving": mem(2048), "leaving_vms": 1, "leaving_until": AT},
            "host h1 (id-h1) refuses: memory: needs 2048 MiB, holds 3072 of 4096 MiB; 1 VM still being torn down holds "
            "2048 MiB of memory until 2030-01-01T00:00:00Z: wait, it ends by itself",
        ),
        (
            {"leaving": Entitlement(memory_mib=4096, disk_gib=9), "leaving_vms": 3, "leaving_until": AT},
            "host h1 (id-h1) refuses: memory: needs 2048 MiB, holds 4096 of 4096 MiB; disk: needs 5 GiB, holds 9 of 10 "
            "GiB; 3 VMs still being torn down hold 4096 MiB of memory, 9 GiB of disk until 2030-01-01T00:00:00Z: wait, "
            "it ends by itself",
        ),
        ({"live": mem(3072), "leaving": mem(1024), "leaving_vms": 1, "leaving_until": AT}, LIMIT),
        ({"status": "cordoned"}, "the host h1 (id-h1) is cordoned and takes no new VM; choose another one"),
        ({"status": "draining"}, "the host h1 (id-h1) is draining and takes no new VM; choose another one"),
        ({"silent": True}, "the host h1 (id-h1) is silent since 2030-01-01T00:00:00Z; choose another one"),
        ({"version": "1.2.0", "floor": "1.4.0"}, "needs worker 1.4.0 or newer, it runs 1.2.0: upgrade it"),
        ({"architecture": "aarch64"}, "is of architecture aarch64, the image is for x86_64"),
        ({"hypervisors": (TOLD,)}, "runs simulated guests only, which a VM must name"),
    ],
)
def test_a_refusal_in_whole_sentences(changed: dict[str, Any], told: str) -> None:
    """H-P4: one dimension, exactly full, several, held by a teardown, by live VMs; H-P1, H-P6: state and filters."""
    assert told in refusal(view(caps=CAPS, **changed))


@pytest.mark.parametrize("caps", [None, Caps(), Caps(max_vcpus=1, max_memory_mib=2048)])
def test_without_a_cap_nothing_is_judged(caps: Caps | None) -> None:
    """H-P2: a host that declared none, or has not reported yet, or whose caps are exactly enough."""
    held = Entitlement() if caps and caps.max_vcpus else Entitlement(cpu_millicores=10**6, memory_mib=10**6)
    assert find_reason(view(caps=caps, live=held), WISH) is None


def test_a_host_that_has_not_reported_is_taken_only_where_it_is_named() -> None:
    """H-P1."""
    joining = view(status="joining", heard_at=None, silent=True)
    assert find_reason(joining, WISH, named=True) is None
    assert find_reason(joining, WISH) is not None


def test_why_no_host_takes_it() -> None:
    """H-P5, S-32: each host with its filter for operators, counts and the wish for a project; case G8: none visible."""
    hosts = [view("a", caps=CAPS, live=mem(4096)), view("b", status="cordoned"), view("c", silent=True)]
    reasons = [(host, reason) for host in hosts if (reason := find_reason(host, WISH))]
    assert refuse_all(reasons).detail == (
        f"no host takes this VM: a (id-a) refuses: memory: needs 2048 MiB, holds 4096 of 4096 MiB{LIMIT}; "
        "b (id-b) is cordoned and takes no new VM; c (id-c) is silent since 2030-01-01T00:00:00Z"
    )
    told = refuse_all(reasons, see_hosts=False)
    assert isinstance(told, NoRoom)
    assert told.detail == "no host takes this VM (cordoned: 1, no room: 1, silent: 1); memory: needs 2048 MiB"
    assert isinstance(refuse_all(reasons[1:2]), Conflict)
    for none in ([], reasons[2:]):
        assert isinstance(refuse_all(none), Unavailable)


def ranked(hosts: list[HostView], strategy: Strategy = "balanced", overcommit: float = 1.0) -> list[str]:
    policy = Policy(strategy=strategy, memory_overcommit=overcommit)
    one, other = (rank(each, WISH, policy) for each in (hosts, hosts[::-1]))
    assert one == other, "the order of the input decides nothing"
    return [host.name for host in one]


def test_ranking() -> None:
    """H-P8: few placements, then the smaller share; by strategy; by name last."""
    idle, half = view("b", caps=CAPS), view("a", caps=CAPS, live=mem(1024))
    assert ranked([idle, half]) == ranked([idle, half], "spread") == ["b", "a"]
    assert ranked([idle, half], "pack") == ["a", "b"]
    assert ranked([idle.model_copy(update={"placed_lately": 1}), half]) == ["a", "b"]
    assert ranked([view("z"), view("y")]) == ["y", "z"]


def test_a_group_is_kept_apart_whatever_the_strategy() -> None:
    """H-P1, H-P8: the fewest of its group first; a group refuses nothing."""
    beside, alone = view("a", caps=CAPS, of_group=1), view("b", caps=CAPS, live=mem(2048), placed_lately=9)
    for strategy in ("balanced", "spread", "pack"):
        assert ranked([beside, alone], strategy) == ["b", "a"]
    assert find_reason(beside, WISH) is None


def test_a_host_without_the_labels_is_named_with_those_it_lacks() -> None:
    """H-P1, H-P5."""
    wish = WISH.model_copy(update={"host_labels": {"disk": "nvme", "room": "2"}})
    assert refusal(view(labels={"disk": "nvme", "room": "1"}), wish) == (
        "the host h1 (id-h1) is not labelled room=2; choose another one"
    )
    assert find_reason(view(labels={"disk": "nvme", "room": "2", "more": ""}), wish) is None


@pytest.mark.parametrize(
    ("overcommit", "total_mib", "fits"),
    [(0.5, 6144, True), (0.5, 6143, False), (1, 3072, True), (1, 3071, False), (1.5, 2048, True), (4, 767, False)],
)
def test_a_host_whose_machine_has_room_comes_first(overcommit: float, total_mib: int, fits: bool) -> None:
    """H-P8, case G12: physical room ranks and never refuses; unknown is not full (H-S7)."""
    tight = view("a", capacity=Capacity(memory_mib_total=total_mib))
    assert ranked([tight, view("b", placed_lately=9)], overcommit=overcommit)[0] == ("a" if fits else "b")
    assert find_reason(tight, WISH) is None


amounts = st.integers(0, 3)
wishes = st.builds(Entitlement, cpu_millicores=amounts.map(lambda n: n * 1000), memory_mib=amounts, disk_gib=amounts)
limits = st.none() | st.integers(1, 6)
all_caps = st.builds(Caps, max_vcpus=limits, max_memory_mib=limits, max_disk_gib=limits)
kinds = st.sampled_from(
    [
        *("create", "create", "create", "prepare", "prepare", "volume", "volume"),
        *("delete", "stopped", "gone", "remove", "report", "caps"),
    ]
)
events = st.tuples(kinds, st.integers(0, 7), wishes, all_caps)


@dataclass
class Vm:
    """A VM's row, and what its host's record says of it. `certain`: placed under the caps that the host has.

    `volume_gib` is its volume's size, which outlives it; `volume_made`: its host has made that.
    """

    wish: Entitlement
    certain: bool
    volume_gib: int = 0
    volume_made: bool = False
    on_host: bool = False
    refused: bool = False
    deleted: bool = False
    stopped: bool = False

    @property
    def held(self) -> Entitlement:
        return Entitlement(disk_gib=self.wish.disk_gib) if self.stopped else self.wish

    @property
    def counts(self) -> bool:
        """As rows count: from the reservation on, and not what the host refused or never had (H-P3)."""
        return not self.refused and (self.on_host or not self.deleted)

    @property
    def asked(self) -> Entitlement:
        """What it asks of its host with its volume."""
        return self.wish + Entitlement(disk_gib=self.volume_gib)

    @property
    def volume_held(self) -> Entitlement:
        """What rows hold for its volume: with a VM that counts all of it, else what was made (H-A1)."""
        return Entitlement(disk_gib=self.volume_gib if self.counts or self.volume_made else 0)


class Fleet:
    """One host with its real ledger, and the rows; `told` are the caps of its last report, however old it is by now."""

    def __init__(self, caps: Caps) -> None:
        self.vms: dict[int, Vm] = {}
        self.told: Caps | None = None
        self.made = 0
        self.left: list[int] = []
        """The sizes of volumes whose VM is gone."""
        self.ledger = Ledger(caps, self.holdings, "h1")

    def holdings(self) -> list[tuple[str, Entitlement]]:
        """What the host's records say."""
        vms = [(str(n), vm.held) for n, vm in self.vms.items() if vm.on_host]
        volumes = [vm.volume_gib if vm.volume_made else 0 for vm in self.vms.values()] + self.left
        return vms + [(f"volume/{n}", Entitlement(disk_gib=gib)) for n, gib in enumerate(volumes)]

    def view(self) -> HostView:
        counted = [vm for vm in self.vms.values() if vm.counts]
        live = sum((vm.held for vm in counted if not vm.deleted), start=self.volumes())
        leaving = sum((vm.held for vm in counted if vm.deleted), start=Entitlement())
        return view(caps=self.told, live=live, leaving=leaving, leaving_vms=1)

    def volumes(self) -> Entitlement:
        held = [vm.volume_held for vm in self.vms.values()]
        return sum(held, start=Entitlement(disk_gib=sum(self.left)))

    def create(self, wish: Entitlement, volume_gib: int) -> None:
        vm = Vm(wish, certain=self.told == self.ledger.caps, volume_gib=volume_gib)
        found = find_reason(self.view(), Wish(entitlement=vm.asked))
        if found is None:
            self.made += 1
            self.vms[self.made] = vm
            return
        assert self.told is not None, "a host that declared nothing is never judged"
        reserved = {str(n): vm.held for n, vm in self.vms.items() if vm.counts} | {"volumes": self.volumes()}
        refused = refusal_of(Ledger(self.told, reserved.items, "h1"), "new", vm.asked)
        words = "; ".join(each.words for each in found.shortages)
        assert refused == f"host h1 refuses: {words}", "stricter than the host, or another sentence"

    def prepare(self, number: int, vm: Vm) -> None:
        if vm.deleted or vm.on_host or (vm.refused and find_reason(self.view(), Wish(entitlement=vm.asked))):
            return  # nobody wakes it while the rows say that there is no room
        before = self.ledger.held()
        vm.refused = refusal_of(self.ledger, str(number), vm.asked) is not None
        vm.on_host = not vm.refused
        assert not (vm.refused and vm.certain), "what was placed under its caps the host admits"
        for name in Entitlement.model_fields:
            limit, held = self.ledger.caps.limit(name), getattr(self.ledger.held(), name)
            assert limit is None or held <= max(limit, getattr(before, name)), "over a cap"

    def make_volume(self, vm: Vm) -> None:
        """By a step of its own, once its VM was prepared (H-V2)."""
        if not vm.on_host or vm.deleted or vm.volume_made:
            return
        vm.volume_made = refusal_of(self.ledger, "volume/new", Entitlement(disk_gib=vm.volume_gib)) is None
        assert vm.volume_made or not vm.certain, "what was placed under its caps the host admits"

    def set_caps(self, caps: Caps) -> None:
        self.ledger.caps = caps
        for vm in self.vms.values():
            vm.certain = False


def refusal_of(ledger: Ledger, name: str, wish: Entitlement) -> str | None:
    try:
        with ledger.admitted(name, wish):
            return None
    except NoRoom as error:
        return error.detail


def _told(*kinds: str) -> list[Any]:
    """Each VM has a volume of 2 GiB and nothing else; what befalls one befalls the first, then the second."""
    turns = {kind: iter(range(9)) for kind in kinds}
    return [(kind, 2 if kind == "create" else next(turns[kind]), Entitlement(), Caps()) for kind in kinds]


@example(Caps(max_disk_gib=3), _told("report", "create", "create", "prepare", "prepare", "volume", "volume"))
@example(Caps(max_disk_gib=3), _told("report", "create", "prepare", "volume", "delete", "gone", "create", "prepare"))
@settings(max_examples=400, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(all_caps, st.lists(events, min_size=10, max_size=40))
def test_placement_is_never_over_a_cap_and_never_stricter_than_the_host(caps: Caps, history: list[Any]) -> None:
    """H-P2, H-P3, H-A1: the real ledger and random histories; reports come late or not at all."""
    fleet = Fleet(caps)
    for what, which, wish, other in history:
        if what == "create":
            fleet.create(wish, volume_gib=which % 3)
        elif what == "report":
            fleet.told = fleet.ledger.caps
        elif what == "caps":
            fleet.set_caps(other)
        elif what == "remove":
            fleet.left = fleet.left[1:]
        elif fleet.vms:
            number = sorted(fleet.vms)[which % len(fleet.vms)]
            vm = fleet.vms[number]
            if what == "prepare":
                fleet.prepare(number, vm)
            elif what == "volume":
                fleet.make_volume(vm)
            elif what == "delete":
                vm.deleted = True
            elif what == "stopped" and vm.deleted:
                vm.stopped = True
            elif what == "gone" and vm.deleted:
                fleet.left += [vm.volume_gib] if vm.volume_made else []
                del fleet.vms[number]
