"""What the API works with, put together once by its process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from fastapi import Request
from temporalio.client import Client

from api.certificates import Certificates
from api.errands import Errands
from api.pace import Pace
from api.progress import Progress
from model.campaign import CampaignKind
from model.errors import Unavailable
from model.foreign import VANISH_BRAKE, VANISH_GRACE
from model.passes import PassType
from model.placement import Policy
from model.volume import VOLUME_GRACE
from runtime.keys import MasterKeys
from runtime.settings import DEFAULT_GATEWAY, DEFAULT_URL
from runtime.ssh_ca import SshCa
from runtime.temporal import poke, poke_campaign, poke_host
from store.campaign import CampaignStore
from store.certificate import CertificateStore
from store.drain import DrainStore
from store.enrolment import Enrolments
from store.freeze import FreezeStore
from store.host import HostStore
from store.image import ImageStore
from store.operation import OperationStore
from store.project import ProjectStore
from store.roll import RollStore
from store.sync import SyncStore
from store.token import TokenStore
from store.vm import VmStore
from store.vm_change import VmChanges
from store.vm_rebuild import VmRebuilds
from store.volume import VolumeStore

if TYPE_CHECKING:
    from store.database import Pool

_log = logging.getLogger("hostler.api")


def pace_of_reports(clock: Callable[[], float] = time.monotonic) -> Pace:
    """Return how often a host may report: four times a second, which may come at once (S-6)."""
    return Pace(per_second=4, ahead=3, clock=clock)


@dataclass
class Parts:
    """Stores, keys and the Temporal client. `client` is None while Temporal has not answered yet.

    `url` and `gateway_url` are where hosts reach the fleet.
    """

    pool: Pool
    keys: MasterKeys
    fleet_id: str
    authority: SshCa
    client: Client | None = None
    search_attributes: bool = False
    ui_url: str | None = None
    url: str = DEFAULT_URL
    gateway_url: str = DEFAULT_GATEWAY
    namespace: str = "default"
    domain: str = "hostler.internal"
    tombstone_grace: timedelta = timedelta(hours=24)
    volume_grace: timedelta = VOLUME_GRACE
    vanish_grace: timedelta = VANISH_GRACE
    vanish_brake: int = VANISH_BRAKE
    placement: Policy = field(default_factory=Policy)
    errands: Errands = field(default_factory=Errands)
    reports: Pace = field(default_factory=pace_of_reports)
    news: Pace = field(default_factory=lambda: Pace(per_second=1, ahead=1))
    progress: Progress = field(default_factory=Progress)
    _poking: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def __post_init__(self) -> None:
        self.vms = VmStore(self.pool)
        self.changes = VmChanges(self.pool)
        self.rebuilds = VmRebuilds(self.pool)
        self.hosts = HostStore(self.pool)
        self.enrolments = Enrolments(self.pool)
        self.campaigns = CampaignStore(self.pool)
        self.drains = DrainStore(self.pool)
        self.rolls = RollStore(self.pool)
        self.freezes = FreezeStore(self.pool)
        self.syncs = SyncStore(self.pool)
        self.images = ImageStore(self.pool)
        self.volumes = VolumeStore(self.pool)
        self.operations = OperationStore(self.pool)
        self.tokens = TokenStore(self.pool)
        self.projects = ProjectStore(self.pool)
        self.certificates = Certificates(CertificateStore(self.pool), self.authority, self.domain)

    def poke(self, vm_id: str, pass_type: PassType, host_id: str | None = None) -> None:
        """Wake a VM's workflow without making the caller wait; what is lost, the sweep finds."""
        if self.client is not None:
            called = poke(self.client, pass_type, vm_id, host_id=host_id, search_attributes=self.search_attributes)
            self.begin(_bear_with(called, {"vm": vm_id}))

    def poke_of_news(self, vm_id: str, pass_type: PassType, host_id: str) -> None:
        """Wake a VM of which a host told something, once a second: news in between come with the next one (S-6)."""
        wait = self.news.place(vm_id)
        if wait is None:
            return  # the wake-up that waits tells of this, too
        if wait == 0:
            self.poke(vm_id, pass_type, host_id)
        else:
            self.begin(self._poke_later(wait, vm_id, pass_type, host_id))

    async def _poke_later(self, wait_seconds: float, vm_id: str, pass_type: PassType, host_id: str) -> None:
        await asyncio.sleep(wait_seconds)
        self.poke(vm_id, pass_type, host_id)

    def poke_campaign(self, kind: CampaignKind, campaign_id: str, host_id: str | None = None) -> None:
        """Wake a campaign's workflow likewise."""
        if self.client is not None:
            attributes = self.search_attributes
            called = poke_campaign(self.client, kind, campaign_id, host_id=host_id, search_attributes=attributes)
            self.begin(_bear_with(called, {"campaign": campaign_id}))

    def poke_host(self, host_id: str) -> None:
        """Wake a host's sync likewise."""
        if self.client is not None:
            called = poke_host(self.client, host_id, search_attributes=self.search_attributes)
            self.begin(_bear_with(called, {"host": host_id}))

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Do work that no caller waits for; `drain` does."""
        task = asyncio.create_task(work)
        self._poking.add(task)
        task.add_done_callback(self._poking.discard)

    def runs_url(self, project: str | None) -> str | None:
        """Return where the Temporal UI shows runs; a project sees no link to it (S-32)."""
        if self.ui_url is None or project is not None:
            return None
        return f"{self.ui_url.rstrip('/')}/namespaces/{quote(self.namespace, safe='')}/workflows"

    async def drain(self) -> None:
        """Wait for the work that was begun and is on its way."""
        while self._poking:
            await asyncio.gather(*self._poking, return_exceptions=True)


async def _bear_with(called: Coroutine[None, None, None], about: dict[str, str]) -> None:
    try:
        await called
    except Unavailable as error:
        _log.warning("a wake-up was lost, the sweep finds it: %s", error.detail, extra=about)


def parts_of(request: Request) -> Parts:
    """Return the API's parts for a request."""
    return cast("Parts", request.app.state.parts)
