"""A host's sync: the complete sets that the control plane owns there, and what the host answers (H-S1 to H-S4)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from model.base import Lenient
from model.fence import Answer, Order
from model.vm import Image, PowerState
from model.volume import VolumeReport

SetName = Literal["privileged_addresses", "wireguard_peers", "image_policies", "gateway_routes"]
SET_NAMES: tuple[SetName, ...] = ("privileged_addresses", "wireguard_peers", "image_policies", "gateway_routes")
"""The order in which a host applies them (H-S2)."""

SetState = Literal["applied", "off", "failed", "not_reached"]
"""`off`: its part is off on that host, which keeps the set and does nothing with it."""

SyncResult = Literal["applied", "fenced", "failed", "waiting", "gone"]
WhyUnsynced = Literal["host_away", "host_outdated", "host_below_floor", "behind", "no_answer"]
"""Why a host was not asked, or did not answer."""


class WireguardPeer(Lenient):
    """A peer of the host's mesh: its public key (base64), where it is reached, and what is behind it."""

    public_key: str
    endpoint: str | None = None
    allowed_networks: tuple[str, ...] = ()


class GatewayRoute(Lenient):
    """A network whose answers go back through the WireGuard gateway at this address."""

    destination: str
    gateway: str


class HostSets(Lenient):
    """The sets as they are wanted of a host, each whole; image policies name images by their ids."""

    privileged_addresses: tuple[str, ...] = ()
    wireguard_peers: tuple[WireguardPeer, ...] = ()
    image_policies: tuple[str, ...] = ()
    gateway_routes: tuple[GatewayRoute, ...] = ()


class SyncSets(Lenient):
    """All four sets as their host gets them: an empty one removes everything of it that Hostler manages there."""

    revision: int
    privileged_addresses: tuple[str, ...] = ()
    wireguard_peers: tuple[WireguardPeer, ...] = ()
    image_policies: tuple[Image, ...] = ()
    gateway_routes: tuple[GatewayRoute, ...] = ()


class SyncOrder(Order):
    """The argument of a host's sync. The pass number of its fence is the sync's own number.

    The host fetches the sets of this revision from the API with its own credential.
    """

    revision: int


class SyncedVm(Lenient):
    """One VM in the listing that ends a sync."""

    vm_id: str
    power_state: PowerState | None
    quarantined_at: datetime | None = None
    unreadable: bool = False


class SyncAnswer(Answer):
    """What a host answers. `fenced`: a higher pair was seen, `epoch` and `number`, and nothing was changed (H-S4).

    `states` says of each set how far it came; `error` is that of the first which failed. `vms` and `volumes` are all
    that are there, also those in quarantine.
    """

    fenced: bool = False
    epoch: int
    number: int
    states: dict[SetName, SetState] = {}
    error: str | None = None
    vms: tuple[SyncedVm, ...] = ()
    volumes: tuple[VolumeReport, ...] = ()

    @property
    def is_applied(self) -> bool:
        """Whether every set is as wanted, or off on that host."""
        return not self.fenced and self.error is None and set(self.states.values()) <= {"applied", "off"}


class SyncStart(Lenient):
    """The argument of `SyncHost`."""

    host_id: str


class SyncRef(Lenient):
    """Which run of a host's sync asks: a run draws its number once."""

    host_id: str
    run_key: str


class SyncRow(Lenient):
    """What a sync must know of its host: ids, numbers and fixed words (S-8). `wake` was read with it.

    `why`: what keeps the host from being asked now.
    """

    host_id: str
    fleet_id: str
    instance_id: str
    epoch: int
    number: int
    revision: int
    wake: int
    min_worker_version: str | None = None
    why: WhyUnsynced | None = None


class SyncDone(Lenient):
    """How a sync ended; without an answer `why` says why there is none, `error` how the host's step ended."""

    row: SyncRow
    answer: SyncAnswer | None = None
    why: WhyUnsynced | None = None
    error: str | None = None

    @property
    def result(self) -> SyncResult:
        """Say in a word how it ended."""
        if self.answer is None:
            return "waiting"
        if self.answer.fenced:
            return "fenced"
        return "applied" if self.answer.is_applied else "failed"


class SyncEnd(Lenient):
    """What a run of `SyncHost` returns."""

    result: SyncResult
    number: int | None = None


class Synced(Lenient):
    """What is known of a host's syncs: the newest one, and what the host acknowledged last, whole.

    `revision`, `instance_id` and `epoch` are of what was acknowledged: None before any was. `fenced`: the pair that the
    host had seen. `vms`, `quarantined` and `volumes` count the listing of the last answer.
    """

    number: int = 0
    at: datetime | None = None
    revision: int | None = None
    instance_id: str | None = None
    epoch: int | None = None
    states: dict[SetName, SetState] = {}
    fenced: tuple[int, int] | None = None
    error: str | None = None
    why: WhyUnsynced | None = None
    vms: int | None = None
    quarantined: int | None = None
    volumes: int | None = None

    def is_behind(self, *, revision: int, instance_id: str | None, epoch: int) -> bool:
        """Say whether a sync is called for: newer sets, another instance of the host, or another epoch.

        A host that no set was ever given has nothing to take over.
        """
        if revision == 0:
            return False
        return (self.revision or 0) < revision or (self.instance_id, self.epoch) != (instance_id, epoch)

    def after(self, done: SyncDone, at: datetime) -> Synced:
        """Return what is known after a sync: only an answer that is neither fenced nor failed acknowledges anything."""
        answer = done.answer
        told: dict[str, Any] = {
            "number": done.row.number,
            "at": at,
            "why": done.why,
            "error": done.error,
            "fenced": None,
        }
        if answer is not None:
            told |= {
                "states": self.states if answer.fenced else answer.states,
                "error": answer.error,
                "fenced": (answer.epoch, answer.number) if answer.fenced else None,
                "vms": len(answer.vms),
                "quarantined": sum(vm.quarantined_at is not None for vm in answer.vms),
                "volumes": len(answer.volumes),
            }
            if answer.is_applied:
                row = done.row
                told |= {"revision": row.revision, "instance_id": row.instance_id, "epoch": row.epoch}
        return self.model_copy(update=told)
