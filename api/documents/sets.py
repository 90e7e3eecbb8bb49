"""A host's sets as the API shows them (H-S1)."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from api.documents.base import Shown
from model.sync import GatewayRoute, SetName, SetState, WhyUnsynced, WireguardPeer


class SetsDocument(Shown):
    """The sets that are wanted of a host, each whole, and how far it has taken them over.

    `states` are those of the last answer: `off` where the set's part is off on that host, which keeps it. `fenced` is
    the epoch and the number that the host had seen already. `vms`, `quarantined` and `volumes` count what it listed.
    """

    privileged_addresses: list[str]
    wireguard_peers: list[WireguardPeer]
    image_policies: list[str] = Field(description="The images that the host fetches ahead and keeps")
    gateway_routes: list[GatewayRoute]
    revision: int = Field(description="The revision of what is wanted; 0: nothing was ever set")
    acknowledged: int | None = Field(description="The newest revision that the host has taken over, whole")
    pending: bool
    states: dict[SetName, SetState]
    number: int
    synced_at: datetime | None
    epoch: int | None
    fenced: tuple[int, int] | None
    why: WhyUnsynced | None
    error: str | None
    vms: int | None
    quarantined: int | None
    volumes: int | None
